"""The calls on recurring schedules."""

from functools import partial

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http.needs import Need
from timerwheel.api.http.route import ADMISSION, ENGINE, JSON, JSON_BODY, STORE, Route
from timerwheel.api.schedules.handlers import ScheduleCalls
from timerwheel.wire.schedules import NewSchedule, NextRuns, RunsQuery, Schedule, SchedulePath, Schedules

SCHEDULE = "/v1/schedules/{name}"
KNOWN = (*ENGINE, "unknown_schedule")
CONTENT = ("conflicting_body", "conflicting_tags", "conflicting_keys", "illegal_key")


def schedule_routes(handle: EngineHandle) -> list[Route]:
    """Calls under `/v1/schedules`."""
    calls = ScheduleCalls(handle)
    one = partial(Route, needs=Need.SEND, path_type=SchedulePath, answer=Schedule)
    change = partial(one, audited=True, problems=(*KNOWN, *STORE))
    return [
        Route(
            method="GET",
            path="/v1/schedules",
            name="listSchedules",
            summary="All schedules",
            needs=Need.SEND,
            handler=calls.all,
            answer=Schedules,
            problems=ENGINE,
        ),
        one(
            method="GET",
            path=SCHEDULE,
            name="getSchedule",
            summary="One schedule",
            handler=calls.one,
            problems=KNOWN,
        ),
        change(
            method="PUT",
            path=SCHEDULE,
            name="putSchedule",
            summary="Make a schedule or change it",
            handler=calls.put,
            also=(201,),
            located=True,
            bodies={JSON: NewSchedule},
            problems=(
                *(*ENGINE, *JSON_BODY, *ADMISSION, *CONTENT, *STORE),
                *("illegal_schedule", "too_many_schedules", "setting_too_large"),
            ),
        ),
        change(
            method="DELETE",
            path=SCHEDULE,
            name="deleteSchedule",
            summary="End a schedule and recall what it sent ahead",
            handler=calls.delete,
        ),
        change(
            method="POST",
            path=f"{SCHEDULE}/pause",
            name="pauseSchedule",
            summary="Stop a schedule until it is resumed",
            handler=calls.pause,
        ),
        change(
            method="POST",
            path=f"{SCHEDULE}/resume",
            name="resumeSchedule",
            summary="Let a paused schedule go on",
            handler=calls.resume,
        ),
        one(
            method="GET",
            path=f"{SCHEDULE}/runs",
            name="listRuns",
            summary="The next runs of a schedule",
            handler=calls.runs,
            answer=NextRuns,
            query_type=RunsQuery,
            problems=KNOWN,
        ),
    ]
