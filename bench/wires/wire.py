"""How the load generator speaks to each system, without I/O: bytes to write, and what bytes read mean.

One object serves one TCP connection. The generator owns the socket, the clock and the pace, so that every
system meets the same load; a wire knows only its protocol. A wire is named by a spec, a dictionary of plain
JSON values with at least `wire`, `host`, `port` and `topic`, which crosses into the generator's process.
"""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

Spec = dict[str, Any]


class RefusedError(Exception):
    """A system answered that it did not take what was sent; the run has failed."""


class Received(NamedTuple):
    """What bytes that came meant to a consumer."""

    bodies: list[bytes]
    """Each message's body, or at least its first `bench.body.HEAD_BYTES` bytes, as it became visible."""
    reply: bytes
    """To be written back at once: acknowledgements, the next request; may be empty."""


class SendWire(Protocol):
    """Schedules messages. Requests on one connection are answered in their order."""

    def greeting(self) -> bytes:
        """To be written once when connected; its answers are not counted by `feed`. May be empty."""
        ...

    def request(self, bodies: Sequence[bytes], dues_ms: Sequence[int], now_ms: int) -> bytes:
        """What schedules these messages, durably if the system is set so.

        A system without requests for several pipelines one for each. Where only delays can be said, they are
        `due_ms - now_ms`, `now_ms` being the time at which the bytes are written.
        """
        ...

    def feed(self, data: bytes) -> int:
        """How many requests these bytes finished to answer; RefusedError if one was not taken in whole."""
        ...


class ReceiveWire(Protocol):
    """Takes messages as soon as they are visible, and acknowledges them where the system knows that."""

    def begin(self) -> bytes:
        """To be written once when connected."""
        ...

    def feed(self, data: bytes) -> Received:
        """What these bytes brought; RefusedError if the system answered with an error."""
        ...


def sender(spec: Spec) -> SendWire:
    """The wire of a spec, to send."""
    return _module(spec).Sender(spec)  # type: ignore[no-any-return]


def receiver(spec: Spec) -> ReceiveWire:
    """The wire of a spec, to receive."""
    return _module(spec).Receiver(spec)  # type: ignore[no-any-return]


def _module(spec: Spec) -> Any:  # noqa: ANN401 - a module with Sender and Receiver
    # Late: the generator loads the one wire that it uses.
    return importlib.import_module(f"bench.wires.{spec['wire']}")
