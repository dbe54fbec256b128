"""Pulls: a consumer reads a queue from an offset on, and waits there for new messages.

1. An answer has at most MESSAGES_MAX messages and about ANSWER_BYTES_MAX, but at least one message.
2. A pull without a match says how far it looked, and the consumer goes on from there.
3. A held pull is answered when a message comes, after its time, when its client leaves, or at the stop.
4. The retry topic of a group is read with access to the topics from which its messages came.
"""

import asyncio
import logging
from functools import lru_cache
from typing import Final

import orjson

from timerwheel.engine import Engine
from timerwheel.model.admission import RETRY_PREFIX
from timerwheel.model.tags import TagFilter
from timerwheel.rocketmq.codes import PULL_COMMIT, PULL_SUBSCRIPTION, PULL_SUSPEND, Result
from timerwheel.rocketmq.members import Members
from timerwheel.rocketmq.name_server import MASTER, NameServer
from timerwheel.rocketmq.offsets import Offsets
from timerwheel.rocketmq.request import INT64_MAX, Answer, Link, RefusalError, Request
from timerwheel.rocketmq.retries import RETRY_TOPIC
from timerwheel.rocketmq.stored_message import Host
from timerwheel.rocketmq.topics import Topics
from timerwheel.rocketmq.translation import stored_form
from timerwheel.runtime.queue_reader import RecordPage
from timerwheel.store.errors import CorruptionError
from timerwheel.store.record import decode

MESSAGES_MAX: Final = 32
ANSWER_BYTES_MAX: Final = 4 << 20
WAIT_MS_MAX: Final = 15_000
HELD_MAX: Final = 20_000
"""Most held pulls of all connections."""
FILTER_CHARACTERS_MAX: Final = 32_767
"""Most characters of a subscription: those of the properties in which a tag must fit."""
SCANNED_MAX: Final = 500
"""Most messages that one pull looks at for those with its tags."""

