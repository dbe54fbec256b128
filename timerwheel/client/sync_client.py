"""The synchronous client: `Client` for threads, with the same methods, types and errors.

Written by `packaging/sync_client.py` from the asynchronous client: change that, and run it again.

    with SyncClient("http://127.0.0.1:8686") as client:
        client.send("orders", "close order 17", delay="30m")
        for lease in client.group("orders", "closers").messages():
            with lease:
                print(lease.text)

All threads may share one client. It works without `with` too: the first call opens it, and it is closed at
the end of the program. Calls run on the client's own event loop, in a thread of its own.
A call in a coroutine works, and blocks the coroutine's event loop until it returns. A forked child opens
connections of its own; a lease that its parent holds is not extended by the child.
"""

import datetime as dt
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from msgspec import UNSET, UnsetType

from timerwheel.client.acks import Acks
from timerwheel.client.blocking_consumer import run_consumer
from timerwheel.client.bodies import Body
from timerwheel.client.client import BEGINNING, PAGE_MESSAGES, Client, Sent
from timerwheel.client.dead_letters import DeadLetters
from timerwheel.client.drafts import Draft
from timerwheel.client.group import HOLD_MS_MAX, INVISIBLE_MS, RETRY_MS, Group
from timerwheel.client.lease import Lease
from timerwheel.client.loop_thread import LoopThread, Portal
from timerwheel.client.retries import SEND_RETRY_MS
from timerwheel.client.schedules import Schedules
from timerwheel.client.subscriptions import Subscriptions
from timerwheel.client.tasks import Tasks
from timerwheel.clock import Clock
from timerwheel.groups.config import RECEIVE_MAX, Expired, Exponential, GroupConfig, Ladder, Start
from timerwheel.history.history import MessageHistory
from timerwheel.model.live_events import Tick, Wheel
from timerwheel.model.messages import (
    GroupInfo,
    LevelInfo,
    OpenTransaction,
    SlotInfo,
    TopicDeletion,
    TopicPurged,
    WheelInfo,
)
from timerwheel.model.messages import TopicInfo as Topic
from timerwheel.push.attempts import Attempt
from timerwheel.push.outcome import Outcome
from timerwheel.push.stats import StatsView
from timerwheel.push.subscription import SubscriptionView, SubscriptionWithSecret
from timerwheel.push.tasks.task import Method
from timerwheel.push.tasks.task_queue import TaskQueueView, TaskQueueWithSecret
from timerwheel.push.tasks.view import TaskPage, TaskState, TaskView
from timerwheel.schedules.spec import NextRun
from timerwheel.wire.acks import AckAnswer
from timerwheel.wire.cluster import ClusterInfo
from timerwheel.wire.groups import Held, Letter, Letters, Received, RedrivenCount, Settled
from timerwheel.wire.messages import Accepted, Kind, Message
from timerwheel.wire.recalls import RecalledWhere as RecallCount
from timerwheel.wire.recalls import RecallOutcome as RecallResult
from timerwheel.wire.recalls import RescheduledWhere as RescheduleCount
from timerwheel.wire.recalls import RescheduleOutcome as RescheduleResult
from timerwheel.wire.schedules import Schedule
from timerwheel.wire.service import FigureHistory
from timerwheel.wire.tasks import AcceptedTask
from timerwheel.wire.tokens import TokenInfo

__all__ = [
    "SyncAcks",
    "SyncClient",
    "SyncDeadLetters",
    "SyncGroup",
    "SyncLease",
    "SyncSchedules",
    "SyncSubscriptions",
    "SyncTasks",
]


class SyncLease:
    """One leased message, to be finished with `ack` or `nack`.

    As a context manager it is acknowledged at the end of the block, or returned with the error that ended the
    block.
    """

    def __init__(self, loop: Portal, lease: Lease) -> None:
        self._loop = loop
        self._lease = lease

    @property
    def message(self) -> Held:
        """The message of this lease."""
        return self._lease.message

    @property
    def settled(self) -> bool:
        """Acknowledged or returned by this consumer."""
        return self._lease.settled

    @property
    def lost(self) -> bool:
        """The lease ended before it was finished: the message is, or will be, leased to another consumer."""
        return self._lease.lost

    def __enter__(self) -> Self:
        """Enter the block; calls nothing."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Acknowledge or return the message, unless the block did."""
        self._loop.run(self._lease.__aexit__(kind, error, trace))

    @property
    def body(self) -> bytes:
        """The body's bytes."""
        return self._lease.body

    def json(self) -> Any:  # noqa: ANN401 - as in the asynchronous client
        """Return the body as the JSON value that it holds; raises ValueError if it is not JSON."""
        return self._lease.json()

    def as_(self, kind: type[Kind]) -> Kind:
        """Return the body's JSON as a value of this type; see `Message.as_`."""
        return self._lease.as_(kind)

    @property
    def text(self) -> str:
        """The body as UTF-8; raises UnicodeDecodeError if it is not."""
        return self._lease.text

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._lease.attempt

    def ack(self) -> None:
        """Acknowledge the message durably. Raises LeaseEndedError if it is too late."""
        self._loop.run(self._lease.ack())

    def nack(
        self,
        *,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        reason: str | None = None,
        dead_letter: bool = False,
    ) -> None:
        """Return the message: it is redelivered after the delay, by default the group's backoff.

        After its last attempt, or at once with `dead_letter`, it is a dead letter with this reason. Raises
        LeaseEndedError.
        """
        self._loop.run(
            self._lease.nack(delay=delay, delay_ms=delay_ms, reason=reason, dead_letter=dead_letter)
        )

    def extend(self, invisible_ms: int | None = None) -> None:
        """Extend the lease to this long from now, by default its first length. Raises LeaseEndedError."""
        self._loop.run(self._lease.extend(invisible_ms))


