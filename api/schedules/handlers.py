"""The calls on recurring schedules."""

from aiohttp import web
from msgspec import UNSET, UnsetType

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, etags, query, responses
from timerwheel.api.http.bodies import JSON_BODY_VALUES_MAX
from timerwheel.api.messages import intake
from timerwheel.api.security import access
from timerwheel.model.durations import parse_delay_ms, parse_rfc3339_ms
from timerwheel.model.precondition import tag_of
from timerwheel.schedules.errors import ScheduleFieldError
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec
from timerwheel.wire.fields import NoQuery
from timerwheel.wire.schedules import (
    NewSchedule,
    NextRuns,
    RunNow,
    RunsQuery,
    Schedule,
    SchedulePath,
    Schedules,
)


class ScheduleCalls:
    """Handlers under `/v1/schedules`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    async def all(self, request: web.Request) -> web.Response:
        """GET /v1/schedules: every schedule of the caller's topics."""
        query.read(request, NoQuery)
        may = access.of(request).may
        found = [info for info in self._handle.engine.schedules.all() if may(info.spec.topic)]
        return responses.json(Schedules([Schedule.of(info) for info in found]))

    async def one(self, request: web.Request) -> web.Response:
        """GET /v1/schedules/{name}: one schedule."""
        info = self._handle.engine.schedules.get(_name(request))
        return etags.tagged(responses.json(Schedule.of(info)), tag_of(info.spec))

    async def put(self, request: web.Request) -> web.Response:
        """PUT /v1/schedules/{name}: 201 if this created it, 200 if it existed; an equal one is left alone."""
        name = _name(request)
        spec = spec_of(await bodies.read(request, NewSchedule, values_max=JSON_BODY_VALUES_MAX))
        access.of(request).check([spec.topic])
        when = etags.precondition(request)
        info, made = await self._handle.engine.schedules.put_or_make(name, spec, when)
        return etags.tagged(responses.put(request, Schedule.of(info), made=made), tag_of(info.spec))

    async def delete(self, request: web.Request) -> web.Response:
        """DELETE /v1/schedules/{name}: returns its last state."""
        name = _name(request)
        schedules = self._handle.engine.schedules
        info = schedules.get(name)
        await schedules.delete(name, etags.precondition(request))
        return responses.json(Schedule.of(info))

    async def pause(self, request: web.Request) -> web.Response:
        """POST .../pause: stops the runs until it is resumed."""
        return responses.json(Schedule.of(await self._handle.engine.schedules.pause(_name(request))))

    async def resume(self, request: web.Request) -> web.Response:
        """POST .../resume: continues with the first run from now."""
        return responses.json(Schedule.of(await self._handle.engine.schedules.resume(_name(request))))

    async def run(self, request: web.Request) -> web.Response:
        """POST .../run: sends its message at once; 201, or 200 if a call with this key has sent it."""
        name = _name(request)
        wanted = await bodies.read(request, RunNow, may_be_empty=True)
        key = None if wanted.key is UNSET else wanted.key
        receipt = await self._handle.engine.schedules.run_now(name, key)
        return responses.json(receipt, 200 if receipt.duplicate else 201)

    async def runs(self, request: web.Request) -> web.Response:
        """GET .../runs: the next runs."""
        name = query.path(request, SchedulePath).name
        count = query.read(request, RunsQuery).count
        return responses.json(NextRuns(self._handle.engine.schedules.next_runs(name, count)))


def _name(request: web.Request) -> str:
    query.read(request, NoQuery)
    return query.path(request, SchedulePath).name


def spec_of(new: NewSchedule) -> ScheduleSpec:
    """The schedule in the engine's terms; raises `RequestError`, `AdmissionError` or `ScheduleFieldError`."""
    properties = {} if new.properties is UNSET else new.properties
    body = intake.body_of(new) if new.json is UNSET else intake.put_json(properties, new)
    intake.put_names(properties, new)
    every_ms = None if new.every_ms is UNSET else new.every_ms
    if new.every is not UNSET:
        if every_ms is not None:
            raise ScheduleFieldError("every", "give only one of every_ms and every")
        every_ms = parse_delay_ms(new.every)
    return ScheduleSpec(
        topic=new.topic,
        body=body,
        properties=properties,
        recurrence=Recurrence(
            cron=None if new.cron is UNSET else new.cron,
            every_ms=every_ms,
            zone=new.zone,
            start_ms=_moment_ms("start", new.start_ms, new.start),
            end_ms=_moment_ms("end", new.end_ms, new.end),
            skipped_hour=new.skipped_hour,
            repeated_hour=new.repeated_hour,
        ),
        jitter_ms=new.jitter_ms,
        missed=new.missed,
        paused=new.paused,
    )


def _moment_ms(field: str, at_ms: int | UnsetType, at: str | UnsetType) -> int | None:
    if at is UNSET:
        return None if at_ms is UNSET else at_ms
    if at_ms is not UNSET:
        raise ScheduleFieldError(field, f"give only one of {field}_ms and {field}")
    return parse_rfc3339_ms(at)
