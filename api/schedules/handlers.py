"""The calls on recurring schedules."""

from functools import partial

from aiohttp import web
from msgspec import UNSET, UnsetType

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import etags, responses
from timerwheel.api.http.bodies import JSON_BODY_VALUES_MAX
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import ADMISSION, STORE, Need, call
from timerwheel.api.http.steps import made_of
from timerwheel.api.messages import intake
from timerwheel.api.security import access
from timerwheel.model import list_cursor
from timerwheel.model.durations import parse_delay_ms, parse_rfc3339_ms
from timerwheel.model.precondition import tag_of
from timerwheel.schedules.errors import ScheduleFieldError
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec
from timerwheel.wire.fields import given
from timerwheel.wire.messages import Accepted
from timerwheel.wire.paging import PageQuery
from timerwheel.wire.schedules import (
    NewSchedule,
    NextRuns,
    RunNow,
    RunsQuery,
    Schedule,
    SchedulePath,
    Schedules,
)

SCHEDULE = "/v1/schedules/{name}"
RUNS_DEFAULT = 10
CONTENT = ("conflicting_body", "conflicting_tags", "conflicting_keys", "illegal_key")

_reads = partial(call, needs=Need.SEND, answer=Schedule, known=("unknown_schedule",))
_changes = partial(_reads, audited=True, problems=("topic_ending", *STORE))


class ScheduleCalls:
    """Handlers under `/v1/schedules`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    @call(
        "GET",
        "/v1/schedules",
        "listSchedules",
        needs=Need.SEND,
        answer=Schedules,
        problems=("illegal_cursor",),
    )
    async def all(self, request: web.Request, params: PageQuery) -> web.Response:
        """List schedules."""
        may, engine = access.of(request).may, self._handle.engine

        def seen(name: str) -> str | None:
            topic = engine.schedules.topic_of(name)
            return name if topic is not None and may(topic) else None

        names = await made_of(engine.clock, engine.schedules.names(), seen)
        page, cursor = list_cursor.page(names, list_cursor.name_key, params.count_max, params.after)
        infos = await engine.schedules.find(page)
        return responses.json(Schedules([Schedule.of(info) for info in infos], params.answered(cursor)))

    @_reads("GET", SCHEDULE, "getSchedule", etag=True)
    async def one(self, _: web.Request, path: SchedulePath) -> web.Response:
        """Get a schedule."""
        info = await self._handle.engine.schedules.get(path.name)
        return etags.tagged(responses.json(Schedule.of(info)), tag_of(info.spec))

    @_changes(
        "PUT",
        SCHEDULE,
        "putSchedule",
        known=(),
        etag=True,
        also=(201,),
        located=True,
        problems=(
            *ADMISSION,
            *CONTENT,
            *STORE,
            *("illegal_schedule", "too_many_schedules", "setting_too_large", "name_in_use"),
        ),
        values_max=JSON_BODY_VALUES_MAX,
    )
    async def put(self, request: web.Request, path: SchedulePath, body: NewSchedule) -> web.Response:
        """Create or change a schedule.

        201 if this created it, 200 if it existed; an equal one is left alone.
        """
        spec = spec_of(body)
        access.of(request).check([spec.topic])
        when = etags.precondition(request)
        info, made = await self._handle.engine.schedules.put_or_make(path.name, spec, when)
        return etags.tagged(responses.put(request, Schedule.of(info), made=made), tag_of(info.spec))

    @_changes("DELETE", SCHEDULE, "deleteSchedule", etag=True)
    async def delete(self, request: web.Request, path: SchedulePath) -> web.Response:
        """Delete a schedule and recall the runs that it sent ahead."""
        schedules = self._handle.engine.schedules
        info = await schedules.get(path.name)
        await schedules.delete(path.name, etags.precondition(request))
        return responses.json(Schedule.of(info))

    @_changes("POST", f"{SCHEDULE}/pause", "pauseSchedule")
    async def pause(self, _: web.Request, path: SchedulePath) -> web.Response:
        """Pause a schedule."""
        return responses.json(Schedule.of(await self._handle.engine.schedules.pause(path.name)))

    @_changes("POST", f"{SCHEDULE}/resume", "resumeSchedule")
    async def resume(self, _: web.Request, path: SchedulePath) -> web.Response:
        """Resume a paused schedule.

        It continues with the first run from now.
        """
        return responses.json(Schedule.of(await self._handle.engine.schedules.resume(path.name)))

    @_changes(
        "POST",
        f"{SCHEDULE}/run",
        "runSchedule",
        status=201,
        also=(200,),
        answer=Accepted,
        body_required=False,
        problems=(*ADMISSION, "illegal_key", "key_reused", "key_recalled", *STORE),
    )
    async def run(self, _: web.Request, path: SchedulePath, body: RunNow) -> web.Response:
        """Send the message of a schedule at once, besides its planned runs.

        201, or 200 if a call with this key has sent it.
        """
        receipt = await self._handle.engine.schedules.run_now(path.name, given(body.key))
        return responses.json(receipt, 200 if receipt.duplicate else 201)

    @_reads("GET", f"{SCHEDULE}/runs", "listRuns", answer=NextRuns, problems=("illegal_cursor",))
    async def runs(self, _: web.Request, path: SchedulePath, params: RunsQuery) -> web.Response:
        """List the next runs of a schedule."""
        if params.count is not UNSET and params.limit is not UNSET:
            raise RequestError("invalid_parameter", "count is the older name of limit: give only limit")
        limit = params.count_max or given(params.count) or RUNS_DEFAULT
        after_run_ms = 0 if params.after is None else list_cursor.number_of(params.after)
        found = await self._handle.engine.schedules.next_runs(path.name, limit, after_run_ms)
        # A full page may be the last: the next one is empty then.
        cursor = list_cursor.encode(list_cursor.number_key(found[-1].run_ms)) if len(found) == limit else None
        return responses.json(NextRuns(found, params.answered(cursor)))


def spec_of(new: NewSchedule) -> ScheduleSpec:
    """The schedule in the engine's terms; raises `RequestError`, `AdmissionError` or `ScheduleFieldError`."""
    properties = {} if new.properties is UNSET else new.properties
    body = intake.body_of(new) if new.json is UNSET else intake.put_json(properties, new)
    intake.put_names(properties, new)
    every_ms = given(new.every_ms)
    if new.every is not UNSET:
        if every_ms is not None:
            raise ScheduleFieldError("every", "give only one of every_ms and every")
        every_ms = parse_delay_ms(new.every)
    return ScheduleSpec(
        topic=new.topic,
        body=body,
        properties=properties,
        recurrence=Recurrence(
            cron=given(new.cron),
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
        return given(at_ms)
    if at_ms is not UNSET:
        raise ScheduleFieldError(field, f"give only one of {field}_ms and {field}")
    return parse_rfc3339_ms(at)
