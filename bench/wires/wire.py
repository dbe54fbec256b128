"""The protocol of each system without I/O: encodes requests and parses responses.

One object serves one TCP connection. The generator owns the socket, the clock and the pace, so that every
system gets the same load; a wire knows only its protocol. A spec names a wire: a dictionary of plain JSON
values with at least `wire`, `host`, `port` and `topic`, which is passed to the generator's process.
"""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

Spec = dict[str, Any]


class RefusedError(Exception):
    """A system refused a request; the run has failed."""


class Received(NamedTuple):
    """The meaning of received bytes for a consumer."""

    bodies: list[bytes]
    """Each message's body, or at least its first `bench.body.HEAD_BYTES` bytes, as it became visible."""
    reply: bytes
    """Bytes to write at once: acknowledgements, the next request; may be empty."""


class Finished(NamedTuple):
    """The meaning of received bytes for a worker."""

    bodies: list[bytes]
    """Each message's body, or at least its first `bench.body.HEAD_BYTES` bytes, once the system has answered
    that it is acknowledged."""
    reply: bytes
    """Bytes to write at once: acknowledgements, the next request; may be empty."""


class SendWire(Protocol):
    """Schedules messages. Requests on one connection are answered in their order."""

    def greeting(self) -> bytes:
        """Bytes to write once when connected; `feed` does not count their responses. May be empty."""
        ...

    def request(self, bodies: Sequence[bytes], dues_ms: Sequence[int], now_ms: int) -> bytes:
        """The request that schedules these messages, durably if the system is configured so.

        A system without batch requests gets one request each, pipelined. If it supports only delays, they are
        `due_ms - now_ms`, where `now_ms` is the time of writing.
        """
        ...

    def feed(self, data: bytes) -> int:
        """The number of requests that these bytes complete. Raises RefusedError if one was refused."""
        ...


class ReceiveWire(Protocol):
    """Receives messages as soon as they are visible, and acknowledges them if the system supports that."""

    def begin(self) -> bytes:
        """Bytes to write once when connected."""
        ...

    def feed(self, data: bytes) -> Received:
        """Parse these bytes. Raises RefusedError if the system answered with an error."""
        ...


class WorkWire(Protocol):
    """Receives up to `count_max` messages, acknowledges them together, and begins again.

    Its spec has `count_max`, and `ack_with_next`: whether the acknowledgement is written together with the
    next request, as one call if the protocol has such a call. Otherwise the next request follows the answer
    to the acknowledgement.
    """

    def begin(self) -> bytes:
        """Bytes to write once when connected: they ask for the first messages."""
        ...

    def feed(self, data: bytes) -> Finished:
        """Parse these bytes. Raises RefusedError if the system answered with an error."""
        ...


def sender(spec: Spec) -> SendWire:
    """The sending wire of a spec."""
    return _module(spec).Sender(spec)  # type: ignore[no-any-return]


def receiver(spec: Spec) -> ReceiveWire:
    """The receiving wire of a spec."""
    return _module(spec).Receiver(spec)  # type: ignore[no-any-return]


def worker(spec: Spec) -> WorkWire:
    """The working wire of a spec."""
    return _module(spec).Worker(spec)  # type: ignore[no-any-return]


def _module(spec: Spec) -> Any:  # noqa: ANN401 - a module with Sender and Receiver
    # Imported here so that the generator loads only the wire that it uses.
    return importlib.import_module(f"bench.wires.{spec['wire']}")
