"""Schedules: messages sent repeatedly, by cron or at an interval."""

import datetime as dt
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import UNSET

from timerwheel.client.bodies import Body, content_of
from timerwheel.client.connection import Connection, arguments, given, part, with_query
from timerwheel.client.drafts import length_ms, time_ms
from timerwheel.schedules.spec import NextRun
from timerwheel.wire import schedules as wire
from timerwheel.wire.messages import Accepted
from timerwheel.wire.schedules import NextRuns, Schedule


class Schedules:
    """The schedules of a service, by name."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def all(self) -> list[Schedule]:
        """Return all schedules, by name."""
        return (await self._connection.call("GET", "/v1/schedules", wire.Schedules)).schedules

    async def get(self, name: str) -> Schedule:
        """Return one schedule."""
        return await self._connection.call("GET", _path(name), Schedule)

    async def put(
        self,
        name: str,
        topic: str,
        *,
        body: Body | None = None,
        json: object = UNSET,
        properties: dict[str, str] | None = None,
        tags: str | None = None,
        keys: str | list[str] | None = None,
        cron: str | None = None,
        every: str | dt.timedelta | None = None,
        every_ms: int | None = None,
        zone: str | None = None,
        start: dt.datetime | str | None = None,
        start_ms: int | None = None,
        end: dt.datetime | str | None = None,
        end_ms: int | None = None,
        jitter_ms: int | None = None,
        missed: Literal["skip", "once", "all"] | None = None,
        skipped_hour: Literal["auto", "run_after", "skip"] | None = None,
        repeated_hour: Literal["auto", "first", "both"] | None = None,
        paused: bool | None = None,
        if_match: str | None = None,
    ) -> Schedule:
        """Create or replace a schedule; its next run is planned when this returns.

        The body is text, bytes, a model as in `Client.send`, or with `json` any JSON value.

        Give one of `cron`, `every` (a timedelta, or text such as "15m") and `every_ms`. `cron` is read on the
        clock of `zone`, an IANA name. `start` and `end` are aware datetimes, or RFC 3339 with a zone. Each
        run is delayed by a random part of `jitter_ms`. `missed` is what becomes of runs in an outage. The
        service chooses what is left out. Raises `ValueError` for a datetime without a time zone.
        """
        options = arguments(locals(), "json")
        del options["name"]
        options.pop("if_match", None)
        path, content = _path(name), _content(options)
        return await self._connection.call("PUT", path, Schedule, content=content, if_match=if_match)

    async def etag(self, name: str) -> str:
        """Return the tag of a schedule, for `if_match`; see `Client.etag`."""
        return await self._connection.etag(_path(name))

    async def pause(self, name: str) -> Schedule:
        """Pause until `resume`; runs in between do not count as missed."""
        return await self._connection.call("POST", f"{_path(name)}/pause", Schedule)

    async def resume(self, name: str) -> Schedule:
        """Resume with the first run from now."""
        return await self._connection.call("POST", f"{_path(name)}/resume", Schedule)

    async def run(self, name: str, key: str | None = None) -> Accepted:
        """Send its message at once, besides its planned runs; with a key, once per key."""
        return await self._connection.call("POST", f"{_path(name)}/run", Accepted, content=given(key=key))

    async def delete(self, name: str, *, if_match: str | None = None) -> Schedule:
        """Delete it and recall the runs that it sent ahead. Returns its last state."""
        return await self._connection.call("DELETE", _path(name), Schedule, if_match=if_match)

    async def runs(self, name: str, count: int = 10) -> list[NextRun]:
        """Return the next runs; none if it is paused or has ended."""
        path = with_query(f"{_path(name)}/runs", {"count": count})
        return (await self._connection.call("GET", path, NextRuns)).runs


def _path(name: str) -> str:
    return f"/v1/schedules/{part(name)}"


def _content(options: Mapping[str, Any]) -> dict[str, object]:
    content = {name: value for name, value in options.items() if name not in {"body", "json"}}
    content |= content_of(options)
    every = options.get("every")
    if isinstance(every, dt.timedelta):
        del content["every"]
        content["every_ms"] = length_ms(every)
    for name in ("start", "end"):
        value = content.get(name)
        if isinstance(value, dt.datetime):
            del content[name]
            content[f"{name}_ms"] = time_ms(value, name)
    return content