class SyncGroup:
    """One group of one topic; created by `Client.group`, which calls nothing."""

    def __init__(self, loop: Portal, group: Group) -> None:
        self._loop = loop
        self._group = group

    @property
    def topic(self) -> str:
        """The topic of this group."""
        return self._group.topic

    @property
    def name(self) -> str:
        """The name of this group."""
        return self._group.name

    @property
    def created(self) -> bool:
        """Whether a call of this object created the group because it was not there."""
        return self._group.created

    def receive(
        self,
        count_max: int = 1,
        *,
        wait_ms: int = 0,
        invisible_ms: int | None = None,
        tags: str | None = None,
        start: Start | None = None,
        create: bool | None = None,
    ) -> list[Held]:
        """Receive up to `count_max` messages, waiting up to `wait_ms` for the first; does not extend them.

        A missing group is created with these tags and this start if its topic exists, and the logger
        `timerwheel.client.group` reports it. With `create=True` it is always created, with `create=False`
        never: `NotFoundError` with the code `group_not_found`. `ConflictError` if the group has other tags.
        """
        return self._loop.run(
            self._group.receive(
                count_max, wait_ms=wait_ms, invisible_ms=invisible_ms, tags=tags, start=start, create=create
            )
        )

    def receive_arrow(
        self,
        count_max: int = RECEIVE_MAX,
        *,
        wait_ms: int = 0,
        invisible_ms: int | None = None,
        tags: str | None = None,
        start: Start | None = None,
        create: bool | None = None,
        ack: Sequence[str] = (),
    ) -> Any:  # noqa: ANN401 - as in the asynchronous client
        """Receive as `receive` does, and return a pyarrow Table with a message per row.

        Its column `receipt` is what `ack` takes: `group.ack(table["receipt"].to_pylist())`. Receipts in
        `ack` are acknowledged in the same round trip; a result for each, as JSON, is then under `results` in
        the metadata of the Table's schema.
        """
        return self._loop.run(
            self._group.receive_arrow(
                count_max,
                wait_ms=wait_ms,
                invisible_ms=invisible_ms,
                tags=tags,
                start=start,
                create=create,
                ack=ack,
            )
        )

    def ack_and_receive(
        self,
        receipts: Sequence[str],
        count_max: int = 1,
        *,
        wait_ms: int = 0,
        invisible_ms: int | None = None,
    ) -> Received:
        """Acknowledge messages and receive the next ones in one round trip.

        Returns up to `count_max` messages, and a result for each receipt as `ack` does. The messages are
        acknowledged at once, however long the call then waits, and stay acknowledged if receiving fails.
        Raises `NotFoundError` if the group does not exist.
        """
        return self._loop.run(
            self._group.ack_and_receive(receipts, count_max, wait_ms=wait_ms, invisible_ms=invisible_ms)
        )

    def ack(self, receipts: Sequence[str]) -> list[Settled]:
        """Acknowledge messages durably; returns a result for each, which may be not ok."""
        return self._loop.run(self._group.ack(receipts))

    def nack(
        self,
        receipts: Sequence[str],
        *,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        reason: str | None = None,
        dead_letter: bool = False,
    ) -> list[Settled]:
        """Return messages: they are redelivered after the delay, by default the attempt's backoff.

        With `dead_letter` they are dead letters now, whatever attempts they have left.
        """
        return self._loop.run(
            self._group.nack(receipts, delay=delay, delay_ms=delay_ms, reason=reason, dead_letter=dead_letter)
        )

    def extend(self, receipts: Sequence[str], invisible_ms: int) -> list[Settled]:
        """Extend the leases of these messages to this long from now."""
        return self._loop.run(self._group.extend(receipts, invisible_ms))

    def info(self) -> GroupInfo:
        """Return the group's current state: its configuration, lag and counts."""
        return self._loop.run(self._group.info())

    def put(self, config: GroupConfig | None = None) -> GroupInfo:
        """Create or configure the group; `start` applies only when it is created."""
        return self._loop.run(self._group.put(config))

    def delete(self) -> GroupInfo:
        """Delete the group, with its position and leases; its dead letters stay. Returns its last state."""
        return self._loop.run(self._group.delete())

    def rewind(
        self,
        *,
        to: Start | None = None,
        time: dt.datetime | str | None = None,
        time_ms: int | None = None,
        offsets: Mapping[int, int] | None = None,
    ) -> GroupInfo:
        """Move to the head, the tail, a time of delivery, or offsets by queue; give exactly one.

        The group drops what it holds, and outstanding receipts become invalid.
        """
        return self._loop.run(self._group.rewind(to=to, time=time, time_ms=time_ms, offsets=offsets))

    def messages(
        self,
        *,
        batch: int = 1,
        follow: bool = True,
        tags: str | None = None,
        start: Start | None = None,
        create: bool | None = None,
        invisible_ms: int = INVISIBLE_MS,
        hold_ms_max: int = HOLD_MS_MAX,
    ) -> Iterator[SyncLease]:
        """Yield messages as they arrive, to be finished with `ack` or `nack`; extended until then.

        They are fetched `batch` at a time, by endless long polls, or without `follow` until there are none.
        Raises `UnreachableError` in an outage; `consume` continues instead.

        `tags` and `start` apply to a new group, `create` is as in `receive`. A message is held for
        `invisible_ms` and extended until it is finished or was held for `hold_ms_max`.
        """
        yield from map(
            partial(SyncLease, self._loop),
            self._loop.iterate(
                self._group.messages(
                    batch=batch,
                    follow=follow,
                    tags=tags,
                    start=start,
                    create=create,
                    invisible_ms=invisible_ms,
                    hold_ms_max=hold_ms_max,
                )
            ),
        )

    def consume(
        self,
        handler: Callable[[SyncLease], object],
        *,
        concurrency: int = 1,
        stop: threading.Event | None = None,
        retry_ms: int = RETRY_MS,
        tags: str | None = None,
        start: Start | None = None,
        create: bool | None = None,
        invisible_ms: int = INVISIBLE_MS,
        hold_ms_max: int = HOLD_MS_MAX,
    ) -> None:
        """Run `handler` in a thread on each message, up to `concurrency` at a time, until `stop` is set.

        A message is acknowledged when the handler returns, and returned with the group's backoff when it
        raises. In an outage this retries every `retry_ms`. When stopped, it takes no more messages and waits
        for the handlers; Ctrl-C does the same. A second Ctrl-C leaves them to be redelivered.

        The other parameters are those of `messages`.
        """
        run_consumer(
            self._loop,
            lambda handle, stopping: self._group.consume(
                handle,
                concurrency=concurrency,
                retry_ms=retry_ms,
                tags=tags,
                start=start,
                create=create,
                invisible_ms=invisible_ms,
                hold_ms_max=hold_ms_max,
                stop=stopping,
            ),
            lambda lease: handler(SyncLease(self._loop, lease)),
            concurrency,
            stop,
        )

    def stream(
        self,
        *,
        max_in_flight: int = 100,
        auto_ack: bool = False,
        tags: str | None = None,
        start: Start | None = None,
        create: bool | None = None,
        invisible_ms: int = INVISIBLE_MS,
        hold_ms_max: int = HOLD_MS_MAX,
    ) -> Iterator[SyncLease]:
        """Yield as `messages` does, over one streaming connection: at most `max_in_flight` unfinished.

        With `auto_ack` a message is acknowledged as it is sent, which may be before it is received. Ends when
        the service stops; raises `UnreachableError` when the connection breaks, or the error with which the
        service ends the stream.
        """
        yield from map(
            partial(SyncLease, self._loop),
            self._loop.iterate(
                self._group.stream(
                    max_in_flight=max_in_flight,
                    auto_ack=auto_ack,
                    tags=tags,
                    start=start,
                    create=create,
                    invisible_ms=invisible_ms,
                    hold_ms_max=hold_ms_max,
                )
            ),
        )


