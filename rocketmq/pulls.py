"""Pulls: a consumer reads a queue from an offset on, and waits there for new messages.

1. An answer has at most MESSAGES_MAX messages and about ANSWER_BYTES_MAX, but at least one message.
2. A pull without a match says how far it looked, and the consumer goes on from there.
3. A held pull is answered when a message comes, after its time, when its client leaves, or at the stop.
   A client that does not read its answers is sent no more messages.
4. The retry topic of a group is read with access to the topics from which its messages came.
5. A pull of a topic that is paused finds nothing, and is held for as long as it may be.
"""

import asyncio
import logging
from collections.abc import Awaitable
from functools import lru_cache
from typing import Final, cast

import msgspec
import orjson

from timerwheel.engine import Engine
from timerwheel.groups.config import check_group
from timerwheel.model.properties import TAGS
from timerwheel.model.tags import TagFilter
from timerwheel.rocketmq.codes import PULL_COMMIT, PULL_SUBSCRIPTION, PULL_SUSPEND, Result
from timerwheel.rocketmq.members import Members, Name, Subscription
from timerwheel.rocketmq.name_server import MASTER, NameServer
from timerwheel.rocketmq.offsets import Offsets
from timerwheel.rocketmq.read_ahead import AHEAD_RECORDS, ReadAhead, Reader
from timerwheel.rocketmq.request import INT64_MAX, Answer, Link, RefusalError, Request
from timerwheel.rocketmq.stored_message import Host, packed
from timerwheel.rocketmq.topics import Topics
from timerwheel.rocketmq.translation import plain_forms, stored_form
from timerwheel.runtime.queue_reader import RecordPage
from timerwheel.state.limited_records import is_limited
from timerwheel.store.errors import CorruptionError
from timerwheel.store.record import decode

MESSAGES_MAX: Final = 32
ANSWER_BYTES_MAX: Final = 4 << 20
WAIT_MS_MAX: Final = 15_000
HELD_MAX: Final = 20_000
"""Most held pulls of all connections."""
HELD_OF_CONNECTION_MAX: Final = 5_000
"""Most held pulls of one connection; a consumer holds one for each of its queues."""
FILTER_CHARACTERS_MAX: Final = 32_767
"""Most characters of a subscription: those of the properties in which a tag must fit."""
REMEMBERED_CHARACTERS_MAX: Final = 1_024
"""Longer subscriptions are parsed again for each answer: their tags take 25 times their bytes."""
SCANNED_MAX: Final = 500
"""Most messages that one pull looks at for those with its tags."""

logger = logging.getLogger(__name__)


class Pull(msgspec.Struct, frozen=True):
    """What a consumer asks for: up to `count` messages with its tags from an offset on, within `wait_ms`."""

    request: Request
    group: str
    topic: str
    queue: int
    offset: int
    count: int
    subscription: str
    wait_ms: int

    @property
    def reader(self) -> Reader:
        """Who reads ahead."""
        return self.group, self.topic, self.queue

    @property
    def scanned(self) -> int:
        """How many messages are looked at."""
        return self.count if _is_of_all(self.subscription) else SCANNED_MAX


class ClientCheck(msgspec.Struct, frozen=True, rename="camel"):
    """What a consumer asks before it begins."""

    group: Name
    subscription_data: Subscription


_decode_check = msgspec.json.Decoder(ClientCheck).decode


