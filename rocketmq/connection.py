"""A connection: frames come in, answers go out in any order.

1. Reading pauses while the peer does not read its answers, and while REQUESTS_MAX requests are in progress.
2. A frame that cannot be read closes the connection: where the next one begins is unknown.
3. A connection that sends nothing for IDLE_MS is closed, and one whose request takes FRAME_MS_MAX to arrive;
   clients send a heartbeat every 30 seconds.
4. It is closed when a token ends that one of its requests had: what is held for it may no longer be answered.
5. Frames of one turn of the loop are written together: a call of the system costs as much as an answer.
"""

import asyncio
import logging
from typing import Final, Protocol, cast

from timerwheel.rocketmq.codes import FLAG_ONE_WAY, Call
from timerwheel.rocketmq.frame import Frame, FrameError, FrameReader, encode
from timerwheel.rocketmq.request import Caller
from timerwheel.rocketmq.stored_message import Host

REQUESTS_MAX: Final = 4_096
"""Most requests of one connection in progress; held pulls do not count."""
IDLE_MS: Final = 120_000
FRAME_MS_MAX: Final = 60_000
"""The longest time from the first byte of a request to its last."""
UNREAD_BYTES_MAX: Final = 8 << 20
"""Most bytes that wait for a client to read them before it is sent no more messages."""

logger = logging.getLogger(__name__)


class Receiver(Protocol):
    """What connections belong to."""

    def opened(self, connection: "Connection") -> bool:
        """A client connected; returns False if it must leave."""

    def closed(self, connection: "Connection") -> None:
        """A client left."""

    def received(self, connection: "Connection", frame: Frame) -> None:
        """A request arrived; call `began` if it gets to be answered."""

    def hold(self, change_bytes: int) -> bool:
        """Hold so many bytes more, or fewer, for requests; returns False if that is too much in all."""

    def make_room(self, least_bytes: int = 0) -> None:
        """Close the connection with the most idle bytes, if it has so many."""

    def now_ms(self) -> int:
        """Monotonic milliseconds."""