class SyncDeadLetters:
    """Dead letters; created by `Client.dead_letters`, which calls nothing."""

    def __init__(self, loop: Portal, deadletters: DeadLetters) -> None:
        self._loop = loop
        self._deadletters = deadletters

    def page(self, first: int = 0, limit: int = 100) -> Letters:
        """Return a page of dead letters from an offset, oldest first."""
        return self._loop.run(self._deadletters.page(first, limit))

    def all(self) -> Iterator[Letter]:
        """Yield all dead letters, page by page."""
        yield from self._loop.iterate(self._deadletters.all())

    def redrive(
        self, offsets: Sequence[int] | None = None, *, topics: Sequence[str] | None = None
    ) -> RedrivenCount:
        """Deliver these, or all, to their group again, starting with the first attempt.

        Without a topic, redriving all needs `topics`: those of the groups.
        """
        return self._loop.run(self._deadletters.redrive(offsets, topics=topics))

    def drop(self, offsets: Sequence[int] | None = None, *, topics: Sequence[str] | None = None) -> int:
        """Drop these, or all; returns how many were dropped. `topics` as in `redrive`."""
        return self._loop.run(self._deadletters.drop(offsets, topics=topics))


class SyncSchedules:
    """The schedules of a service, by name."""

    def __init__(self, loop: Portal, schedules: Schedules) -> None:
        self._loop = loop
        self._schedules = schedules

    def all(self) -> list[Schedule]:
        """Return all schedules, by name."""
        return self._loop.run(self._schedules.all())

    def get(self, name: str) -> Schedule:
        """Return one schedule."""
        return self._loop.run(self._schedules.get(name))

    def put(
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
    ) -> Schedule:
        """Create or replace a schedule; its next run is planned when this returns.

        The body is text, bytes, a model as in `Client.send`, or with `json` any JSON value.

        Give one of `cron`, `every` (a timedelta, or text such as "15m") and `every_ms`. `cron` is read on the
        clock of `zone`, an IANA name. `start` and `end` are aware datetimes, or RFC 3339 with a zone. Each
        run is delayed by a random part of `jitter_ms`. `missed` is what becomes of runs in an outage. The
        service chooses what is left out. Raises `ValueError` for a datetime without a time zone.
        """
        return self._loop.run(
            self._schedules.put(
                name,
                topic,
                body=body,
                json=json,
                properties=properties,
                tags=tags,
                keys=keys,
                cron=cron,
                every=every,
                every_ms=every_ms,
                zone=zone,
                start=start,
                start_ms=start_ms,
                end=end,
                end_ms=end_ms,
                jitter_ms=jitter_ms,
                missed=missed,
                skipped_hour=skipped_hour,
                repeated_hour=repeated_hour,
                paused=paused,
            )
        )

    def pause(self, name: str) -> Schedule:
        """Pause until `resume`; runs in between do not count as missed."""
        return self._loop.run(self._schedules.pause(name))

    def resume(self, name: str) -> Schedule:
        """Resume with the first run from now."""
        return self._loop.run(self._schedules.resume(name))

    def run(self, name: str, key: str | None = None) -> Accepted:
        """Send its message at once, besides its planned runs; with a key, once per key."""
        return self._loop.run(self._schedules.run(name, key))

    def delete(self, name: str) -> Schedule:
        """Delete it and recall the runs that it sent ahead. Returns its last state."""
        return self._loop.run(self._schedules.delete(name))

    def runs(self, name: str, count: int = 10) -> list[NextRun]:
        """Return the next runs; none if it is paused or has ended."""
        return self._loop.run(self._schedules.runs(name, count))


