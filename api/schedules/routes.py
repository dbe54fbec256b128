"""The calls on recurring schedules."""

from functools import partial

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http.needs import Need
from timerwheel.api.http.route import ADMISSION, ENGINE, JSON, JSON_BODY, STORE, Route
from timerwheel.api.schedules.handlers import ScheduleCalls
from timerwheel.wire.messages import Accepted
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
KNOWN = (*ENGINE, "unknown_schedule")
CONTENT = ("conflicting_body", "conflicting_tags", "conflicting_keys", "illegal_key")


def schedule_routes(handle: EngineHandle) -> list[Route]:
    """Calls under `/v1/schedules`."""
    calls = ScheduleCalls(handle)
    one = partial(Route, needs=Need.SEND, path_type=SchedulePath, answer=Schedule)
    change = partial(one, audited=True, problems=(*KNOWN, "topic_ending", *STORE))
    return [
        Route(
            method="GET",
            path="/v1/schedules",
            name="listSchedules",
            summary="List all schedules",
            needs=Need.SEND,
            handler=calls.all,
            answer=Schedules,
            problems=ENGINE,
        ),
        one(
            method="GET",
            path=SCHEDULE,
            name="getSchedule",
            etag=True,
            summary="Get a schedule",
            handler=calls.one,
            problems=KNOWN,
        ),
        change(
            method="PUT",
            path=SCHEDULE,
            name="putSchedule",
            etag=True,
            summary="Create or change a schedule",
            handler=calls.put,
            also=(201,),
            located=True,
            bodies={JSON: NewSchedule},
            problems=(
                *(*ENGINE, *JSON_BODY, *ADMISSION, *CONTENT, *STORE),
                *("illegal_schedule", "too_many_schedules", "setting_too_large", "name_in_use"),
            ),
        ),
        change(
            method="DELETE",
            path=SCHEDULE,
            name="deleteSchedule",
            etag=True,
            summary="Delete a schedule and recall the runs that it sent ahead",
            handler=calls.delete,
        ),
        change(
            method="POST",
            path=f"{SCHEDULE}/pause",
            name="pauseSchedule",
            summary="Pause a schedule",
            handler=calls.pause,
        ),
        change(
            method="POST",
            path=f"{SCHEDULE}/resume",
            name="resumeSchedule",
            summary="Resume a paused schedule",
            handler=calls.resume,
        ),
        change(
            method="POST",
            path=f"{SCHEDULE}/run",
            name="runSchedule",
            summary="Send the message of a schedule at once, besides its planned runs",
            handler=calls.run,
            status=201,
            also=(200,),
            answer=Accepted,
            bodies={JSON: RunNow},
            body_required=False,
            problems=(*KNOWN, *JSON_BODY, *ADMISSION, "illegal_key", "key_reused", "key_recalled", *STORE),
        ),
        one(
            method="GET",
            path=f"{SCHEDULE}/runs",
            name="listRuns",
            summary="List the next runs of a schedule",
            handler=calls.runs,
            answer=NextRuns,
            query_type=RunsQuery,
            problems=KNOWN,
        ),
    ]