class Connection(asyncio.Protocol):
    """See the module. Event loop only."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._peer = _host(None)
        self._in_progress = 0
        self._is_full = False  # the peer does not read
        self._is_paused = False
        self._is_finishing = False
        self._unwritten: list[bytes] = []  # frames of this turn of the loop
        self._opaque = 0
        self._local = self._peer
        self._bytes = 0  # of requests in progress
        self._held = 0  # as the receiver knows it: these, an incomplete frame, and what is not read
        self._held_pulls = 0
        self._unread_bytes = 0  # written, or to be written in this turn
        self._heard_ms = self._whole_ms = receiver.now_ms()
        self.callers: dict[str, Caller] = {}
        """Those by whose rights requests may be held, or the client be asked; by their names."""

    @property
    def is_too_slow(self) -> bool:
        """Whether nothing has come for too long, or a request takes too long to arrive."""
        now_ms = self._receiver.now_ms()
        is_late = bool(len(self._reader)) and now_ms - self._whole_ms >= FRAME_MS_MAX
        return is_late or now_ms - self._heard_ms >= IDLE_MS

    @property
    def has_room(self) -> bool:
        """See `Link`: neither its own answers nor all that is held are too many bytes."""
        return self._unread_bytes <= UNREAD_BYTES_MAX and self._receiver.hold(0)

    @property
    def idle_bytes(self) -> int:
        """Bytes that are held without anything being done: of an incomplete frame, and of unread answers."""
        return len(self._reader) + self._unread_bytes

    @property
    def peer(self) -> Host:
        """Address and port of the client."""
        return self._peer

    @property
    def local(self) -> Host:
        """Address and port at which the client reached the service."""
        return self._local

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._transport is None or self._transport.is_closing()

    @property
    def takes_more(self) -> bool:
        """Whether the client is there, and reads what it is sent."""
        return not self.is_closed and not self._is_full and not self._is_finishing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the client, or close."""
        self._transport = cast("asyncio.Transport", transport)
        self._peer, self._local = (_host(transport.get_extra_info(name)) for name in ("peername", "sockname"))
        if not self._receiver.opened(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Forget the client."""
        self._transport = None
        self.abort()
        self._receiver.closed(self)

    def data_received(self, data: bytes) -> None:
        """Pass on the requests that are complete."""
        self._heard_ms = self._receiver.now_ms()
        if not len(self._reader):
            self._whole_ms = self._heard_ms
        try:
            frames = self._reader.feed(data)
        except FrameError as error:
            logger.warning("closing the connection of %s: %s", self._peer.address, error)
            self.abort()
            return
        if frames:
            self._whole_ms = self._heard_ms
        if not self._hold() and len(self._reader):
            self._receiver.make_room()
        if self._is_finishing or self.is_closed:
            return
        for frame in frames:
            if not frame.is_response:
                self._receiver.received(self, frame)
        self._throttle()

    def eof_received(self) -> bool:
        """A client that stops sending has left: none waits for answers then."""
        return False

    def began(self, size_bytes: int) -> bool:
        """Count a request of so many bytes as in progress; returns False if too many bytes are held."""
        self._in_progress += 1
        self._bytes += size_bytes
        return self._hold()

    def ended(self, size_bytes: int) -> None:
        """It was answered."""
        self._in_progress -= 1
        self._bytes -= size_bytes
        self._hold()
        if self._is_finishing and not self._in_progress:
            self._close()
        elif self._is_paused:
            self._throttle()

    def count(self, change_bytes: int) -> bool:
        """Add to the bytes of requests in progress; returns False if too many are held in all."""
        self._bytes += change_bytes
        return self._hold()

    def held(self, change: int) -> None:
        """Add `change` to the number of pulls held."""
        self._held_pulls += change

    def write(self, data: bytes) -> None:
        """Write a frame at the end of this turn of the loop; nothing happens on a closed connection."""
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unwritten.append(data)
        self._unread_bytes += len(data)

    def _flush(self) -> None:
        """Write the frames of this turn with one call of the system."""
        frames, self._unwritten = self._unwritten, []
        if frames and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(frames)
        self._count_unread()

    def _count_unread(self) -> None:
        transport = self._transport
        self._unread_bytes = 0 if transport is None else transport.get_write_buffer_size()
        self._hold()

    def notify(self, call: Call, fields: dict[str, str], body: bytes = b"") -> None:
        """Send a request that the client does not answer; none is sent to one that reads too slowly."""
        if self._unread_bytes > UNREAD_BYTES_MAX:
            return
        self._opaque += 1
        self.write(encode(Frame(call, self._opaque, fields, body, FLAG_ONE_WAY)))

    def finish(self) -> None:
        """Take no more requests, and close once those in progress are answered."""
        self._is_finishing = True
        self._throttle()
        if not self._in_progress:
            self._close()

    def _close(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, and forget what nothing is done with."""
        if self._transport is not None:
            self._transport.abort()
        self._reader = FrameReader()
        self._unwritten.clear()
        self._unread_bytes = 0
        self._hold()

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self._is_full = True
        self._throttle()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._is_full = False
        self._count_unread()
        self._throttle()

    def _hold(self) -> bool:
        """Tell the receiver how many bytes are held; returns False if that is too much in all."""
        held, before = self._bytes + len(self._reader) + self._unread_bytes, self._held
        self._held = held
        return self._receiver.hold(held - before)

    def _throttle(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        must_pause = (
            self._is_full or self._is_finishing or self._in_progress - self._held_pulls >= REQUESTS_MAX
        )
        if must_pause and not self._is_paused:
            self._is_paused = True
            transport.pause_reading()
        elif self._is_paused and not must_pause:
            self._is_paused = False
            transport.resume_reading()


def _host(name: tuple[str, int] | None) -> Host:
    return Host("127.0.0.1", 0) if name is None else Host(name[0].partition("%")[0], name[1])