class SyncSubscriptions:
    """The subscriptions of a service, by id."""

    def __init__(self, loop: Portal, subscriptions: Subscriptions) -> None:
        self._loop = loop
        self._subscriptions = subscriptions

    def all(self) -> list[SubscriptionView]:
        """Return all subscriptions, oldest first."""
        return self._loop.run(self._subscriptions.all())

    def get(self, subscription_id: str) -> SubscriptionView:
        """Return one subscription."""
        return self._loop.run(self._subscriptions.get(subscription_id))

    def add(
        self,
        topic: str,
        url: str,
        *,
        id: str | None = None,
        group: str | None = None,
        secret: str | None = None,
        start: Start | None = None,
        paused: bool | None = None,
        tags: str | None = None,
        max_attempts: int | None = None,
        max_age_ms: int | UnsetType | None = UNSET,
        expired: Expired | None = None,
        backoff: Ladder | Exponential | None = None,
        concurrency: int | None = None,
        rate_limit: float | UnsetType | None = UNSET,
        timeout_ms: int | None = None,
        headers: dict[str, str] | None = None,
        cloudevents: bool | None = None,
    ) -> SubscriptionWithSecret:
        """Post the messages of a topic to a URL. Keep the secret: no other call shows it.

        The service chooses what is left out. `rate_limit` is in requests per second, `timeout_ms` for each
        request. `ConflictError` if a subscription with this `id` exists, or the `group` is in use.
        """
        return self._loop.run(
            self._subscriptions.add(
                topic,
                url,
                id=id,
                group=group,
                secret=secret,
                start=start,
                paused=paused,
                tags=tags,
                max_attempts=max_attempts,
                max_age_ms=max_age_ms,
                expired=expired,
                backoff=backoff,
                concurrency=concurrency,
                rate_limit=rate_limit,
                timeout_ms=timeout_ms,
                headers=headers,
                cloudevents=cloudevents,
            )
        )

    def update(
        self,
        subscription_id: str,
        *,
        url: str | None = None,
        tags: str | None = None,
        max_attempts: int | None = None,
        max_age_ms: int | UnsetType | None = UNSET,
        expired: Expired | None = None,
        backoff: Ladder | Exponential | None = None,
        concurrency: int | None = None,
        rate_limit: float | UnsetType | None = UNSET,
        timeout_ms: int | None = None,
        headers: dict[str, str] | None = None,
        cloudevents: bool | None = None,
    ) -> SubscriptionView:
        """Change the given fields from the next request on; None removes `rate_limit` or `max_age_ms`."""
        return self._loop.run(
            self._subscriptions.update(
                subscription_id,
                url=url,
                tags=tags,
                max_attempts=max_attempts,
                max_age_ms=max_age_ms,
                expired=expired,
                backoff=backoff,
                concurrency=concurrency,
                rate_limit=rate_limit,
                timeout_ms=timeout_ms,
                headers=headers,
                cloudevents=cloudevents,
            )
        )

    def delete(self, subscription_id: str) -> SubscriptionView:
        """Delete it, with its group if that was created for it. Returns its last state."""
        return self._loop.run(self._subscriptions.delete(subscription_id))

    def pause(self, subscription_id: str) -> SubscriptionView:
        """Pause until `resume`."""
        return self._loop.run(self._subscriptions.pause(subscription_id))

    def resume(self, subscription_id: str) -> SubscriptionView:
        """Resume at once, even if the service had disabled it."""
        return self._loop.run(self._subscriptions.resume(subscription_id))

    def test(self, subscription_id: str) -> Outcome:
        """Post a test message now, and return the outcome."""
        return self._loop.run(self._subscriptions.test(subscription_id))

    def rotate_secret(self, subscription_id: str, secret: str | None = None) -> SubscriptionWithSecret:
        """Sign with a new secret, given or generated, and the old one, until `finish_rotation`."""
        return self._loop.run(self._subscriptions.rotate_secret(subscription_id, secret))

    def finish_rotation(self, subscription_id: str) -> SubscriptionView:
        """Sign with the newest secret only."""
        return self._loop.run(self._subscriptions.finish_rotation(subscription_id))

    def attempts(self, subscription_id: str) -> list[Attempt]:
        """Return its last attempts since the service started, newest first."""
        return self._loop.run(self._subscriptions.attempts(subscription_id))

    def send_again(self, subscription_id: str, message_id: str) -> Attempt:
        """Post a delivered message of its topic once more now, and return the attempt."""
        return self._loop.run(self._subscriptions.send_again(subscription_id, message_id))

    def stats(self, subscription_id: str) -> StatsView:
        """Return the counts of a subscription since the service started."""
        return self._loop.run(self._subscriptions.stats(subscription_id))


