"""Looking on: what the service says of itself as it happens, each second and for as long as one listens."""

from collections.abc import AsyncIterator, Mapping

import msgspec

from timerwheel.remote.connection import Connection, raise_problem
from timerwheel.remote.errors import UnreachableError
from timerwheel.remote.events import EventParser

SILENCE_MS = 15_000


class Tick(msgspec.Struct, frozen=True):
    """The service at one moment; `measures` has what it did since its start, and how late it is.

    `refusing` says why no new messages are taken, if so.

    Names that end in `_total` are counts since the start; `lateness_ms_p50` and `lateness_ms_p99` are of the
    last minute.
    """

    now_ms: int
    status: str
    pending: int
    measures: dict[str, float]
    refusing: str | None = None


class LevelSlots(msgspec.Struct, frozen=True):
    """Slots in use of one level of the wheel as (start_ms, count), earliest first; `later` wait in others."""

    level: str
    slots: list[tuple[int, int]]
    later: int


class Wheel(msgspec.Struct, frozen=True):
    """What waits in which slot, leases of groups included; `overdue` in slots that are over."""

    now_ms: int
    levels: list[LevelSlots]
    overdue: int = 0


_KINDS: Mapping[str, type[Tick | Wheel]] = {"tick": Tick, "wheel": Wheel}


async def watch(connection: Connection) -> AsyncIterator[Tick | Wheel]:
    """What comes, until the caller has enough; ClientError that says why no more comes."""
    parser = EventParser()
    async for data in connection.stream("/v1/live", SILENCE_MS):
        for event in parser.feed(data):
            if event.kind == "end":
                raise_problem(None, event.data)
            if event.kind in _KINDS:
                yield msgspec.json.decode(event.data, type=_KINDS[event.kind])
    raise UnreachableError(None, "unreachable", f"{connection.url} has ended the connection")
