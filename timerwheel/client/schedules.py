"""Schedules: messages sent repeatedly, by cron or at an interval."""

import datetime as dt
from typing import Any, Literal, TypedDict, Unpack

from timerwheel.client.connection import Connection, part, with_query
from timerwheel.client.drafts import body_content, length_ms, time_ms
from timerwheel.schedules.info import NextRun
from timerwheel.wire import schedules as wire
from timerwheel.wire.schedules import NextRuns, Schedule


class ScheduleOptions(TypedDict, total=False):
    """When and what a schedule sends; one of `cron`, `every` and `every_ms`.

    The body is text, bytes, or with `json` any JSON value. `cron` is read on the clock of `zone`, an IANA
    name. `missed` is what becomes of runs in an outage.
    """

    body: str | bytes
    json: Any
    properties: dict[str, str]
    tags: str
    keys: str | list[str]
    cron: str
    every: str | dt.timedelta
    every_ms: int
    zone: str
    start: dt.datetime | str
    start_ms: int
    end: dt.datetime | str
    end_ms: int
    jitter_ms: int
    missed: Literal["skip", "once", "all"]
    skipped_hour: Literal["auto", "run_after", "skip"]
    repeated_hour: Literal["auto", "first", "both"]
    paused: bool


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

    async def put(self, name: str, topic: str, **options: Unpack[ScheduleOptions]) -> Schedule:
        """Create or replace a schedule; its next run is planned when this returns."""
        content = {"topic": topic, **_content(options)}
        return await self._connection.call("PUT", _path(name), Schedule, content=content)

    async def pause(self, name: str) -> Schedule:
        """Pause until `resume`; runs in between do not count as missed."""
        return await self._connection.call("POST", f"{_path(name)}/pause", Schedule)

    async def resume(self, name: str) -> Schedule:
        """Resume with the first run from now."""
        return await self._connection.call("POST", f"{_path(name)}/resume", Schedule)

    async def delete(self, name: str) -> Schedule:
        """Delete it and recall the runs that it sent ahead. Returns its last state."""
        return await self._connection.call("DELETE", _path(name), Schedule)

    async def runs(self, name: str, count: int = 10) -> list[NextRun]:
        """Return the next runs; none if it is paused or has ended."""
        path = with_query(f"{_path(name)}/runs", {"count": count})
        return (await self._connection.call("GET", path, NextRuns)).runs


def _path(name: str) -> str:
    return f"/v1/schedules/{part(name)}"


def _content(options: ScheduleOptions) -> dict[str, object]:
    content: dict[str, object] = dict(options)
    if "body" in options:
        del content["body"]
        content |= body_content(options["body"])
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