class SyncTasks:
    """The tasks of a service, by id, and their queues, by name."""

    def __init__(self, loop: Portal, tasks: Tasks) -> None:
        self._loop = loop
        self._tasks = tasks

    def create(
        self,
        url: str,
        body: Body = "",
        *,
        json: object = UNSET,
        method: Method | None = None,
        headers: dict[str, str] | None = None,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        deliver_at: dt.datetime | str | None = None,
        deliver_at_ms: int | None = None,
        cron: str | None = None,
        zone: str | None = None,
        schedule: str | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        backoff: Ladder | Exponential | None = None,
        timeout_ms: int | None = None,
        callback: str | None = None,
        failure_callback: str | None = None,
        dedup_key: str | None = None,
    ) -> AcceptedTask:
        """Have a URL called when it is due: the task is durable when this returns.

        The body is text, bytes, a model as in `Client.send`, or with `json` any JSON value. `delay` and
        `deliver_at` are as in `Client.send`; with none, it is called at once. With `cron` it is called again
        and again, by the `schedule` of that name. `callback` is a URL that gets the outcome of a success,
        `failure_callback` that of a failure. With a `dedup_key` it is stored once. The service chooses what
        is left out. Raises `ValueError` for a datetime without a time zone.
        """
        return self._loop.run(
            self._tasks.create(
                url,
                body,
                json=json,
                method=method,
                headers=headers,
                delay=delay,
                delay_ms=delay_ms,
                deliver_at=deliver_at,
                deliver_at_ms=deliver_at_ms,
                cron=cron,
                zone=zone,
                schedule=schedule,
                queue=queue,
                max_attempts=max_attempts,
                backoff=backoff,
                timeout_ms=timeout_ms,
                callback=callback,
                failure_callback=failure_callback,
                dedup_key=dedup_key,
            )
        )

    def get(self, task_id: str) -> TaskView:
        """Return a task with its state."""
        return self._loop.run(self._tasks.get(task_id))

    def page(
        self,
        queue: str | None = None,
        *,
        state: TaskState | None = None,
        host: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> TaskPage:
        """Return tasks of a queue: those that wait in due order, then the others, newest first."""
        return self._loop.run(self._tasks.page(queue, state=state, host=host, limit=limit, cursor=cursor))

    def all(
        self,
        *,
        queue: str | None = None,
        state: TaskState | None = None,
        host: str | None = None,
        limit: int | None = None,
    ) -> Iterator[TaskView]:
        """Yield the tasks of a queue, page by page, at most `limit`: those that wait, then the others."""
        yield from self._loop.iterate(self._tasks.all(queue=queue, state=state, host=host, limit=limit))

    def reschedule(
        self,
        task_id: str,
        *,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        deliver_at: dt.datetime | str | None = None,
        deliver_at_ms: int | None = None,
    ) -> TaskView:
        """Give a task that waits another time; `ConflictError` if it runs or has ended."""
        return self._loop.run(
            self._tasks.reschedule(
                task_id, delay=delay, delay_ms=delay_ms, deliver_at=deliver_at, deliver_at_ms=deliver_at_ms
            )
        )

    def cancel(self, task_id: str) -> TaskView:
        """Cancel a task that is not being called; `ConflictError` if it is, or has ended."""
        return self._loop.run(self._tasks.cancel(task_id))

    def run(self, task_id: str) -> TaskView:
        """Have a task that waits called now; `ConflictError` if it runs or has ended."""
        return self._loop.run(self._tasks.run(task_id))

    def queues(self) -> list[TaskQueueView]:
        """Return all task queues, by name."""
        return self._loop.run(self._tasks.queues())

    def get_queue(self, queue: str) -> TaskQueueView:
        """Return one task queue."""
        return self._loop.run(self._tasks.get_queue(queue))

    def put_queue(
        self,
        queue: str,
        *,
        rate_limit: float | UnsetType | None = UNSET,
        concurrency: int | UnsetType | None = UNSET,
        host_concurrency: int | None = None,
        paused: bool | None = None,
        secret: str | None = None,
    ) -> TaskQueueWithSecret | TaskQueueView:
        """Create a queue, whose secret no other call shows, or change what is given; None is no limit."""
        return self._loop.run(
            self._tasks.put_queue(
                queue,
                rate_limit=rate_limit,
                concurrency=concurrency,
                host_concurrency=host_concurrency,
                paused=paused,
                secret=secret,
            )
        )

    def rotate_secret(self, queue: str, secret: str | None = None) -> TaskQueueWithSecret:
        """Sign with a new secret and with the old one, until `finish_rotation`."""
        return self._loop.run(self._tasks.rotate_secret(queue, secret))

    def finish_rotation(self, queue: str) -> TaskQueueView:
        """Sign with the newest secret only."""
        return self._loop.run(self._tasks.finish_rotation(queue))


class SyncAcks:
    """Settles attempts by the URL that came with them in the header `timerwheel-ack-url`, or by its token.

    They need no API token. Of a URL, only the token at its end counts: the call goes to this client's
    service. Each raises a `ClientError`: `unknown_ack` for what is no token, `ack_ended` if the attempt is
    over.
    """

    def __init__(self, loop: Portal, acks: Acks) -> None:
        self._loop = loop
        self._acks = acks

    def acknowledge(self, url: str) -> AckAnswer:
        """The message or task is done, durably when this returns; may be repeated."""
        return self._loop.run(self._acks.acknowledge(url))

    def give_back(
        self, url: str, *, delay: str | None = None, delay_ms: int | None = None, reason: str | None = None
    ) -> AckAnswer:
        """The attempt failed: the next one comes after the delay, by default the backoff."""
        return self._loop.run(self._acks.give_back(url, delay=delay, delay_ms=delay_ms, reason=reason))

    def extend(self, url: str, invisible_ms: int) -> AckAnswer:
        """Have that long from now to acknowledge."""
        return self._loop.run(self._acks.extend(url, invisible_ms))


class SyncClient:
    """One connection pool to one service; safe to share between threads."""

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout_ms: int = 30000,
        retry_ms: int = SEND_RETRY_MS,
        clock: Clock | None = None,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Raises `AddressError` for a `url` that does not say http or https, host and port.

        Without `url`, it and the token are those of the variables TIMERWHEEL_URL and TIMERWHEEL_TOKEN, and
        without these the service is that of this machine.

        `timeout_ms` is for each call; a long poll may take its waiting time on top.

        `retry_ms` is how long `send` and `send_many` are repeated after the first failure, with growing
        pauses, and never sooner than the service's `Retry-After`; 0 turns it off. What was certainly not
        stored is always repeated. If no answer came, messages without a `dedup_key` are: they have an
        automatic one, so that the service stores them once. It begins with `auto:`, and receivers see it.

        A standby of a cluster names the leader. Every call then goes to the leader by itself.

        `token` is sent with each call. `ssl_context` sets trusted authorities and the client certificate.
        """
        self._client = Client(
            url, timeout_ms=timeout_ms, retry_ms=retry_ms, clock=clock, token=token, ssl_context=ssl_context
        )
        self._loop = LoopThread(self._client)
        self.url = self._client.url
        self.schedules = SyncSchedules(self._loop, self._client.schedules)
        self.subscriptions = SyncSubscriptions(self._loop, self._client.subscriptions)
        self.tasks = SyncTasks(self._loop, self._client.tasks)

    def __enter__(self) -> Self:
        """Open the client; does not call the service yet."""
        self._loop.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close every connection: running calls fail with `UnreachableError`, leases are not extended."""
        self._loop.close()

    def send(
        self,
        topic: str,
        body: Body = "",
        *,
        json: object = UNSET,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        deliver_at: dt.datetime | str | None = None,
        deliver_at_ms: int | None = None,
        delay_level: int | None = None,
        properties: dict[str, str] | None = None,
        tags: str | None = None,
        keys: str | list[str] | None = None,
        queue: int | None = None,
        dedup_key: str | None = None,
        after_recall: str | None = None,
        on_duplicate: Literal["return", "replace"] | None = None,
        ttl: str | dt.timedelta | None = None,
        ttl_ms: int | None = None,
        max_attempts: int | None = None,
    ) -> Sent:
        """Store one message; it is durable when this returns (as the service's `flush` setting says).

        The body is text, bytes, a msgspec Struct, a dataclass or a pydantic model; the last three are sent as
        JSON. With `json` it is any JSON value, None included; then leave out `body`.

        `delay` is a timedelta or text such as "90s", "1h30m", "PT90S"; `deliver_at` an aware datetime or
        RFC 3339 with a zone. Give at most one of the five; with none, the message is delivered at once.
        `properties` go by RocketMQ's names, `keys` are for searching. `queue` is the queue of the topic, by
        default one that the service chooses. With a `dedup_key` the message is stored once: a repeated send
        gets the first receipt, marked as a duplicate. After a recall the key is free for another message; to
        send the same one again, give the id of the recalled message as `after_recall`. With
        `on_duplicate="replace"` the message is stored in any case, and the one that the key names is recalled
        if it is still scheduled: its id is `replaced` in the receipt.
        Groups get it no later than `ttl` after its delivery, and make `max_attempts`, not their own number.

        A send without a `dedup_key` is repeated for up to the client's `retry_ms` if no answer came or the
        service could not take it; see `Client`.

        Raises `ValueError` for a datetime without a time zone, `TypeError` for a body that is none of these,
        `ConflictError` for a key whose message was recalled, `UnreachableError` and `OutcomeUnknownError` if
        it is not known whether it was stored, and `ClientError` with the service's code for what it refuses.
        """
        return self._loop.run(
            self._client.send(
                topic,
                body,
                json=json,
                delay=delay,
                delay_ms=delay_ms,
                deliver_at=deliver_at,
                deliver_at_ms=deliver_at_ms,
                delay_level=delay_level,
                properties=properties,
                tags=tags,
                keys=keys,
                queue=queue,
                dedup_key=dedup_key,
                after_recall=after_recall,
                on_duplicate=on_duplicate,
                ttl=ttl,
                ttl_ms=ttl_ms,
                max_attempts=max_attempts,
            )
        )

    def send_many(self, drafts: Iterable[Draft]) -> list[Sent]:
        """Store messages as one durable unit: all, or none with every fault in `ClientError.errors`.

        They are repeated as by `send`, unless one of them has a `dedup_key`.
        """
        return self._loop.run(self._client.send_many(drafts))

    def send_arrow(self, messages: Any) -> Any:  # noqa: ANN401 - as in the asynchronous client
        """Store a pyarrow Table, RecordBatch or RecordBatchReader as one durable unit, a message per row.

        Columns are named as the fields of `Draft`: topic, body, delay_ms and so on; null is a field left out.
        Returns a Table with the receipt of each row: id, topic, due_ms, state, duplicate. As with
        `send_many`, all are stored, or none with every fault in `ClientError.errors`.
        """
        return self._loop.run(self._client.send_arrow(messages))

    def begin(
        self,
        topic: str,
        body: Body = "",
        *,
        json: object = UNSET,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        deliver_at: dt.datetime | str | None = None,
        deliver_at_ms: int | None = None,
        delay_level: int | None = None,
        properties: dict[str, str] | None = None,
        tags: str | None = None,
        keys: str | list[str] | None = None,
        queue: int | None = None,
        dedup_key: str | None = None,
        after_recall: str | None = None,
        on_duplicate: Literal["return", "replace"] | None = None,
        ttl: str | dt.timedelta | None = None,
        ttl_ms: int | None = None,
        max_attempts: int | None = None,
    ) -> OpenTransaction:
        """Store a message that is delivered once `commit` says so; its delay counts from then.

        The parameters are those of `send`. If neither `commit` nor `roll_back` follows, it is rolled back in
        the end.
        """
        return self._loop.run(
            self._client.begin(
                topic,
                body,
                json=json,
                delay=delay,
                delay_ms=delay_ms,
                deliver_at=deliver_at,
                deliver_at_ms=deliver_at_ms,
                delay_level=delay_level,
                properties=properties,
                tags=tags,
                keys=keys,
                queue=queue,
                dedup_key=dedup_key,
                after_recall=after_recall,
                on_duplicate=on_duplicate,
                ttl=ttl,
                ttl_ms=ttl_ms,
                max_attempts=max_attempts,
            )
        )

    def commit(self, message_id: str) -> Sent:
        """Commit a transaction. `ConflictError` if it has ended, which `code` tells."""
        return self._loop.run(self._client.commit(message_id))

    def roll_back(self, message_id: str) -> Message:
        """Roll a transaction back: its message is never delivered. `ConflictError` if it has ended."""
        return self._loop.run(self._client.roll_back(message_id))

    def transactions(self, topic: str | None = None) -> Iterator[OpenTransaction]:
        """Yield the open transactions, oldest first, page by page."""
        yield from self._loop.iterate(self._client.transactions(topic))

    def get(self, message_id: str) -> Message:
        """Return the message in its current state."""
        return self._loop.run(self._client.get(message_id))

    def history(self, message_id: str) -> MessageHistory:
        """Return what happened to the message and what each group did with it, as far as the log has it."""
        return self._loop.run(self._client.history(message_id))

    story = history

    def recall(self, message_id: str) -> Message:
        """Recall a waiting message: it will not be delivered. `ConflictError` if it is too late."""
        return self._loop.run(self._client.recall(message_id))

    def reschedule(
        self,
        message_id: str,
        *,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        deliver_at: dt.datetime | str | None = None,
        deliver_at_ms: int | None = None,
        delay_level: int | None = None,
        properties: dict[str, str] | None = None,
    ) -> Sent:
        """Reschedule a waiting message, by one of the times of `send` or a delay property; the id stays.

        `ConflictError` if it was delivered or recalled.
        """
        return self._loop.run(
            self._client.reschedule(
                message_id,
                delay=delay,
                delay_ms=delay_ms,
                deliver_at=deliver_at,
                deliver_at_ms=deliver_at_ms,
                delay_level=delay_level,
                properties=properties,
            )
        )

    def get_key(self, topic: str, key: str) -> Message:
        """Return the message with this deduplication key in its current state."""
        return self._loop.run(self._client.get_key(topic, key))

    def recall_key(self, topic: str, key: str) -> Message:
        """Recall by deduplication key; see `recall`."""
        return self._loop.run(self._client.recall_key(topic, key))

    def reschedule_key(
        self,
        topic: str,
        key: str,
        *,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        deliver_at: dt.datetime | str | None = None,
        deliver_at_ms: int | None = None,
        delay_level: int | None = None,
        properties: dict[str, str] | None = None,
    ) -> Sent:
        """Reschedule by deduplication key; see `reschedule`."""
        return self._loop.run(
            self._client.reschedule_key(
                topic,
                key,
                delay=delay,
                delay_ms=delay_ms,
                deliver_at=deliver_at,
                deliver_at_ms=deliver_at_ms,
                delay_level=delay_level,
                properties=properties,
            )
        )

    def recall_many(self, message_ids: Iterable[str]) -> list[RecallResult]:
        """Recall those of these that still wait; returns a result for each, in order. Not atomic."""
        return self._loop.run(self._client.recall_many(message_ids))

    def recall_where(
        self,
        *,
        topic: str | None = None,
        tags: str | None = None,
        key_prefix: str | None = None,
        due_from_ms: int | None = None,
        due_to_ms: int | None = None,
        dry_run: bool = False,
    ) -> RecallCount:
        """Recall all waiting messages that match all conditions, of which one is required; `dry_run` counts.

        `tags` is a tag or `A || B`; `key_prefix` begins the deduplication key or one of the keys;
        `due_from_ms` ≤ due < `due_to_ms`.
        """
        return self._loop.run(
            self._client.recall_where(
                topic=topic,
                tags=tags,
                key_prefix=key_prefix,
                due_from_ms=due_from_ms,
                due_to_ms=due_to_ms,
                dry_run=dry_run,
            )
        )

    def reschedule_many(
        self,
        message_ids: Iterable[str],
        *,
        shift: str | dt.timedelta | None = None,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        deliver_at: dt.datetime | str | None = None,
        deliver_at_ms: int | None = None,
        delay_level: int | None = None,
    ) -> list[RescheduleResult]:
        """Reschedule those of these that still wait; returns a result for each, in order. Not atomic.

        Give one of the times of `send` for all, or `shift` from each one's own due time: "+2h", "-30m" or a
        timedelta.
        """
        return self._loop.run(
            self._client.reschedule_many(
                message_ids,
                shift=shift,
                delay=delay,
                delay_ms=delay_ms,
                deliver_at=deliver_at,
                deliver_at_ms=deliver_at_ms,
                delay_level=delay_level,
            )
        )

    def reschedule_where(
        self,
        *,
        topic: str | None = None,
        tags: str | None = None,
        key_prefix: str | None = None,
        due_from_ms: int | None = None,
        due_to_ms: int | None = None,
        shift: str | dt.timedelta | None = None,
        dry_run: bool = False,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        deliver_at: dt.datetime | str | None = None,
        deliver_at_ms: int | None = None,
        delay_level: int | None = None,
    ) -> RescheduleCount:
        """Reschedule all waiting messages that match all conditions, as `recall_where` recalls them.

        The new time is as for `reschedule_many`.
        """
        return self._loop.run(
            self._client.reschedule_where(
                topic=topic,
                tags=tags,
                key_prefix=key_prefix,
                due_from_ms=due_from_ms,
                due_to_ms=due_to_ms,
                shift=shift,
                dry_run=dry_run,
                delay=delay,
                delay_ms=delay_ms,
                deliver_at=deliver_at,
                deliver_at_ms=deliver_at_ms,
                delay_level=delay_level,
            )
        )

    def messages(
        self,
        topic: str | None = None,
        *,
        state: str | Iterable[str] | None = None,
        tag: str | None = None,
        key: str | None = None,
        from_ms: int | None = None,
        until_ms: int | None = None,
        due_from_ms: int | None = None,
        due_to_ms: int | None = None,
        newest: bool = False,
        limit: int | None = None,
    ) -> Iterator[Message]:
        """Yield the messages that meet every condition, page by page, at most `limit`.

        `state` is `scheduled`, `delivered` or `recalled`, or several of them. Without it the messages are
        scheduled, or with a `key` in any state. `key` is the deduplication key or one of the keys, and `tag`
        a tag or `A || B`. `from_ms` ≤ time < `until_ms` is about the time at which a scheduled message is
        due, a delivered one was delivered, a recalled one was recalled. All but scheduled messages need a
        topic or a key.
        """
        yield from self._loop.iterate(
            self._client.messages(
                topic,
                state=state,
                tag=tag,
                key=key,
                from_ms=from_ms,
                until_ms=until_ms,
                due_from_ms=due_from_ms,
                due_to_ms=due_to_ms,
                newest=newest,
                limit=limit,
            )
        )

    def pending(
        self, topic: str | None = None, *, due_from_ms: int | None = None, due_to_ms: int | None = None
    ) -> Iterator[Message]:
        """Yield waiting messages with `due_from_ms` ≤ due < `due_to_ms`, in due order, page by page."""
        yield from self._loop.iterate(
            self._client.pending(topic, due_from_ms=due_from_ms, due_to_ms=due_to_ms)
        )

    def receive(
        self, topic: str, queue: int = 0, *, offset: int = BEGINNING, follow: bool = True
    ) -> Iterator[Message]:
        """Yield delivered messages of one queue from `offset`, as they arrive; `END` starts at new messages.

        Waits indefinitely, by long polls, also for a topic that does not exist yet. Without `follow` it stops
        at the end, and an unknown topic is a `NotFoundError`. To continue later, begin at the last message's
        `offset` + 1; an offset beyond the end is a `ClientError`.
        """
        yield from self._loop.iterate(self._client.receive(topic, queue, offset=offset, follow=follow))

    def read_arrow(
        self,
        topic: str,
        queue: int = 0,
        *,
        offset: int = BEGINNING,
        count_max: int = PAGE_MESSAGES,
        wait_ms: int = 0,
    ) -> Any:  # noqa: ANN401 - as in the asynchronous client
        """Return up to `count_max` (1,000) delivered messages of one queue from `offset`, as a pyarrow Table.

        Waits up to `wait_ms` for one. `next_offset` in the metadata of the Table's schema is where to go on,
        beside `min_offset` and `max_offset`: `int(table.schema.metadata[b"next_offset"])`.
        """
        return self._loop.run(
            self._client.read_arrow(topic, queue, offset=offset, count_max=count_max, wait_ms=wait_ms)
        )

    def group(self, topic: str, group: str) -> SyncGroup:
        """Return a consumer group, to receive from and to manage. Calls nothing."""
        return SyncGroup(self._loop, self._client.group(topic, group))

    def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """Return all groups, or those of one topic."""
        return self._loop.run(self._client.groups(topic))

    def dead_letters(self, group: str, topic: str | None = None) -> SyncDeadLetters:
        """Return the dead letters of a topic's group, or of all groups with this name. Calls nothing."""
        return SyncDeadLetters(self._loop, self._client.dead_letters(group, topic))

    def topics(self) -> list[Topic]:
        """Return all topics with their queues and counts."""
        return self._loop.run(self._client.topics())

    def topic(self, name: str) -> Topic:
        """Return one topic."""
        return self._loop.run(self._client.topic(name))

    def set_ordered(self, topic: str, *, ordered: bool) -> Topic:
        """Turn ordered delivery by sharding key on or off for all groups of the topic."""
        return self._loop.run(self._client.set_ordered(topic, ordered=ordered))

    def change_topic(
        self, topic: str, *, ordered: bool | None = None, queues: int | None = None, move_keys: bool = False
    ) -> Topic:
        """Set a topic's options: ordered delivery by sharding key, the number of queues (it only grows).

        `ConflictError` if there are more queues now, or if sharding keys of an ordered topic would move to
        other queues and `move_keys` does not allow it.
        """
        return self._loop.run(
            self._client.change_topic(topic, ordered=ordered, queues=queues, move_keys=move_keys)
        )

    def pause_topic(self, topic: str) -> Topic:
        """Keep the messages of a topic from consumers until `resume_topic`.

        Messages are accepted and fall due as always. The topic need not have any yet.
        """
        return self._loop.run(self._client.pause_topic(topic))

    def resume_topic(self, topic: str) -> Topic:
        """Deliver messages of a paused topic to consumers again; `NotFoundError` if it does not exist."""
        return self._loop.run(self._client.resume_topic(topic))

    def purge_topic(
        self, topic: str, *, scheduled: bool = False, delivered: bool = False, dry_run: bool = False
    ) -> TopicPurged:
        """Take away the messages of a topic that were sent before; all else stays. `dry_run` only counts.

        `scheduled` recalls those that wait, `delivered` hides what was delivered, from groups and readers by
        offset. At least one of them is needed.
        """
        return self._loop.run(
            self._client.purge_topic(topic, scheduled=scheduled, delivered=delivered, dry_run=dry_run)
        )

    def delete_topic(self, topic: str, *, dry_run: bool = False, wait_ms: int | None = None) -> TopicDeletion:
        """Delete a topic with its messages, groups, schedules and subscriptions.

        A dry run only says what that is. When this returns, no message of the topic is delivered any more.
        The `state` is "ending" if timers are still being ended after `wait_ms` (by default 1,000, at most
        5,000); the service goes on with that, and `topic` fails with NotFoundError once it is over.
        """
        return self._loop.run(self._client.delete_topic(topic, dry_run=dry_run, wait_ms=wait_ms))

    def wheel(self) -> WheelInfo:
        """Return an overview of the wheel: counts per level, next due, overdue."""
        return self._loop.run(self._client.wheel())

    def slots(
        self, level: str | None = None, *, from_ms: int | None = None, to_ms: int | None = None
    ) -> list[SlotInfo]:
        """Return the slots in use with their counts; `level` is second, minute, hour or day."""
        return self._loop.run(self._client.slots(level, from_ms=from_ms, to_ms=to_ms))

    def watch(self) -> Iterator[Tick | Wheel]:
        """Yield the service's live events, one each second; raises an error when the service stops."""
        yield from self._loop.iterate(self._client.watch())

    def live_history(self, step: Literal["second", "minute"] = "second") -> FigureHistory:
        """Return the service's figures: the last 15 minutes by second, or the last 24 hours by minute."""
        return self._loop.run(self._client.live_history(step))

    def token(self) -> TokenInfo:
        """Return what this client may do: the scopes and topics of its token."""
        return self._loop.run(self._client.token())

    def cluster(self) -> ClusterInfo:
        """Return the nodes with the same journal, and which one leads."""
        return self._loop.run(self._client.cluster())

    def move_leader(self, shard: int | None = None) -> str:
        """Let another node lead than this one; returns its URL once it does.

        Of a service in shards, let another node lead this shard than the one that does now. Raises
        ConflictError if this one does not lead, or no other could.
        """
        return self._loop.run(self._client.move_leader(shard))

    def levels(self) -> list[LevelInfo]:
        """Return the legacy delay levels with the pending messages of each."""
        return self._loop.run(self._client.levels())
