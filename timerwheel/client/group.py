"""A consumer group: receive, acknowledge and manage it, or let `messages` or `consume` receive."""

import asyncio
import datetime as dt
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from timerwheel.client.connection import Connection, given, part, raise_problem, said, with_query
from timerwheel.client.drafts import length_ms, time_ms
from timerwheel.client.errors import ClientError, LeaseEndedError, NotFoundError
from timerwheel.client.events import EventParser
from timerwheel.client.lease import Keeper, Lease
from timerwheel.client.worker import Consumer, Handler
from timerwheel.clock import Clock
from timerwheel.groups.config import RECEIVE_MAX, GroupConfig, Start, value_of
from timerwheel.model.messages import GroupInfo, TopicInfo
from timerwheel.wire.groups import Held, Received, Settled, SettledAll

INVISIBLE_MS = 30_000
HOLD_MS_MAX = 3_600_000
RETRY_MS = 1_000
_NOT_FOUND = "group_not_found"
_POLL_MS = 20_000
_STOPPING = "not_ready"
_SILENCE_MS = 45_000  # the service says something every 15 s
_Found = TypeVar("_Found")
logger = logging.getLogger(__name__)


class Terms(NamedTuple):
    """How to receive and hold messages; see `Group.messages`."""

    tags: str | None
    start: Start | None
    create: bool | None
    invisible_ms: int
    hold_ms_max: int


