"""One-call tasks: made, found, changed and cancelled here; each queue has its own `QueueRunner`.

1. A task is a message of the topic of its queue, `%TASK%` and the queue's name. Only the service sends there.
2. Its state is derived: from the message while it is scheduled, from the group `tasks` of the topic while it
   is called, from its outcome in the topic `%TASKLOG%` and the queue's name when it has ended.
3. A queue is a setting. Its group is made after it, and again at each start if it is not there, from the head
   on: so no task is passed over, whenever the service dies.
4. A secret is shown once, in the answer of the call that made it.

Belongs to the event loop. Changes of queues are made one at a time.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET

from timerwheel.engine import Engine
from timerwheel.errors import RefusedError, TimerwheelError, UnknownMessageError
from timerwheel.groups.config import GroupConfig, GroupDiffersError
from timerwheel.groups.receipts import attempt_in
from timerwheel.model.authorization import limited_to
from timerwheel.model.messages import MessageView, Outgoing, Receipt, State
from timerwheel.push.ack_urls import AckUrls
from timerwheel.push.dispatcher import RETRY_MS
from timerwheel.push.endpoint import Caller, Reply
from timerwheel.push.outcome import Outcome
from timerwheel.push.signing import random_secret
from timerwheel.push.subscription import RotationError, rotated, rotation_ended
from timerwheel.push.tasks.lane import Places
from timerwheel.push.tasks.listing import Listing
from timerwheel.push.tasks.outcome import Ended, records_of
from timerwheel.push.tasks.runner import LEASE_MS, TAKEN, QueueRunner, RunnerParts
from timerwheel.push.tasks.standings import Standings
from timerwheel.push.tasks.task import GROUP, Task, TaskOutcome, check_queue, queue_in, topic_of
from timerwheel.push.tasks.task_queue import (
    TASK_QUEUES_MAX,
    TaskQueue,
    TaskQueueOptions,
    TaskQueueView,
    TaskQueueWithSecret,
    TooManyTaskQueuesError,
    UnknownTaskQueueError,
)
from timerwheel.push.tasks.view import TaskPage, TaskState, TaskView, view_of
from timerwheel.push.traces import Traces
from timerwheel.runtime.shielded import shielded
from timerwheel.schedules.spec import ScheduleInfo, ScheduleSpec
from timerwheel.state.config_table import ConfigTable, Put
from timerwheel.store.errors import StoreError
from timerwheel.store.record import Identity
from timerwheel.telemetry.background import in_background

GROUP_ATTEMPTS_MAX = 1_000
"""The group never gives a task up: the task says after how many attempts that is."""
NAME_BYTES = 8

logger = logging.getLogger(__name__)


class Tasks:
    """All tasks. `start` when the engine is ready, `close` before it closes."""

    def __init__(
        self,
        engine: Engine,
        *,
        allow_private: bool,
        calls_max: int,
        ack_urls: AckUrls,
        traces: Traces | None = None,
    ) -> None:
        self._engine = engine
        self._traces = traces
        self._ack_urls = ack_urls
        self._allow_private = allow_private
        self._places = Places(max(calls_max // 2, 2))
        self._runners: dict[str, QueueRunner] = {}
        self._standings = Standings(engine, self._runners)
        self._listing = Listing(engine, self._standings)
        self._changing = asyncio.Lock()
        self._parts: RunnerParts | None = None
        self._waiting: list[str] = []  # queues that could not be started
        self._starting: asyncio.Task[None] | None = None
        engine.topic_deletions.on_ending.append(self._end_topic)

    async def start(self, caller: Caller) -> None:
        """Call the tasks of every queue."""
        self._parts = RunnerParts(self._engine, caller, self._places, self._ack_urls, self._traces)
        for name in self._engine.control.items(ConfigTable.TASK_QUEUE):
            if topic_of(name) in self._engine.topics.ending:
                continue
            try:
                await self._started(name)
            except (TimerwheelError, StoreError) as error:
                logger.error("task queue %s cannot start, so its tasks wait: %s", name, error)  # noqa: TRY400
                self._waiting.append(name)
        if self._waiting:
            self._starting = in_background(self._start_waiting(), "the start of task queues")

    async def _start_waiting(self) -> None:
        """Start the queues that could not be started, as soon as that is possible."""
        while self._waiting:
            await self._engine.clock.sleep_for(RETRY_MS)
            for name in list(self._waiting):
                with contextlib.suppress(TimerwheelError, StoreError):
                    async with self._changing:
                        is_ending = topic_of(name) in self._engine.topics.ending
                        runner = None if is_ending else await self._started(name)
                    self._waiting.remove(name)
                    if runner is not None:  # it was not deleted since
                        logger.info("task queue %s has started", name)

    async def close(self, grace_ms: int) -> None:
        """Begin no more calls, wait up to `grace_ms` for those in progress."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
            self._starting = None
        async with self._changing:
            await asyncio.gather(*(runner.close(grace_ms) for runner in self._runners.values()))
            self._runners.clear()

    # ------------------------------------------------------------------ tasks

    async def create(
        self, queue: str, task: Task, body: bytes, *, more: Callable[[Outgoing], Outgoing]
    ) -> Receipt:
        """Store a task, and its queue if it is the first; `more` adds time and key to its message.

        Raises TaskError, SubscriptionError, IllegalTaskUrlError for what it says, IllegalTaskQueueError and
        TooManyTaskQueuesError for its queue, and what a send raises.
        """
        check_queue(queue)
        checked = task.checked(body, allow_private=self._allow_private)
        message = more(checked.message(queue, body))
        sender = self._engine.sender
        sender.check_accepting()
        if not sender.check([message]) and not sender.topics_without_room([message.topic]):
            await self.queue(queue)  # else the send refuses it, and makes no queue
        if self._traces is None:
            (receipt,) = await sender.send([message])
        else:
            (receipt,) = await self._traces.send([message], sender.send)
        return receipt

    async def schedule(
        self, queue: str, task: Task, name: str | None, spec: ScheduleSpec, may: Callable[[str], bool]
    ) -> ScheduleInfo:
        """Make a schedule, or change that of this name, whose runs are tasks; as `create` otherwise.

        Raises UnknownScheduleError for one of this name whose topic the caller may not see, by `may`.
        """
        check_queue(queue)
        checked = task.checked(spec.body, allow_private=self._allow_private)
        spec = msgspec.structs.replace(spec, topic=topic_of(queue), envelope=checked.text())
        name = f"task-{secrets.token_hex(NAME_BYTES)}" if name is None else name
        schedules, sender = self._engine.schedules, self._engine.sender
        schedules.check(name, spec)  # what is refused makes no queue
        if sender.topics_without_room([spec.topic]):
            raise RefusedError([sender.too_many_topics(0)])
        await self.queue(queue)
        with limited_to(may):
            return await schedules.put(name, spec)

    async def get(self, task_id: str) -> TaskView:
        """Return a task with its state; UnknownTaskError."""
        message, task, queue = await self._known(task_id)
        return view_of(message, task, queue, await self._standings.of(message))

    async def page(
        self,
        queue: str,
        wanted: Callable[[TaskView], bool],
        limit: int,
        cursor: str | None = None,
        state: TaskState | None = None,
    ) -> TaskPage:
        """Return tasks of a queue; IllegalCursorError. A queue that does not exist has none."""

        def is_wanted(task: TaskView) -> bool:
            return state in (None, task.state) and wanted(task)

        return await self._listing.page(check_queue(queue), is_wanted, limit, cursor, state)

    async def reschedule(
        self, task_id: str, properties: dict[str, str], why_not: str = "can be given another time"
    ) -> TaskView:
        """Change the due time of a scheduled task, or of the next attempt of a retrying one.

        Raises TaskStateError if it runs or has ended, and what a reschedule of a message raises.
        """
        message, _, _ = await self._known(task_id)
        if message.state is State.SCHEDULED:
            await self._engine.recalls.reschedule(task_id, properties)
            return await self.get(task_id)
        due_ms = self._engine.recalls.due_of(properties)
        place = _place(message)
        if place is None or not await self._engine.groups.reschedule_retry(
            message.topic, GROUP, place, due_ms
        ):
            raise TaskStateError(await self.get(task_id), f"only a scheduled or retrying task {why_not}")
        return await self.get(task_id)

    async def run(self, task_id: str) -> TaskView:
        """Call a scheduled or retrying task now; raises as `reschedule` does. Leaves a ready one alone."""
        message, _, _ = await self._known(task_id)
        if message.state is not State.SCHEDULED:
            standing = await self._standings.of(message)
            if standing.state == "ready":
                return await self.get(task_id)
        return await self.reschedule(task_id, {"TIMER_DELAY_MS": "0"}, "can be called now")

    @shielded
    async def cancel(self, task_id: str) -> TaskView:
        """End a task that is not being called: it is not called again. TaskStateError otherwise."""
        message, task, queue = await self._known(task_id)
        if message.state is State.SCHEDULED:
            await self._engine.recalls.recall(task_id)
            self._engine.counters.task_ended("cancelled")
            return await self.get(task_id)
        place = _place(message)
        standing = await self._standings.of(message)
        current = await self._engine.messages.current(task_id)
        ended = Ended(message, Identity(current.root, current.root_crc), task, queue)

        def records(attempts: int) -> list[tuple[bytes, str]]:
            now_ms = self._engine.clock.now_ms()
            return records_of(ended, TaskOutcome(state="cancelled", finished_ms=now_ms, attempts=attempts))

        is_over = standing.finished_ms is not None
        if is_over or place is None or not await self._end(queue, place, records):
            raise TaskStateError(await self.get(task_id), "a task that runs or has ended cannot be cancelled")
        self._engine.counters.task_ended("cancelled")
        return await self.get(task_id)

    # ------------------------------------------------------------------ acknowledged later

    async def acknowledge(self, queue: str, receipt: str) -> bool:
        """End a task that was called as succeeded; False if its receipt has ended, but not by this.

        Raises UnknownTaskQueueError.
        """
        runner, reply = self._runner(queue), Reply(Outcome("delivered", "acknowledged later", TAKEN))
        if await runner.settle_later(receipt, reply):
            return True
        found = await self._engine.groups.message_of(runner.topic, GROUP, receipt)
        if found is None:
            return False
        standing = await self._standings.of(found[0])
        return standing.state == "succeeded" and standing.attempts == attempt_in(receipt)

    async def give_back(self, queue: str, receipt: str, delay_ms: int | None, reason: str) -> bool:
        """Count the attempt at a task that was called as failed; False if its receipt has ended."""
        reply = Reply(Outcome("failed", reason, TAKEN, delay_ms))
        return await self._runner(queue).settle_later(receipt, reply)

    async def extend(self, queue: str, receipt: str, within_ms: int) -> bool:
        """Give the receiver of a task that long from now; False if its receipt has ended."""
        return await self._runner(queue).extend_later(receipt, within_ms)

    async def _end(
        self, queue: str, place: tuple[int, int], records: Callable[[int], Sequence[tuple[bytes, str]]]
    ) -> bool:
        """End a task that is not being called, in one unit with records; False if it is.

        `records` gets the number of attempts that are over, which may be more than when this began.
        """
        groups, topic, runner = self._engine.groups, topic_of(queue), self._runners.get(queue)
        receipt = None if runner is None else runner.take_back(place)
        if receipt is None:
            return await groups.withdraw(topic, GROUP, place, records)
        try:
            return (await groups.conclude(topic, GROUP, receipt, records(attempt_in(receipt) - 1))).ok
        except BaseException:
            groups.put_back(topic, GROUP, [receipt])
            raise

    async def _known(self, task_id: str) -> tuple[MessageView, Task, str]:
        try:
            message = await self._engine.messages.get(task_id)
        except UnknownMessageError:
            raise UnknownTaskError(task_id) from None
        queue = queue_in(message.topic)
        task = None if queue is None else Task.of(message.envelope)
        if queue is None or task is None:
            raise UnknownTaskError(task_id)
        return message, task, queue

    # ------------------------------------------------------------------ queues

    async def queue(self, name: str) -> TaskQueue:
        """Return a queue, made if it is new. IllegalTaskQueueError, TooManyTaskQueuesError."""
        runner = self._runners.get(check_queue(name))
        if runner is None:
            await self.put_queue(name, TaskQueueOptions())
            runner = self._runner(name)  # unless it was deleted since
        return runner.queue

    def queue_names(self) -> list[str]:
        """Return the names of all queues."""
        return sorted(self._runners)

    def find_queue(self, name: str) -> TaskQueueView | None:
        """Return one queue; None if there is none of this name."""
        runner = self._runners.get(name)
        return None if runner is None else self._view(runner)

    def get_queue(self, name: str) -> TaskQueueView:
        """Return one queue; UnknownTaskQueueError."""
        return self._view(self._runner(name))

    def uses(self, topic: str, group: str) -> bool:
        """Whether a queue makes its calls as this group."""
        return group == GROUP and queue_in(topic) in self._runners

    @shielded
    async def put_queue(self, name: str, options: TaskQueueOptions) -> tuple[TaskQueueView, bool]:
        """Make or change a queue, and say whether it was made: then the view is one with its secret."""
        check_queue(name)
        async with self._changing:
            runner = await self._started(name)
            if runner is not None:
                if options.secret is not UNSET:
                    raise RotationError(f"task queue {name} has a secret already; rotate it instead")
                await self._replace(runner, options.apply(runner.queue))
                await self._pause(name, options)
                return self._view(runner), False
            if len(self._runners) >= TASK_QUEUES_MAX:
                raise TooManyTaskQueuesError(TASK_QUEUES_MAX)
            secret = random_secret() if options.secret is UNSET else options.secret
            queue = options.apply(TaskQueue(secrets=[secret])).checked()
            await self._store(name, queue)
            await self._make_group(name)
            await self._pause(name, options)
            return _with_secret(self._view(self._add(name, queue)), secret), True

    async def _pause(self, name: str, options: TaskQueueOptions) -> None:
        if options.paused is True:
            await self._engine.topics.pause(topic_of(name))
        elif options.paused is False:
            await self._engine.topics.resume(topic_of(name))

    @shielded
    async def rotate_secret(self, name: str, secret: str | None = None) -> TaskQueueWithSecret:
        """Sign with a new secret and with the old one, until `finish_rotation`; RotationError."""
        async with self._changing:
            runner = self._runner(name)
            both = rotated(name, runner.queue.secrets, random_secret() if secret is None else secret)
            after = msgspec.structs.replace(runner.queue, secrets=both)
            return _with_secret(await self._replace(runner, after), both[0])

    @shielded
    async def finish_rotation(self, name: str) -> TaskQueueView:
        """Sign with the newest secret alone; RotationError if none is rotated."""
        async with self._changing:
            runner = self._runner(name)
            newest = rotation_ended(name, runner.queue.secrets)
            return await self._replace(runner, msgspec.structs.replace(runner.queue, secrets=newest))

    async def _end_topic(self, topic: str) -> None:
        """Delete the queue whose topic is being deleted."""
        name = queue_in(topic)
        if name is None:
            return
        async with self._changing:
            runner = self._runners.pop(name, None)
            if runner is not None:
                await runner.close(grace_ms=0)
            if self._engine.control.get(ConfigTable.TASK_QUEUE, name) is not None:
                await self._engine.control.put([Put(ConfigTable.TASK_QUEUE, name, None)])

    # ------------------------------------------------------------------ within

    def _runner(self, name: str) -> QueueRunner:
        runner = self._runners.get(check_queue(name))
        if runner is None:
            raise UnknownTaskQueueError(name)
        return runner

    async def _started(self, name: str) -> QueueRunner | None:
        """Return the runner of a queue, None if there is no such queue; one that could not start begins."""
        runner = self._runners.get(name)
        value = self._engine.control.get(ConfigTable.TASK_QUEUE, name)
        if runner is not None or value is None:
            return runner
        queue = TaskQueue.of(value)
        await self._make_group(name)
        return self._add(name, queue, restarted=True)

    def look_over(self, topic: str) -> None:
        """Let go of tasks that a purge of their queue has ended."""
        name = queue_in(topic)
        runner = None if name is None else self._runners.get(name)
        if runner is not None:
            runner.look_over()

    async def _store(self, name: str, queue: TaskQueue) -> None:
        self._engine.topics.check_open([topic_of(name)])
        await self._engine.control.put([Put(ConfigTable.TASK_QUEUE, name, queue.value())])

    async def _replace(self, runner: QueueRunner, queue: TaskQueue) -> TaskQueueView:
        queue.checked()
        if queue != runner.queue:
            await self._store(runner.name, queue)
            runner.replace(queue)
        return self._view(runner)

    async def _make_group(self, name: str) -> None:
        config = GroupConfig(start="head", max_attempts=GROUP_ATTEMPTS_MAX, invisible_ms=LEASE_MS)
        groups, topic = self._engine.groups, topic_of(name)
        try:
            await groups.put_own(topic, GROUP, config)
        except GroupDiffersError:  # a client made one that leases nothing, so no task was called yet
            await groups.delete(topic, GROUP)
            await groups.put_own(topic, GROUP, config)

    def _add(self, name: str, queue: TaskQueue, *, restarted: bool = False) -> QueueRunner:
        assert self._parts is not None, "start comes first"
        runner = QueueRunner(name, queue, self._parts, restarted=restarted)
        self._runners[name] = runner
        runner.start()
        return runner

    def _view(self, runner: QueueRunner) -> TaskQueueView:
        counts = self._engine.groups.info(runner.topic, GROUP)
        topic = self._engine.core.state.topics.get(runner.topic)
        queue = runner.queue
        running = len(runner.calling)
        return TaskQueueView(
            queue=runner.name,
            topic=runner.topic,
            rate_limit=queue.rate_limit,
            concurrency=queue.concurrency,
            host_concurrency=queue.host_concurrency,
            paused=self._engine.topics.paused(runner.topic),
            secrets_valid=len(queue.secrets),
            scheduled=0 if topic is None else topic.pending,
            ready=counts.lag + counts.ready + max(counts.in_flight - running, 0),
            running=running,
            retrying=counts.waiting,
            failing_hosts=runner.failing_hosts,
        )


def _place(message: MessageView) -> tuple[int, int] | None:
    """Return queue and queue offset of a task whose time has come; None if it was cancelled before."""
    return None if message.queue_offset is None else (message.queue, message.queue_offset)


def _with_secret(view: TaskQueueView, secret: str) -> TaskQueueWithSecret:
    return TaskQueueWithSecret(**msgspec.structs.asdict(view), secret=secret)


class UnknownTaskError(TimerwheelError):
    """No task has this id."""

    code = "unknown_task"

    def __init__(self, task_id: str) -> None:
        super().__init__(f"there is no task {task_id!r}, or it ended longer ago than retention keeps it")


class TaskStateError(TimerwheelError):
    """The state of the task does not allow this."""

    code = "task_state"

    def __init__(self, task: TaskView, why: str) -> None:
        super().__init__(f"task {task.id} is {task.state}: {why}")
        self.facts = {"state": task.state}
