"""The calls on one-call tasks and their queues."""

from functools import partial

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http.needs import Need
from timerwheel.api.http.route import ADMISSION, DELAY, ENGINE, JSON, JSON_BODY, KEY, STORE, Route
from timerwheel.api.tasks.handlers import TaskCalls
from timerwheel.push.tasks.task_queue import TaskQueueView, TaskQueueWithSecret
from timerwheel.push.tasks.view import TaskPage, TaskView
from timerwheel.wire.messages import NewTime
from timerwheel.wire.subscriptions import NewSecret
from timerwheel.wire.tasks import (
    AcceptedTask,
    NewTask,
    TaskPath,
    TaskQueueChanges,
    TaskQueuePath,
    TaskQueues,
    TasksQuery,
)

TASK = "/v1/tasks/{id}"
QUEUE = "/v1/task-queues/{queue}"
KNOWN = (*ENGINE, "unknown_task", "message_deleted")
SETTLED = ("task_state", "already_delivered", "already_recalled", "unknown_message", "topic_ending", *STORE)
MAKES_QUEUE = ("illegal_task_queue", "too_many_task_queues", "too_many_groups", "setting_too_large")


def task_routes(handle: EngineHandle) -> list[Route]:
    """Calls under `/v1/tasks` and `/v1/task-queues`."""
    return [*_task_routes(TaskCalls(handle)), *_queue_routes(TaskCalls(handle))]


def _task_routes(calls: TaskCalls) -> list[Route]:
    one = partial(Route, needs=Need.RECEIVE, path_type=TaskPath, answer=TaskView, problems=KNOWN)
    change = partial(one, problems=(*KNOWN, *SETTLED))
    return [
        Route(
            method="POST",
            path="/v1/tasks",
            name="createTask",
            summary="Call a URL now, later, or again and again; the token needs both send and receive",
            needs=Need.RECEIVE,
            audited=True,
            handler=calls.create,
            status=201,
            also=(200,),
            located=True,
            takes_key=True,
            takes_context=True,
            answer=AcceptedTask,
            bodies={JSON: NewTask},
            problems=(
                *ENGINE,
                *JSON_BODY,
                *ADMISSION,
                *KEY,
                *MAKES_QUEUE,
                *("illegal_task", "conflicting_body", "conflicting_delay"),
                *("illegal_schedule", "too_many_schedules"),
                *STORE,
            ),
        ),
        Route(
            method="GET",
            path="/v1/tasks",
            name="listTasks",
            summary="List the tasks of a queue: those that wait, then the others, newest first",
            needs=Need.RECEIVE,
            handler=calls.all,
            answer=TaskPage,
            query_type=TasksQuery,
            problems=(*ENGINE, "illegal_cursor", "illegal_task_queue"),
        ),
        one(method="GET", path=TASK, name="getTask", summary="Get a task with its state", handler=calls.one),
        change(
            method="PATCH",
            path=TASK,
            name="rescheduleTask",
            summary="Give a task that waits another time",
            handler=calls.reschedule,
            bodies={JSON: NewTime},
            problems=(*KNOWN, *JSON_BODY, *DELAY, "conflicting_delay", *SETTLED),
        ),
        change(
            method="DELETE",
            path=TASK,
            name="cancelTask",
            summary="Cancel a task that is not being called",
            handler=calls.cancel,
        ),
        change(
            method="POST",
            path=f"{TASK}/run",
            name="runTask",
            summary="Call a task that waits now",
            handler=calls.run,
        ),
    ]


def _queue_routes(calls: TaskCalls) -> list[Route]:
    known = (*ENGINE, "illegal_task_queue", "unknown_task_queue")
    one = partial(Route, needs=Need.RECEIVE, path_type=TaskQueuePath, answer=TaskQueueView, problems=known)
    change = partial(one, audited=True, problems=(*known, "topic_ending", *STORE))
    return [
        Route(
            method="GET",
            path="/v1/task-queues",
            name="listTaskQueues",
            summary="List all task queues",
            needs=Need.RECEIVE,
            handler=calls.queues,
            answer=TaskQueues,
            problems=ENGINE,
        ),
        one(method="GET", path=QUEUE, name="getTaskQueue", summary="Get a task queue", handler=calls.queue),
        change(
            method="PUT",
            path=QUEUE,
            name="putTaskQueue",
            summary="Create a task queue or change its limits; shows the secret only once",
            handler=calls.put_queue,
            status=200,
            also=(201,),
            located=True,
            answer=(TaskQueueView, TaskQueueWithSecret),
            bodies={JSON: TaskQueueChanges},
            body_required=False,
            problems=(
                *ENGINE,
                *JSON_BODY,
                *MAKES_QUEUE,
                *("secret_rotation", "topic_ending", "too_many_topics"),
                *STORE,
            ),
        ),
        change(
            method="POST",
            path=f"{QUEUE}/rotate-secret",
            name="rotateTaskQueueSecret",
            summary="Start a rotation: sign with a new secret as well; shows it only once",
            handler=calls.rotate,
            answer=TaskQueueWithSecret,
            bodies={JSON: NewSecret},
            body_required=False,
            problems=(*known, *JSON_BODY, "secret_rotation", "topic_ending", *STORE),
        ),
        change(
            method="POST",
            path=f"{QUEUE}/finish-rotation",
            name="finishTaskQueueRotation",
            summary="Finish a rotation: sign with the newest secret only",
            handler=calls.finish_rotation,
            problems=(*known, "secret_rotation", "topic_ending", *STORE),
        ),
    ]