class Pulls:
    """See the module. Event loop only."""

    def __init__(
        self, engine: Engine, topics: Topics, name_server: NameServer, members: Members, offsets: Offsets
    ) -> None:
        self._engine = engine
        self._topics = topics
        self._name_server = name_server
        self._members = members
        self._offsets = offsets
        self._held: dict[int, set[asyncio.Future[None]]] = {}  # by the identity of the connection
        self._held_count = 0
        self._ahead = ReadAhead()
        self._is_stopping = False

    def pull(self, request: Request) -> Answer | Awaitable[Answer]:
        """Answer with messages from an offset on, or hold the request until there are some."""
        topic, group = request.text("topic"), request.group()
        self._topics.must_read(request, topic)
        queue = self._topics.queue_of(request, topic)
        offset = request.number("queueOffset", low=-INT64_MAX)
        flags = request.number("sysFlag", 0)
        subscription = self._subscription(request, group, topic, flags)
        count = min(max(request.number("maxMsgNums", MESSAGES_MAX), 1), MESSAGES_MAX)
        wait_ms = request.number("suspendTimeoutMillis", 0) if flags & PULL_SUSPEND else 0
        pull = Pull(request, group, topic, queue, offset, count, subscription, min(wait_ms, WAIT_MS_MAX))
        commit = request.number("commitOffset", 0, low=-INT64_MAX) if flags & PULL_COMMIT else 0
        if commit > 0 and not (
            self._topics.sees_all(request, topic) and self._offsets.advance_known(topic, group, queue, commit)
        ):
            return self._committed(pull, commit)
        return self._serve(pull)

    async def _committed(self, pull: Pull, commit: int) -> Answer:
        """Serve a pull whose commit takes time."""
        await self._offsets.advance_for(pull.request, pull.topic, pull.group, pull.queue, commit)
        answer = self._serve(pull)
        return answer if isinstance(answer, Answer) else await answer

    def _serve(self, pull: Pull) -> Answer | Awaitable[Answer]:
        low, high = self._engine.queues.queue_bounds(pull.topic, pull.queue)
        if not low <= pull.offset <= high:
            return _bounds(Result.PULL_OFFSET_MOVED, min(max(pull.offset, low), high), low, high)
        has_none = pull.offset == high or self._is_paused(pull)
        if has_none and pull.wait_ms and not self._is_stopping:
            return self._hold(pull)
        page = self._in_memory(pull)
        return self._read(pull) if page is None else self._answer(pull, page)

    def _in_memory(self, pull: Pull) -> RecordPage | None:
        page = self._ahead.from_offset(pull.reader, pull.offset, pull.scanned)
        if page is not None:
            low, high = self._engine.queues.queue_bounds(pull.topic, pull.queue)
            return page._replace(min_offset=low, max_offset=high)
        return self._engine.queues.records_in_memory(pull.topic, pull.queue, pull.offset, pull.scanned)

    async def _read(self, pull: Pull) -> Answer:
        page = await self._engine.queues.records(
            pull.topic, pull.queue, pull.offset, AHEAD_RECORDS, self._ahead.page_bytes
        )
        if len(page.records) > pull.count:
            self._ahead.keep(pull.reader, page)
        return self._answer(pull, page)

    def check_client(self, request: Request) -> Answer:
        """Whether a consumer that begins can have its filter; clients ask for those that are not tags."""
        try:
            asked = _decode_check(request.frame.body)
        except (ValueError, RecursionError) as error:
            raise RefusalError(Result.SYSTEM_ERROR, f"the subscription is malformed: {error}") from None
        check_group(asked.group)
        wanted = asked.subscription_data
        self._topics.must_read(request, wanted.topic)
        filter_of(wanted.expression_type or "TAG", wanted.sub_string)
        return Answer()

    def _subscription(self, request: Request, group: str, topic: str, flags: int) -> str:
        """Return the tags that the consumer wants: from the pull, or else from its last heartbeat."""
        kind = request.text("expressionType", "TAG") or "TAG"
        text = request.text("subscription", "*")
        if not flags & PULL_SUBSCRIPTION:
            found = self._members.subscription(request.link, group, topic)
            text = "*" if found is None else found.sub_string
            kind = (None if found is None else found.expression_type) or "TAG"
        check_filter(kind, text)
        return text

    # ------------------------------------------------------------------ held pulls

    async def _hold(self, pull: Pull) -> Answer:
        link = pull.request.link
        held = self._held.setdefault(id(link), set())
        if self._held_count >= HELD_MAX or len(held) >= HELD_OF_CONNECTION_MAX:
            detail = f"{self._held_count} pulls are held, {len(held)} of this connection; try again later"
            raise RefusalError(Result.SYSTEM_BUSY, detail)
        pull.request.forget_content(len(pull.subscription))
        self._held_count += 1
        link.held(1)
        try:
            await self._arrival(pull, held)
        finally:
            link.held(-1)
            self._held_count -= 1
            if not held and self._held.get(id(link)) is held:
                del self._held[id(link)]
        page = self._in_memory(pull)
        return await self._read(pull) if page is None else self._answer(pull, page)

    async def _arrival(self, pull: Pull, held: set[asyncio.Future[None]]) -> None:
        """Return when there may be a message for a pull, after its time, or when it ends."""
        clock = self._engine.clock
        end_ms = clock.monotonic_ms() + pull.wait_ms
        is_over = False
        while not is_over:
            arrived = self._engine.queues.arrival(pull.topic, pull.queue)
            held.add(arrived)
            try:
                await clock.wait_for(arrived, max(end_ms - clock.monotonic_ms(), 0))
            finally:
                held.discard(arrived)
                has_arrived = arrived.done() and not arrived.cancelled()
                arrived.cancel()
            is_over = not has_arrived or not self._is_paused(pull) or not self._engine.ready

    def _is_paused(self, pull: Pull) -> bool:
        return self._engine.topics.paused(pull.topic)

    def closed(self, link: Link) -> None:
        """A connection was closed: its held pulls end."""
        for arrived in self._held.pop(id(link), ()):
            arrived.cancel()

    def stop(self) -> None:
        """Answer all held pulls, and hold none any more."""
        self._is_stopping = True
        for held in self._held.values():
            for arrived in held:
                arrived.cancel()

    # ------------------------------------------------------------------ answers

    def _answer(self, pull: Pull, page: RecordPage) -> Answer:
        if self._is_paused(pull):
            return _bounds(Result.PULL_NOT_FOUND, pull.offset, page.min_offset, page.max_offset)
        if not page.records:
            return _bounds(Result.PULL_NOT_FOUND, page.first, page.min_offset, page.max_offset)
        if not pull.request.link.has_room:  # it pulls again once it has read what it was sent
            return _bounds(Result.PULL_RETRY_NOW, page.first, page.min_offset, page.max_offset)
        host = self._name_server.address(pull.request)
        wanted, next_offset = self._wanted(pull, page)
        log_offsets = page.positions["offset"].tolist()
        places = [log_offsets[at] for at in wanted], [page.first + at for at in wanted]
        forms = plain_forms([*wanted.values()], *places, packed(host))
        parts = [form or self._form(page, at, host) for at, form in zip(wanted, forms, strict=True)]
        result = Result.SUCCESS if parts else Result.PULL_RETRY_NOW
        return _bounds(result, next_offset, page.min_offset, page.max_offset, b"".join(parts))

    def _form(self, page: RecordPage, at: int, host: Host) -> bytes:
        """Return any message of a page as its consumer gets it."""
        record, log_offset = decode(cast("bytes", page.records[at])), int(page.positions["offset"][at])
        root, crc = int(page.positions["root"][at]), record.header.identity(log_offset).root_crc
        message_id = self._engine.core.ids.encode(root, crc)
        return stored_form(record, log_offset, page.first + at, message_id, host)

    def _wanted(self, pull: Pull, page: RecordPage) -> tuple[dict[int, bytes], int]:
        """Return the records of the answer by their place in the page, and where the next pull begins."""
        tags = tags_of(pull.subscription)
        looks_inside = tags.tags is not None or not self._topics.sees_all(pull.request, pull.topic)
        wanted: dict[int, bytes] = {}
        size_bytes = 0
        for at, data in enumerate(page.records):
            if isinstance(data, CorruptionError):
                logger.error("a consumer skips a message that cannot be read: %s", data)
                continue
            if len(wanted) == pull.count or (wanted and size_bytes + len(data) > ANSWER_BYTES_MAX):
                return wanted, page.first + at
            if is_limited(data) and self._engine.groups.has_expired(data):
                continue
            if not looks_inside or self._is_for(pull, tags, data):
                wanted[at] = data
                size_bytes += len(data)
        return wanted, page.first + len(page.records)

    def _is_for(self, pull: Pull, tags: TagFilter, data: bytes) -> bool:
        """Whether the consumer wants a message, and may see it."""
        record = decode(data)
        if not self._topics.may_see(pull.request, record):
            return False
        properties: dict[str, str] = orjson.loads(record.properties) if record.properties else {}
        return tags.passes(properties.get(TAGS))