logger = logging.getLogger(__name__)


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
        self._held: dict[asyncio.Future[None], Link] = {}
        self._is_stopping = False

    async def pull(self, request: Request) -> Answer:
        """Answer with messages from an offset on, or hold the request until there are some."""
        topic, group = request.text("topic"), request.text("consumerGroup")
        self._topics.must_read(request, topic)
        queue = self._topics.queue_of(request, topic)
        offset = request.number("queueOffset", low=-INT64_MAX)
        flags = request.number("sysFlag", 0)
        tags = self._filter(request, group, topic, flags)
        if flags & PULL_COMMIT and (commit := request.number("commitOffset", 0, low=-INT64_MAX)) > 0:
            await self._offsets.advance(topic, group, queue, commit)
        low, high = self._engine.queues.queue_bounds(topic, queue)
        if not low <= offset <= high:
            return _bounds(Result.PULL_OFFSET_MOVED, min(max(offset, low), high), low, high)
        if offset == high and flags & PULL_SUSPEND:
            wait_ms = min(request.number("suspendTimeoutMillis", 0), WAIT_MS_MAX)
            await self._hold(request, topic, queue, offset, wait_ms)
        count = min(max(request.number("maxMsgNums", MESSAGES_MAX), 1), MESSAGES_MAX)
        scanned = count if tags.tags is None else SCANNED_MAX
        page = await self._engine.queues.records(topic, queue, offset, scanned)
        if not page.records:
            return _bounds(Result.PULL_NOT_FOUND, page.first, page.min_offset, page.max_offset)
        return self._answer(request, page, tags, count)

    def _filter(self, request: Request, group: str, topic: str, flags: int) -> TagFilter:
        """Return the tags that the consumer wants: from the pull, or else from its last heartbeat."""
        kind = request.text("expressionType", "TAG") or "TAG"
        text = request.text("subscription", "*")
        if not flags & PULL_SUBSCRIPTION:
            found = [
                one
                for member in self._members.of(group).values()
                if member.link is request.link
                for one in member.data.subscription_data_set
                if one.topic == topic
            ]
            text = found[0].sub_string if found else "*"
            kind = (found[0].expression_type if found else None) or "TAG"
        if kind != "TAG":
            raise RefusalError(
                Result.SYSTEM_ERROR, f"filters of type {kind[:20]!r} are not supported; use tags"
            )
        if len(text) > FILTER_CHARACTERS_MAX:
            detail = f"a subscription of {len(text)} characters; at most {FILTER_CHARACTERS_MAX} are allowed"
            raise RefusalError(Result.SYSTEM_ERROR, detail)
        return tags_of(text)

    # ------------------------------------------------------------------ held pulls

    async def _hold(self, request: Request, topic: str, queue: int, offset: int, wait_ms: int) -> None:
        if not wait_ms or self._is_stopping:
            return
        if len(self._held) >= HELD_MAX:
            raise RefusalError(Result.SYSTEM_BUSY, f"{HELD_MAX} pulls are held; try again later")
        waiting = asyncio.ensure_future(self._engine.queues.wait_for(topic, queue, offset, wait_ms))
        self._held[waiting] = request.link
        request.link.held(1)
        try:
            await asyncio.wait((waiting,))
        finally:
            waiting.cancel()
            request.link.held(-1)
            del self._held[waiting]

    def closed(self, link: Link) -> None:
        """A connection was closed: its held pulls end."""
        for waiting, holder in self._held.items():
            if holder is link:
                waiting.cancel()

    def stop(self) -> None:
        """Answer all held pulls, and hold none any more."""
        self._is_stopping = True
        for waiting in self._held:
            waiting.cancel()

    # ------------------------------------------------------------------ answers

    def _answer(self, request: Request, page: RecordPage, tags: TagFilter, count: int) -> Answer:
        host = self._name_server.address(request)
        parts: list[bytes] = []
        size_bytes, offset = 0, page.first
        roots = page.positions["root"].tolist()
        log_offsets = page.positions["offset"].tolist()
        for data, root, log_offset in zip(page.records, roots, log_offsets, strict=True):
            if isinstance(data, CorruptionError):
                logger.error("a consumer skips a message that cannot be read: %s", data)
                offset += 1
                continue
            if len(parts) == count or (parts and size_bytes + len(data) > ANSWER_BYTES_MAX):
                break
            offset += 1
            part = self._encoded(request, data, root, log_offset, offset - 1, host, tags)
            if part is not None:
                parts.append(part)
                size_bytes += len(part)
        result = Result.SUCCESS if parts else Result.PULL_RETRY_NOW
        return _bounds(result, offset, page.min_offset, page.max_offset, b"".join(parts))

    def _encoded(  # noqa: PLR0913, PLR0917 - what a stored message is made from
        self,
        request: Request,
        data: bytes,
        root: int,
        log_offset: int,
        offset: int,
        host: Host,
        tags: TagFilter,
    ) -> bytes | None:
        """Return the stored form of a message; None if the consumer does not want it or must not see it."""
        record = decode(data)
        if tags.tags is not None or record.topic.startswith(RETRY_PREFIX):
            properties: dict[str, str] = orjson.loads(record.properties) if record.properties else {}
            if not tags.passes(properties.get("TAGS")):
                return None
            is_retry = record.topic.startswith(RETRY_PREFIX)
            if is_retry and not request.caller.may(properties.get(RETRY_TOPIC, "")):
                return None
        message_id = self._engine.core.ids.encode(root, record.header.identity(log_offset).root_crc)
        return stored_form(record, log_offset, offset, message_id, host)


@lru_cache(maxsize=256)
def tags_of(text: str) -> TagFilter:
    """Return the tags of a subscription as RocketMQ reads it: empty parts do not count.

    Nothing and `*` alone are every message. What is nothing but empty parts selects no message.
    """
    if text.strip() in {"", "*"}:
        return TagFilter(None)
    parts = (part.strip() for part in text.split("||"))
    return TagFilter(frozenset(filter(None, parts)))


def _bounds(result: Result, next_offset: int, low: int, high: int, body: bytes = b"") -> Answer:
    fields = {
        "suggestWhichBrokerId": MASTER,
        "nextBeginOffset": str(next_offset),
        "minOffset": str(low),
        "maxOffset": str(high),
    }
    return Answer(result, fields, body)
