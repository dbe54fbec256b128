"""A small async client of the HTTP API.

    async with Client("http://127.0.0.1:8686") as client:
        await client.send("orders", "close order 17", delay="30m")
        async for lease in client.group("orders", "closers").messages():
            print(lease.text)
            await lease.ack()

`Client.receive` reads a queue by offset; a consumer group (`Client.group`) remembers what was acknowledged
and redelivers the rest. `schedules`, `subscriptions`, `tasks`, `acks` and `dead_letters` have objects of
their own.

Every failed call raises a `ClientError` with the service's stable `code`: `NotFoundError` for an unknown
message, topic, group and so on, `ConflictError` for a message that was already delivered or recalled,
`DeniedError` for a missing or insufficient token, `UnreachableError` when no answer came,
`OutcomeUnknownError` when the service failed during the call. After the last two a send may or may not have
been stored; one with a `dedup_key` can be repeated.
"""

import datetime as dt
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
from msgspec import UNSET

from timerwheel.client.acks import Acks
from timerwheel.client.bodies import Body
from timerwheel.client.connection import (
    Connection,
    Stream,
    arguments,
    given,
    part,
    raise_problem,
    with_query,
    without_user,
)
from timerwheel.client.dead_letters import DeadLetters
from timerwheel.client.drafts import (
    Draft,
    SendOptions,
    When,
    draft_content,
    range_content,
    shift_content,
    when_content,
)
from timerwheel.client.environment import DEFAULT_URL, token_of_environment, url_of_environment
from timerwheel.client.errors import (
    AddressError,
    ClientError,
    ConflictError,
    DeniedError,
    LeaseEndedError,
    NotFoundError,
    OutcomeUnknownError,
    UnreachableError,
)
from timerwheel.client.events import EventParser
from timerwheel.client.group import Group
from timerwheel.client.lease import Keeper, Lease
from timerwheel.client.retries import SEND_RETRY_MS
from timerwheel.client.schedules import Schedules
from timerwheel.client.subscriptions import Subscriptions
from timerwheel.client.tasks import Tasks
from timerwheel.client.tracing import processing
from timerwheel.clock import Clock, SystemClock
from timerwheel.groups.config import Exponential, GroupConfig, Ladder
from timerwheel.history.history import MessageHistory
from timerwheel.model.live_events import LevelSlots, Tick, Wheel
from timerwheel.model.messages import (
    GroupInfo,
    LevelInfo,
    OpenTransaction,
    Receipt,
    SlotInfo,
    TopicDeletion,
    TopicPurged,
    WheelInfo,
)
from timerwheel.model.messages import TopicInfo as Topic
from timerwheel.wire.arrow import stream_of
from timerwheel.wire.cluster import ClusterInfo, Moved
from timerwheel.wire.groups import Held as Delivery
from timerwheel.wire.groups import Letter as DeadLetter
from timerwheel.wire.groups import Settled as ReceiptResult
from timerwheel.wire.messages import Message, Pending
from timerwheel.wire.problem import ItemFault
from timerwheel.wire.recalls import RecalledIds, RescheduledIds
from timerwheel.wire.recalls import RecalledWhere as RecallCount
from timerwheel.wire.recalls import RecallOutcome as RecallResult
from timerwheel.wire.recalls import RescheduledWhere as RescheduleCount
from timerwheel.wire.recalls import RescheduleOutcome as RescheduleResult
from timerwheel.wire.service import FigureHistory, Levels, Peak, Slots
from timerwheel.wire.tokens import TokenInfo
from timerwheel.wire.topics import Delivered, Topics
from timerwheel.wire.transactions import OpenTransactions

