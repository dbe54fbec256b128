"""RESP2 for Redis as a work queue: a stream and a consumer group (redis.io, "Redis Streams").

A topic is a stream, and every worker is a consumer of its group. XREADGROUP leases entries and XACK ends
them; both are writes, so both reach the append-only file. XACK leaves the entry in the stream, like a log.
Bodies must not have line breaks: those of the benchmark have none.
"""

import os
from collections.abc import Sequence

from bench.wires.pipelined import InFlight
from bench.wires.resp import command
from bench.wires.wire import Finished, RefusedError, Spec

GROUP = b"workers"

_HEAD_LINES = 5
"""An answer to XREADGROUP: one stream, its pair, two lines with its name, the number of entries."""
_ENTRY_LINES = 8
"""An entry: a pair, two lines with its id, a list of field and value, two lines with each."""
_ID_LINE = _HEAD_LINES + 2
_BODY_LINE = _HEAD_LINES + 7


def stream_key(topic: str) -> bytes:
    """The stream of a topic."""
    return b"stream:%b" % topic.encode()


def create_group(topic: str) -> bytes:
    """The command that creates the stream and its group; the group begins at the first entry."""
    return command(b"XGROUP", b"CREATE", stream_key(topic), GROUP, b"0", b"MKSTREAM")


class Sender:
    """XADD for each message; an array is as many in one write. Due times are ignored."""

    def __init__(self, spec: Spec) -> None:
        self._key = stream_key(spec["topic"])
        self._in_flight = InFlight()
        self._rest = b""

    def greeting(self) -> bytes:
        """Nothing to send: Redis serves at once."""
        return b""

    def request(self, bodies: Sequence[bytes], dues_ms: Sequence[int], now_ms: int) -> bytes:  # noqa: ARG002
        """See `SendWire`."""
        self._in_flight.sent(len(bodies))
        return b"".join(command(b"XADD", self._key, b"*", b"b", body) for body in bodies)

    def feed(self, data: bytes) -> int:
        """Count ids, each in two lines. Raises RefusedError."""
        lines = (self._rest + data).split(b"\r\n")
        for line in lines[:-1]:
            _must_not_be_an_error(line)
        ids = (len(lines) - 1) // 2
        self._rest = b"\r\n".join(lines[2 * ids :])
        return self._in_flight.answered(ids)


class Worker:
    """See `WorkWire`: XREADGROUP that waits for the first entry, and one XACK for all that came."""

    def __init__(self, spec: Spec) -> None:
        self._key = stream_key(spec["topic"])
        name = b"worker-" + os.urandom(8).hex().encode()
        words = (b"COUNT", b"%d" % spec["count_max"], b"BLOCK", b"0", b"STREAMS", self._key, b">")
        self._read = command(b"XREADGROUP", b"GROUP", GROUP, name, *words)
        self._ack_with_next = spec["ack_with_next"]
        self._held: list[bytes] = []
        """Bodies of the entries that are being acknowledged."""
        self._rest = b""

    def begin(self) -> bytes:
        """Read the first entries."""
        return self._read

    def feed(self, data: bytes) -> Finished:
        """See `WorkWire`. Redis answers in order, so an XACK before the XREADGROUP that follows it."""
        data = self._rest + data
        finished: list[bytes] = []
        reply = b""
        if self._held and b"\r\n" in data:
            line, _, data = data.partition(b"\r\n")
            if line != b":%d" % len(self._held):
                raise RefusedError(f"XACK of {len(self._held)}: {line.decode(errors='replace')}")
            finished, self._held = self._held, []
            if not self._ack_with_next:
                reply = self._read
        if not self._held and (lines := _lines_of_entries(data)):
            data = b""
            self._held = lines[_BODY_LINE::_ENTRY_LINES]
            reply = command(b"XACK", self._key, GROUP, *lines[_ID_LINE::_ENTRY_LINES])
            if self._ack_with_next:
                reply += self._read
        self._rest = data
        return Finished(finished, reply)


def _lines_of_entries(data: bytes) -> list[bytes]:
    """The lines of an answer to XREADGROUP, or an empty list while it is incomplete."""
    head = data.split(b"\r\n", _HEAD_LINES)
    if len(head) > 1:
        _must_not_be_an_error(head[0])
    if len(head) <= _HEAD_LINES:
        return []
    expected = _HEAD_LINES + _ENTRY_LINES * int(head[_HEAD_LINES - 1][1:])
    lines = data.split(b"\r\n") if data.count(b"\r\n") == expected else []
    return lines[:-1]


def _must_not_be_an_error(line: bytes) -> None:
    if line.startswith(b"-") or line == b"*-1":
        raise RefusedError(line.decode(errors="replace"))