class Group:
    """One group of one topic; created by `Client.group`, which calls nothing."""

    def __init__(self, connection: Connection, keeper: Keeper, topic: str, name: str) -> None:
        self.topic = topic
        self.name = name
        self._connection = connection
        self._keeper = keeper
        self.created = False
        """Whether a call of this object created the group because it was not there."""
        self._path = f"/v1/topics/{part(topic)}/groups/{part(name)}"

    @property
    def path(self) -> str:
        """The group's path below the service's URL."""
        return self._path

    @property
    def clock(self) -> Clock:
        """The clock of the client."""
        return self._connection.clock

    # ------------------------------------------------------------------ one call each

    async def receive(
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
        content = given(max=count_max, wait_ms=wait_ms, invisible_ms=invisible_ms, tags=tags, start=start)
        return (await self._receive(content, wait_ms, create=create)).messages

    async def receive_arrow(
        self,
        count_max: int = RECEIVE_MAX,
        *,
        wait_ms: int = 0,
        invisible_ms: int | None = None,
        tags: str | None = None,
        start: Start | None = None,
        create: bool | None = None,
        ack: Sequence[str] = (),
    ) -> Any:  # noqa: ANN401 - a pyarrow Table
        """Receive as `receive` does, and return a pyarrow Table with a message per row.

        Its column `receipt` is what `ack` takes: `await group.ack(table["receipt"].to_pylist())`. Receipts in
        `ack` are acknowledged in the same round trip; a result for each, as JSON, is then under `results` in
        the metadata of the Table's schema.
        """
        content = given(
            max=count_max,
            wait_ms=wait_ms,
            invisible_ms=invisible_ms,
            tags=tags,
            start=start,
            ack=list(ack) or None,
        )

        async def call(content: dict[str, object]) -> Any:  # noqa: ANN401 - a pyarrow Table
            path = f"{self._path}/receive"
            return await self._connection.call_arrow("POST", path, content=content, wait_ms=wait_ms)

        return await self._creating(call, content, create=create)

    async def ack_and_receive(
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
        content = given(max=count_max, wait_ms=wait_ms, invisible_ms=invisible_ms, ack=receipts)
        return await self._receive(content, wait_ms, create=False)

    async def ack(self, receipts: Sequence[str]) -> list[Settled]:
        """Acknowledge messages durably; returns a result for each, which may be not ok."""
        return await self._post_receipts("ack", {"receipts": receipts})

    async def nack(
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
        if isinstance(delay, dt.timedelta):
            delay_ms = length_ms(delay)
            delay = None
        content = given(receipts=receipts, delay=delay, delay_ms=delay_ms, reason=said(reason))
        if dead_letter:
            content["dead_letter"] = True
        return await self._post_receipts("nack", content)

    async def extend(self, receipts: Sequence[str], invisible_ms: int) -> list[Settled]:
        """Extend the leases of these messages to this long from now."""
        return await self._post_receipts("extend", {"receipts": receipts, "invisible_ms": invisible_ms})

    async def info(self) -> GroupInfo:
        """Return the group's current state: its configuration, lag and counts."""
        return await self._connection.call("GET", self._path, GroupInfo)

    async def etag(self) -> str:
        """Return the tag of the group's configuration, for `if_match`; see `Client.etag`."""
        return await self._connection.etag(self._path)

    async def put(
        self, config: GroupConfig | None = None, *, if_match: str | None = None, if_new: bool = False
    ) -> GroupInfo:
        """Create or configure the group; `start` applies only when it is created.

        With `if_new` it is created only: `ConflictError` with the code `precondition_failed` if it exists.
        """
        content = value_of(config or GroupConfig())
        return await self._connection.call(
            "PUT", self._path, GroupInfo, content=content, if_match=if_match, if_new=if_new
        )

    async def delete(self, *, if_match: str | None = None) -> GroupInfo:
        """Delete the group, with its position and leases; its dead letters stay. Returns its last state."""
        return await self._connection.call("DELETE", self._path, GroupInfo, if_match=if_match)

    async def rewind(
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
        if isinstance(time, dt.datetime):
            time_ms = _time_ms(time)
            time = None
        content = given(to=to, time=time, time_ms=time_ms)
        if offsets is not None:
            content["offsets"] = {str(queue): offset for queue, offset in offsets.items()}
        return await self._connection.call("POST", f"{self._path}/rewind", GroupInfo, content=content)

    # ------------------------------------------------------------------ consuming

    async def messages(
        self,
        *,
        batch: int = 1,
        follow: bool = True,
        tags: str | None = None,
        start: Start | None = None,
        create: bool | None = None,
        invisible_ms: int = INVISIBLE_MS,
        hold_ms_max: int = HOLD_MS_MAX,
    ) -> AsyncIterator[Lease]:
        """Yield messages as they arrive, to be finished with `ack` or `nack`; extended until then.

        They are fetched `batch` at a time, by endless long polls, or without `follow` until there are none.
        Raises `UnreachableError` in an outage; `consume` continues instead.

        `tags` and `start` apply to a new group, `create` is as in `receive`. A message is held for
        `invisible_ms` and extended until it is finished or was held for `hold_ms_max`.
        """
        terms = Terms(tags, start, create, invisible_ms, hold_ms_max)
        while True:
            leases = await self._take(batch, _POLL_MS if follow else 0, terms)
            terms = terms._replace(create=False)  # a group that vanishes later was deleted on purpose
            if not leases and not follow:
                return
            while leases:
                yield leases.pop(0)  # keeps no reference; see the keeper

    async def consume(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        stop: asyncio.Event | None = None,
        retry_ms: int = RETRY_MS,
        tags: str | None = None,
        start: Start | None = None,
        create: bool | None = None,
        invisible_ms: int = INVISIBLE_MS,
        hold_ms_max: int = HOLD_MS_MAX,
    ) -> None:
        """Run `handler` on each message, up to `concurrency` at a time, until `stop` is set.

        A message is acknowledged when the handler returns, and returned with the group's backoff when it
        raises. In an outage this retries every `retry_ms`. When stopped, it takes no more messages and waits
        for the handlers; a cancellation cancels them, and their messages are redelivered.

        The other parameters are those of `messages`.
        """
        terms = Terms(tags, start, create, invisible_ms, hold_ms_max)

        async def take(count_max: int, done: Sequence[Lease]) -> list[Lease]:
            nonlocal terms
            leases = await self._take(min(count_max, RECEIVE_MAX), _POLL_MS, terms, done)
            terms = terms._replace(create=False)  # as in `messages`
            return leases

        async def ack(done: Sequence[Lease]) -> None:
            _note(done, await self.ack([lease.message.receipt for lease in done]))

        consumer = Consumer(take, ack, handler, self._connection.clock, concurrency, retry_ms)
        await consumer.run(stop or asyncio.Event())

    async def stream(
        self,
        *,
        max_in_flight: int = 100,
        auto_ack: bool = False,
        tags: str | None = None,
        start: Start | None = None,
        create: bool | None = None,
        invisible_ms: int = INVISIBLE_MS,
        hold_ms_max: int = HOLD_MS_MAX,
    ) -> AsyncIterator[Lease]:
        """Yield as `messages` does, over one streaming connection: at most `max_in_flight` unfinished.

        With `auto_ack` a message is acknowledged as it is sent, which may be before it is received. Ends when
        the service stops; raises `UnreachableError` when the connection breaks, or the error with which the
        service ends the stream.
        """
        terms = Terms(tags, start, create, invisible_ms, hold_ms_max)
        query = {
            "max_in_flight": max_in_flight,
            "invisible_ms": invisible_ms,
            "tags": tags,
            "start": start,
            "ack": "auto" if auto_ack else "manual",
        }
        parser = EventParser()
        async for data in self._events(query, create=create):
            events = parser.feed(data)
            leases = self._hold(
                [msgspec.json.decode(event.data, type=Held) for event in events if event.kind == "message"],
                terms,
                settled=auto_ack,
            )
            while leases:
                yield leases.pop(0)
            for event in events:
                if event.kind == "end":
                    _raise_unless_stopping(event.data)
                    return

    # ------------------------------------------------------------------ within

    async def _agree_to_create(self, error: NotFoundError, *, create: bool | None) -> None:
        """Return if the missing group should be created: as the caller says, else if its topic exists."""
        if error.code != _NOT_FOUND or create is not None:
            raise error
        try:
            await self._connection.call("GET", f"/v1/topics/{part(self.topic)}", TopicInfo)
        except NotFoundError:
            detail = (
                f"topic {self.topic!r} does not exist, so group {self.name!r} was not created; "
                "check the name, or receive with create=True"
            )
            raise NotFoundError(error.status, error.code, detail) from None
        # Before, and not after: the call that creates it also waits for the first message.
        logger.info("creating the missing group %r of topic %r", self.name, self.topic)

    async def _receive(self, content: dict[str, object], wait_ms: int, *, create: bool | None) -> Received:
        async def call(content: dict[str, object]) -> Received:
            path = f"{self._path}/receive"
            return await self._connection.call("POST", path, Received, content=content, wait_ms=wait_ms)

        return await self._creating(call, content, create=create)

    async def _creating(
        self,
        receive: Callable[[dict[str, object]], Awaitable[_Found]],
        content: dict[str, object],
        *,
        create: bool | None,
    ) -> _Found:
        """Receive, and create the group first if it is missing and the caller agrees."""
        try:
            return await receive({**content, "create": True} if create else content)
        except NotFoundError as error:
            await self._agree_to_create(error, create=create)
            found = await receive({**content, "create": True})
            self.created = True
            return found

    async def _post_receipts(self, verb: str, content: dict[str, object]) -> list[Settled]:
        path = f"{self._path}/{verb}"
        return (await self._connection.call("POST", path, SettledAll, content=content)).results

    async def _events(self, query: dict[str, Any], *, create: bool | None) -> AsyncIterator[bytes]:
        """Yield what the service streams; the group is created as in `receive`."""
        path = f"{self._path}/stream"
        try:
            async for data in self._connection.stream(
                with_query(path, {**query, "create": "true"} if create else query), _SILENCE_MS
            ):
                yield data
        except NotFoundError as error:
            await self._agree_to_create(error, create=create)
        else:
            return
        async for data in self._connection.stream(with_query(path, {**query, "create": "true"}), _SILENCE_MS):
            self.created = True
            yield data

    async def _take(
        self, count_max: int, wait_ms: int, terms: Terms, done: Sequence[Lease] = ()
    ) -> list[Lease]:
        """Receive messages to lease, and acknowledge finished ones."""
        content = given(
            max=count_max,
            wait_ms=wait_ms,
            invisible_ms=terms.invisible_ms,
            tags=terms.tags,
            start=terms.start,
            ack=[lease.message.receipt for lease in done] or None,
        )
        received = await self._receive(content, wait_ms, create=terms.create)
        if received.results is not UNSET:
            _note(done, received.results)
        return self._hold(received.messages, terms)

    def _hold(self, deliveries: list[Held], terms: Terms, *, settled: bool = False) -> list[Lease]:
        now_ms = self._connection.clock.monotonic_ms()
        until_ms = now_ms + terms.hold_ms_max
        leases = [Lease(self, delivery, terms.invisible_ms, until_ms) for delivery in deliveries]
        for lease in leases:
            lease.settled = settled
            if not settled:
                self._keeper.hold(lease)
        return leases


def _note(done: Sequence[Lease], results: Sequence[Settled]) -> None:
    """Pass the results of an acknowledgement to the leases; logs those that came too late.

    One that is repeated finds the receipt ended, too, if the first was stored and the service has restarted.
    """
    for lease, result in zip(done, results, strict=True):
        try:
            lease.acknowledged(result)
        except LeaseEndedError as error:
            if lease.ack_unanswered:
                logger.info("acknowledged by an earlier call that was not answered, or too late: %s", error)
            else:
                logger.warning("acknowledged too late, so it may be received again: %s", error)


def _raise_unless_stopping(data: bytes) -> None:
    """Raise the error that ended a stream, unless the service is only stopping."""
    try:
        raise_problem(None, data)
    except ClientError as error:
        if error.code != _STOPPING:
            raise


def _time_ms(time: dt.datetime) -> int:
    return time_ms(time, "time")
