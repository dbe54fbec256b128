"""The calls on recurring schedules."""

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http.needs import Need
from timerwheel.api.http.route import ADMISSION, ENGINE, JSON, JSON_BODY, STORE, Route
from timerwheel.api.schedules.handlers import ScheduleCalls
from timerwheel.wire.schedules import NewSchedule, NextRuns, RunsQuery, Schedule, SchedulePath, Schedules

SCHEDULE = "/v1/schedules/{name}"
CHANGE = (*ENGINE, "unknown_schedule", *STORE)
CONTENT = ("conflicting_body", "conflicting_tags", "conflicting_keys", "illegal_key")


def schedule_routes(handle: EngineHandle) -> list[Route]:
    """Calls under `/v1/schedules`."""
    calls = ScheduleCalls(handle)
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
        Route(
            method="GET",
            path=SCHEDULE,
            name="getSchedule",
            summary="One schedule",
            needs=Need.SEND,
            handler=calls.one,
            answer=Schedule,
            path_type=SchedulePath,
            problems=(*ENGINE, "unknown_schedule"),
        ),
        Route(
            method="PUT",
            path=SCHEDULE,
            name="putSchedule",
            summary="Make a schedule or change it",
            needs=Need.SEND,
            audited=True,
            handler=calls.put,
            also=(201,),
            located=True,
            answer=Schedule,
            path_type=SchedulePath,
            bodies={JSON: NewSchedule},
            problems=(
                *(*ENGINE, *JSON_BODY, *ADMISSION, *CONTENT, *STORE),
                *("illegal_schedule", "too_many_schedules", "setting_too_large"),
            ),
        ),
        Route(
            method="DELETE",
            path=SCHEDULE,
            name="deleteSchedule",
            summary="End a schedule and recall what it sent ahead",
            needs=Need.SEND,
            audited=True,
            handler=calls.delete,
            answer=Schedule,
            path_type=SchedulePath,
            problems=CHANGE,
        ),
        Route(
            method="POST",
            path=f"{SCHEDULE}/pause",
            name="pauseSchedule",
            summary="Stop a schedule until it is resumed",
            needs=Need.SEND,
            audited=True,
            handler=calls.pause,
            answer=Schedule,
            path_type=SchedulePath,
            problems=CHANGE,
        ),
        Route(
            method="POST",
            path=f"{SCHEDULE}/resume",
            name="resumeSchedule",
            summary="Let a paused schedule go on",
            needs=Need.SEND,
            audited=True,
            handler=calls.resume,
            answer=Schedule,
            path_type=SchedulePath,
            problems=CHANGE,
        ),
        Route(
            method="GET",
            path=f"{SCHEDULE}/runs",
            name="listRuns",
            summary="The next runs of a schedule",
            needs=Need.SEND,
            handler=calls.runs,
            answer=NextRuns,
            path_type=SchedulePath,
            query_type=RunsQuery,
            problems=(*ENGINE, "unknown_schedule"),
        ),
    ]
