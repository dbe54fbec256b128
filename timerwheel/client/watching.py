"""The service's live events, each second for as long as somebody listens."""

from collections.abc import AsyncIterator, Mapping

import msgspec

from timerwheel.client.connection import Connection, raise_problem
from timerwheel.client.errors import UnreachableError
from timerwheel.client.events import EventParser
from timerwheel.model.live_events import Tick, Wheel

SILENCE_MS = 15_000

_KINDS: Mapping[str, type[Tick | Wheel]] = {"tick": Tick, "wheel": Wheel}


async def watch(connection: Connection) -> AsyncIterator[Tick | Wheel]:
    """Yield events until the caller stops; ClientError when the service ends the stream."""
    parser = EventParser()
    async for data in connection.stream("/v1/live", SILENCE_MS):
        for event in parser.feed(data):
            if event.kind == "end":
                raise_problem(None, event.data)
            if event.kind in _KINDS:
                yield msgspec.json.decode(event.data, type=_KINDS[event.kind])
    raise UnreachableError(None, "unreachable", f"{connection.url} closed the connection")