__all__ = [
    "BEGINNING",
    "DEFAULT_URL",
    "END",
    "AddressError",
    "Client",
    "ClientError",
    "ConflictError",
    "DeadLetter",
    "Delivery",
    "DeniedError",
    "Draft",
    "Exponential",
    "FigureHistory",
    "Group",
    "GroupConfig",
    "ItemFault",
    "Ladder",
    "Lease",
    "LeaseEndedError",
    "LevelSlots",
    "Message",
    "MessageHistory",
    "NotFoundError",
    "OpenTransaction",
    "OutcomeUnknownError",
    "RecallCount",
    "RecallResult",
    "ReceiptResult",
    "RescheduleCount",
    "RescheduleResult",
    "SendOptions",
    "Sent",
    "Tick",
    "TokenInfo",
    "Topic",
    "TopicDeletion",
    "TopicPurged",
    "UnreachableError",
    "Wheel",
    "When",
    "processing",
]

BEGINNING = 0
END = -1
PAGE_MESSAGES = 1_000
_READ_MESSAGES = 500
_POLL_MS = 20_000
_MOVE_MS = 20_000
_LIVE_SILENCE_MS = 15_000
_LIVE_EVENTS: Mapping[str, type[Tick | Wheel]] = {"tick": Tick, "wheel": Wheel}

Sent = Receipt


class _Groups(msgspec.Struct):
    """Groups whose configuration is not checked: a newer service may have more fields."""

    groups: list[GroupInfo]