def filter_of(kind: str, text: str) -> TagFilter:
    """Return the tags of a subscription of this type; RefusalError as `check_filter`."""
    check_filter(kind, text)
    return tags_of(text)


def check_filter(kind: str, text: str) -> None:
    """RefusalError for a subscription of another type than TAG, or one that is too long."""
    if kind != "TAG":
        name = "SQL is" if kind == "SQL92" else f"filters of type {kind[:20]!r} are"
        detail = f"{name} not supported; use tags"
        raise RefusalError(Result.SYSTEM_ERROR, detail)
    if len(text) > FILTER_CHARACTERS_MAX:
        detail = f"a subscription of {len(text)} characters; at most {FILTER_CHARACTERS_MAX} are allowed"
        raise RefusalError(Result.SYSTEM_ERROR, detail)


def tags_of(text: str) -> TagFilter:
    """Return the tags of a subscription as RocketMQ reads it: empty parts do not count.

    Nothing and `*` alone are every message. What is nothing but empty parts selects no message.
    """
    return _remembered(text) if len(text) <= REMEMBERED_CHARACTERS_MAX else _read(text)


def _is_of_all(text: str) -> bool:
    return text.strip() in {"", "*"}


def _read(text: str) -> TagFilter:
    if _is_of_all(text):
        return TagFilter(None)
    parts = (part.strip() for part in text.split("||"))
    return TagFilter(frozenset(filter(None, parts)))


_remembered = lru_cache(maxsize=256)(_read)


def _bounds(result: Result, next_offset: int, low: int, high: int, body: bytes = b"") -> Answer:
    fields = {
        "suggestWhichBrokerId": MASTER,
        "nextBeginOffset": str(next_offset),
        "minOffset": str(low),
        "maxOffset": str(high),
    }
    return Answer(result, fields, body)