class Client:
    """One connection pool to one service; safe to share between the tasks of an event loop."""

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout_ms: int = 30_000,
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
        clock = clock or SystemClock()
        if url is None:
            url, token = url_of_environment(), token or token_of_environment()
        self._connection = Connection(url, timeout_ms, clock, token, ssl_context, retry_ms=retry_ms)
        self._keeper = Keeper(clock)
        self.url = self._connection.url
        self.schedules = Schedules(self._connection)
        self.subscriptions = Subscriptions(self._connection)
        self.tasks = Tasks(self._connection)
        self.acks = Acks(self._connection)

    async def __aenter__(self) -> Self:
        """Open the connection pool; does not call the service yet."""
        self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the pool."""
        await self.close()

    def open(self) -> None:
        """Open the connection pool in the running event loop, as `async with` does."""
        self._connection.open()

    async def close(self) -> None:
        """Close every connection: running calls fail with `UnreachableError`, leases are not extended."""
        await self._keeper.close()
        await self._connection.close()

    def forget(self) -> None:
        """Drop connections and leases without a call: in a forked child they are still the parent's."""
        self._keeper.forget()
        self._connection.forget()

    # ------------------------------------------------------------------ sending

    async def send(
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
        The message expires for groups `ttl` after delivery; they make `max_attempts`, not their own number.

        A send without a `dedup_key` is repeated for up to the client's `retry_ms` if no answer came or the
        service could not take it; see `Client`.

        Raises `ValueError` for a datetime without a time zone, `TypeError` for a body that is none of these,
        `ConflictError` for a key whose message was recalled, `UnreachableError` and `OutcomeUnknownError` if
        it is not known whether it was stored, and `ClientError` with the service's code for what it refuses.
        """
        draft = arguments(locals(), "json")
        return await self._connection.send([draft_content(draft)], Receipt, one=True)

    async def send_many(self, drafts: Iterable[Draft]) -> list[Sent]:
        """Store messages as one durable unit: all, or none with every fault in `ClientError.errors`.

        They are repeated as by `send`, unless one of them has a `dedup_key`.
        """
        content = [draft_content(draft) for draft in drafts]
        return await self._connection.send(content, list[Receipt])

    async def send_arrow(self, messages: Any) -> Any:  # noqa: ANN401 - pyarrow is an extra
        """Store a pyarrow Table, RecordBatch or RecordBatchReader as one durable unit, a message per row.

        Columns are named as the fields of `Draft`: topic, body, delay_ms and so on; null is a field left out.
        Returns a Table with the receipt of each row: id, topic, due_ms, state, duplicate. As with
        `send_many`, all are stored, or none with every fault in `ClientError.errors`.
        """
        content = Stream(stream_of(messages))
        return await self._connection.call_arrow("POST", "/v1/messages", content=content)

    # ------------------------------------------------------------------ transactions

    async def begin(
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
        content = draft_content(arguments(locals(), "json"))
        return await self._connection.call("POST", "/v1/transactions", OpenTransaction, content=content)

    async def commit(self, message_id: str) -> Sent:
        """Commit a transaction. `ConflictError` if it has ended, which `code` tells."""
        return await self._connection.call("POST", f"{_transaction_path(message_id)}/commit", Receipt)

    async def roll_back(self, message_id: str) -> Message:
        """Roll a transaction back: its message is never delivered. `ConflictError` if it has ended."""
        return await self._connection.call("POST", f"{_transaction_path(message_id)}/rollback", Message)

    async def transactions(self, topic: str | None = None) -> AsyncIterator[OpenTransaction]:
        """Yield the open transactions, oldest first, page by page."""
        cursor: str | None = None
        while True:
            path = with_query("/v1/transactions", {"topic": topic, "limit": PAGE_MESSAGES, "cursor": cursor})
            page = await self._connection.call("GET", path, OpenTransactions)
            for one in page.transactions:
                yield one
            cursor = page.cursor
            if cursor is None:
                return

    # ------------------------------------------------------------------ one message, by id or by its key

    async def get(self, message_id: str) -> Message:
        """Return the message in its current state."""
        return await self._connection.call("GET", _message_path(message_id), Message)

    async def etag(self, message_id: str) -> str:
        """Return the tag of the message's state, for `if_match` of a later change.

        Ask for the tag first, and then read what the change depends on: a change in between is noticed.
        """
        return await self._connection.etag(_message_path(message_id))

    async def history(self, message_id: str) -> MessageHistory:
        """Return what happened to the message and what each group did with it, as far as the log has it."""
        return await self._connection.call("GET", f"{_message_path(message_id)}/history", MessageHistory)

    story = history  # its older name

    async def recall(self, message_id: str, *, if_match: str | None = None, damaged: bool = False) -> Message:
        """Recall a scheduled message: it will not be delivered. `ConflictError` if it is too late.

        With `if_match`, a tag that `etag` returned, a message that was changed since is left as it is:
        `ConflictError` with the code `precondition_failed`. So it is with every `if_match`.
        With `damaged`, one whose record cannot be read is recalled too, unread.
        """
        path = with_query(_message_path(message_id), {"damaged": "true"} if damaged else {})
        return await self._connection.call("DELETE", path, Message, if_match=if_match)

    async def reschedule(
        self,
        message_id: str,
        *,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        deliver_at: dt.datetime | str | None = None,
        deliver_at_ms: int | None = None,
        delay_level: int | None = None,
        properties: dict[str, str] | None = None,
        if_match: str | None = None,
    ) -> Sent:
        """Reschedule a scheduled message, by one of the times of `send` or a delay property; the id stays.

        `ConflictError` if it was delivered or recalled. `if_match` is as in `recall`.
        """
        content = when_content(arguments(locals())) | given(properties=properties)
        path = _message_path(message_id)
        return await self._connection.call("PATCH", path, Receipt, content=content, if_match=if_match)

    async def get_key(self, topic: str, key: str) -> Message:
        """Return the message with this deduplication key in its current state."""
        return await self._connection.call("GET", _key_path(topic, key), Message)

    async def key_etag(self, topic: str, key: str) -> str:
        """Return the tag of the message with this deduplication key; see `etag`."""
        return await self._connection.etag(_key_path(topic, key))

    async def recall_key(self, topic: str, key: str, *, if_match: str | None = None) -> Message:
        """Recall by deduplication key; see `recall`."""
        return await self._connection.call("DELETE", _key_path(topic, key), Message, if_match=if_match)

    async def reschedule_key(
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
        if_match: str | None = None,
    ) -> Sent:
        """Reschedule by deduplication key; see `reschedule`."""
        content = when_content(arguments(locals())) | given(properties=properties)
        path = _key_path(topic, key)
        return await self._connection.call("PATCH", path, Receipt, content=content, if_match=if_match)

    # ------------------------------------------------------------------ many messages

    async def recall_many(self, message_ids: Iterable[str]) -> list[RecallResult]:
        """Recall those that are still scheduled; returns a result for each, in order. Not atomic."""
        content = {"ids": list(message_ids)}
        return (
            await self._connection.call("POST", "/v1/messages/recall", RecalledIds, content=content)
        ).results

    async def recall_where(
        self,
        *,
        topic: str | None = None,
        tags: str | None = None,
        key_prefix: str | None = None,
        due_from: dt.datetime | None = None,
        due_from_ms: int | None = None,
        due_to: dt.datetime | None = None,
        due_to_ms: int | None = None,
        reserved: bool = False,
        dry_run: bool = False,
    ) -> RecallCount:
        """Recall all scheduled messages that match all conditions; one is required. `dry_run` only counts.

        `tags` is a tag or `A || B`; `key_prefix` begins the deduplication key or one of the keys;
        `due_from` ≤ due < `due_to`, both aware datetimes; `due_from_ms` and `due_to_ms` are the same in epoch
        milliseconds. Without a topic, the messages of the service's own topics are left alone, tasks and
        retries among them, unless `reserved`, as in `messages`.
        """
        content = given(topic=topic, tags=tags, key_prefix=key_prefix, dry_run=dry_run)
        content |= given(reserved=reserved or None)
        content |= range_content(arguments(locals()), "due_from", "due_to")
        return await self._connection.call("POST", "/v1/messages/recall", RecallCount, content=content)

    async def reschedule_many(
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
        """Reschedule those that are still scheduled; returns a result for each, in order. Not atomic.

        Give one of the times of `send` for all, or `shift` from each one's own due time: "+2h", "-30m" or a
        timedelta.
        """
        when = when_content(arguments(locals()))
        content = {"ids": list(message_ids), **shift_content(shift), **when}
        path = "/v1/messages/reschedule"
        return (await self._connection.call("POST", path, RescheduledIds, content=content)).results

    async def reschedule_where(
        self,
        *,
        topic: str | None = None,
        tags: str | None = None,
        key_prefix: str | None = None,
        due_from: dt.datetime | None = None,
        due_from_ms: int | None = None,
        due_to: dt.datetime | None = None,
        due_to_ms: int | None = None,
        reserved: bool = False,
        shift: str | dt.timedelta | None = None,
        dry_run: bool = False,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        deliver_at: dt.datetime | str | None = None,
        deliver_at_ms: int | None = None,
        delay_level: int | None = None,
    ) -> RescheduleCount:
        """Reschedule all scheduled messages that match all conditions, as `recall_where` recalls them.

        The new time is as for `reschedule_many`.
        """
        when = when_content(arguments(locals()))
        content = given(topic=topic, tags=tags, key_prefix=key_prefix, reserved=reserved or None)
        content |= range_content(arguments(locals()), "due_from", "due_to")
        content |= {"dry_run": dry_run, **shift_content(shift), **when}
        path = "/v1/messages/reschedule"
        return await self._connection.call("POST", path, RescheduleCount, content=content)

    async def messages(
        self,
        topic: str | None = None,
        *,
        state: str | Iterable[str] | None = None,
        tag: str | None = None,
        key: str | None = None,
        start: dt.datetime | None = None,
        from_ms: int | None = None,
        end: dt.datetime | None = None,
        until_ms: int | None = None,
        due_from: dt.datetime | None = None,
        due_from_ms: int | None = None,
        due_to: dt.datetime | None = None,
        due_to_ms: int | None = None,
        newest: bool = False,
        reserved: bool = False,
        limit: int | None = None,
    ) -> AsyncIterator[Message]:
        """Yield the messages that meet every condition, page by page, at most `limit`.

        `state` is `scheduled`, `delivered` or `recalled`, or several of them. Without it the messages are
        scheduled, or with a `key` in any state. `key` is the deduplication key or one of the keys, and `tag`
        a tag or `A || B`. `start` ≤ time < `end`, aware datetimes, is about the time at which a scheduled
        message is due, a delivered one was delivered, a recalled one was recalled; `from_ms` and `until_ms`
        are the same in epoch milliseconds. `due_from` ≤ due < `due_to` is about the due time in every state.
        All but scheduled messages need a topic or a key. With `reserved`, those of the service's own topics,
        such as `%RETRY%group`, are listed too; else only by `topic` or `key`.
        """
        times = arguments(locals())
        states = state if state is None or isinstance(state, str) else ",".join(state)
        query = given(
            topic=topic,
            state=states,
            tag=tag,
            key=key,
            order="newest" if newest else None,
            reserved="true" if reserved else None,
        )
        query |= range_content(times, "due_from", "due_to")
        query |= range_content(times, "start", "end", ("from_ms", "until_ms"))
        cursor: str | None = None
        while limit is None or limit > 0:
            size = PAGE_MESSAGES if limit is None else min(limit, PAGE_MESSAGES)
            path = with_query("/v1/messages", {**query, "limit": size, "cursor": cursor})
            page = await self._connection.call("GET", path, Pending)
            for message in page.messages:
                yield message
            cursor = page.cursor
            if cursor is None:
                return
            limit = None if limit is None else limit - len(page.messages)

    async def pending(
        self,
        topic: str | None = None,
        *,
        due_from: dt.datetime | None = None,
        due_from_ms: int | None = None,
        due_to: dt.datetime | None = None,
        due_to_ms: int | None = None,
    ) -> AsyncIterator[Message]:
        """Yield scheduled messages with `due_from` ≤ due < `due_to`, in due order, page by page.

        Both are aware datetimes; `due_from_ms` and `due_to_ms` are the same in epoch milliseconds.
        """
        times = range_content(arguments(locals()), "due_from", "due_to")
        async for message in self.messages(topic, **times):
            yield message

    async def receive(
        self, topic: str, queue: int = 0, *, offset: int = BEGINNING, follow: bool = True
    ) -> AsyncIterator[Message]:
        """Yield delivered messages of one queue from `offset`, as they arrive; `END` starts at new messages.

        Waits indefinitely, by long polls, also for a topic that does not exist yet. Without `follow` it stops
        at the end, and an unknown topic is a `NotFoundError`. To continue later, begin at the last message's
        `offset` + 1; an offset beyond the end is a `ClientError`.
        """
        path = f"{_topic_path(topic)}/queues/{queue}/messages"
        wait_ms = _POLL_MS if follow else 0
        while True:
            wanted = with_query(path, {"offset": offset, "max": _READ_MESSAGES, "wait_ms": wait_ms})
            try:
                page = await self._connection.call("GET", wanted, Delivered, wait_ms=wait_ms)
            except NotFoundError as error:
                if not follow or error.code != "unknown_topic":
                    raise
                offset = max(offset, BEGINNING)  # this was the end: new messages come after it
                continue  # the service has waited
            for message in page.messages:
                yield message
            offset = page.next_offset
            if not page.messages and not follow:
                return

    async def read_arrow(
        self,
        topic: str,
        queue: int = 0,
        *,
        offset: int = BEGINNING,
        count_max: int = PAGE_MESSAGES,
        wait_ms: int = 0,
    ) -> Any:  # noqa: ANN401 - a pyarrow Table
        """Return up to `count_max` (1,000) delivered messages of one queue from `offset`, as a pyarrow Table.

        Waits up to `wait_ms` for one. `next_offset` in the metadata of the Table's schema is where to go on,
        beside `min_offset` and `max_offset`: `int(table.schema.metadata[b"next_offset"])`.
        """
        query = {"offset": offset, "max": count_max, "wait_ms": wait_ms}
        path = with_query(f"{_topic_path(topic)}/queues/{queue}/messages", query)
        return await self._connection.call_arrow("GET", path, wait_ms=wait_ms)

    # ------------------------------------------------------------------ groups

    def group(self, topic: str, group: str) -> Group:
        """Return a consumer group, to receive from and to manage. Calls nothing."""
        return Group(self._connection, self._keeper, topic, group)

    async def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """Return all groups, or those of one topic."""
        path = "/v1/groups" if topic is None else f"{_topic_path(topic)}/groups"
        return (await self._connection.call("GET", path, _Groups)).groups

    def dead_letters(self, group: str, topic: str | None = None) -> DeadLetters:
        """Return the dead letters of a topic's group, or of all groups with this name. Calls nothing."""
        return DeadLetters(self._connection, group, topic)

    # ------------------------------------------------------------------ topics and the wheel

    async def topics(self, *, reserved: bool = True) -> list[Topic]:
        """Return all topics with their queues and counts.

        With `reserved=False`, without those that belong to the service, such as `%DLQ%group`.
        """
        path = with_query("/v1/topics", {} if reserved else {"reserved": "false"})
        return (await self._connection.call("GET", path, Topics)).topics

    async def topic(self, name: str) -> Topic:
        """Return one topic."""
        return await self._connection.call("GET", _topic_path(name), Topic)

    async def topic_etag(self, name: str) -> str:
        """Return the tag of a topic's options, for `if_match`; see `etag`."""
        return await self._connection.etag(_topic_path(name))

    async def set_ordered(self, topic: str, *, ordered: bool) -> Topic:
        """Turn ordered delivery by sharding key on or off for all groups of the topic."""
        return await self.change_topic(topic, ordered=ordered)

    async def change_topic(
        self,
        topic: str,
        *,
        ordered: bool | None = None,
        queues: int | None = None,
        move_keys: bool = False,
        to_kafka: bool | None = None,
        if_match: str | None = None,
    ) -> Topic:
        """Set a topic's options: ordered delivery by sharding key, the number of queues (it only grows).

        `to_kafka` sends what is delivered from now on to Kafka, or keeps it from there. `ConflictError` if
        there are more queues now, if sharding keys of an ordered topic would move to other queues and
        `move_keys` does not allow it, or if the settings of the service send the topic to Kafka.
        """
        content = given(move_keys=move_keys or None, ordered=ordered, queues=queues, to_kafka=to_kafka)
        path = _topic_path(topic)
        return await self._connection.call("PATCH", path, Topic, content=content, if_match=if_match)

    async def pause_topic(self, topic: str) -> Topic:
        """Keep the messages of a topic from consumers until `resume_topic`.

        Messages are accepted and fall due as always. The topic need not have any yet.
        """
        return await self._connection.call("POST", f"{_topic_path(topic)}/pause", Topic)

    async def resume_topic(self, topic: str) -> Topic:
        """Deliver messages of a paused topic to consumers again; `NotFoundError` if it does not exist."""
        return await self._connection.call("POST", f"{_topic_path(topic)}/resume", Topic)

    async def purge_topic(
        self, topic: str, *, scheduled: bool = False, delivered: bool = False, dry_run: bool = False
    ) -> TopicPurged:
        """Take away the messages of a topic that were sent before; all else stays. `dry_run` only counts.

        `scheduled` recalls scheduled ones, `delivered` hides what was delivered, from groups and readers by
        offset. At least one of them is needed.
        """
        content = {"scheduled": scheduled, "delivered": delivered, "dry_run": dry_run}
        path = f"{_topic_path(topic)}/purge"
        return await self._connection.call("POST", path, TopicPurged, content=content)

    async def delete_topic(
        self,
        topic: str,
        *,
        dry_run: bool = False,
        wait_ms: int | None = None,
        if_match: str | None = None,
    ) -> TopicDeletion:
        """Delete a topic with its messages, groups, schedules and subscriptions.

        A dry run only says what that is. When this returns, no message of the topic is delivered any more.
        The `state` is "ending" if timers are still being ended after `wait_ms` (by default 1,000, at most
        5,000); the service goes on with that, and `topic` fails with NotFoundError once it is over.
        """
        query = {"dry_run": "true" if dry_run else None, "wait_ms": wait_ms}
        path = with_query(_topic_path(topic), query)
        return await self._connection.call(
            "DELETE", path, TopicDeletion, wait_ms=wait_ms or 0, if_match=if_match
        )

    async def wheel(self) -> WheelInfo:
        """Return an overview of the wheel: counts per level, next due, overdue."""
        return await self._connection.call("GET", "/v1/wheel", WheelInfo)

    async def peak(self) -> SlotInfo | None:
        """Return the next second in which most messages fall due; None if none is scheduled."""
        return (await self._connection.call("GET", "/v1/wheel/peak", Peak)).peak

    async def slots(
        self,
        level: str | None = None,
        *,
        start: dt.datetime | None = None,
        from_ms: int | None = None,
        end: dt.datetime | None = None,
        to_ms: int | None = None,
    ) -> list[SlotInfo]:
        """Return the slots in use with their counts; `level` is second, minute, hour or day.

        They are those that begin at `start` or later and before `end`, aware datetimes; `from_ms` and `to_ms`
        are the same in epoch milliseconds.
        """
        query = given(level=level) | range_content(arguments(locals()), "start", "end", ("from_ms", "to_ms"))
        return (await self._connection.call("GET", with_query("/v1/wheel/slots", query), Slots)).slots

    async def watch(self) -> AsyncIterator[Tick | Wheel]:
        """Yield the service's live events, one each second; raises an error when the service stops."""
        parser = EventParser()
        async for data in self._connection.stream("/v1/live", _LIVE_SILENCE_MS):
            for event in parser.feed(data):
                if event.kind == "end":
                    raise_problem(None, event.data)
                if event.kind in _LIVE_EVENTS:
                    yield msgspec.json.decode(event.data, type=_LIVE_EVENTS[event.kind])
        raise UnreachableError(None, "unreachable", f"{without_user(self.url)} closed the connection")

    async def live_history(self, step: Literal["second", "minute"] = "second") -> FigureHistory:
        """Return the service's figures: the last 15 minutes by second, or the last 24 hours by minute."""
        return await self._connection.call(
            "GET", with_query("/v1/live/history", {"step": step}), FigureHistory
        )

    async def token(self) -> TokenInfo:
        """Return what this client may do: the scopes and topics of its token."""
        return await self._connection.call("GET", "/v1/token", TokenInfo)

    async def cluster(self) -> ClusterInfo:
        """Return the nodes with the same journal, and which one leads."""
        return await self._connection.call("GET", "/v1/cluster", ClusterInfo)

    async def move_leader(self, shard: int | None = None) -> str:
        """Let another node lead than this one; returns its URL once it does.

        Of a service in shards, let another node lead this shard than the one that does now. Raises
        ConflictError if this one does not lead, or no other could.
        """
        path = "/v1/cluster/move" if shard is None else f"/v1/cluster/move?shard={shard}"
        return (await self._connection.call("POST", path, Moved, wait_ms=_MOVE_MS)).leader

    async def levels(self) -> list[LevelInfo]:
        """Return the legacy delay levels with the pending messages of each."""
        return (await self._connection.call("GET", "/v1/levels", Levels)).levels


def _message_path(message_id: str) -> str:
    return f"/v1/messages/{part(message_id)}"


def _transaction_path(message_id: str) -> str:
    return f"/v1/transactions/{part(message_id)}"


def _topic_path(topic: str) -> str:
    return f"/v1/topics/{part(topic)}"


def _key_path(topic: str, key: str) -> str:
    return f"{_topic_path(topic)}/keys/{part(key)}"
