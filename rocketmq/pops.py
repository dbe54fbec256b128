"""Pops: a consumer leases messages of all queues of a topic, and acknowledges each.

    pop                  Groups.receive; the first one makes the group
    acknowledge          Groups.ack
    change of the time   of a push consumer, which has failed: Groups.nack; of any other client: Groups.extend
    notification         Groups.wait_for_messages

The groups are those of kind `leases`, which consumers over HTTP and gRPC use too; their retries stay in the
group, and need no topic of their own.

1. A popped message has a checkpoint with the receipt of its lease, by which it is acknowledged. A client
   that makes checkpoints of its own, as RocketMQ's gRPC proxy does, names queue, offset and number of the
   pop. The leases of a pop are numbered in a row, and the number of the pop says which they are: 26 bits of
   run + number of the first, 5 bits of their count less one. So it names a lease of this pop, or none.
2. A pop that finds nothing waits for at most WAIT_MS_MAX; it ends when its client leaves, and at the stop.
3. Nothing is leased for a client that has left, or does not read what it was sent.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from timerwheel.engine import Engine
from timerwheel.groups.config import (
    INVISIBLE_MS_MAX,
    RECEIVE_MAX,
    Exponential,
    GroupTerms,
    Start,
    check_group,
)
from timerwheel.groups.leases import Lease
from timerwheel.groups.receipts import place_in
from timerwheel.model.admission import RETRY_PREFIX
from timerwheel.model.messages import Delivery, ReceiptResult
from timerwheel.rocketmq.checkpoint import NUMBER_MAX, POP_CHECKPOINT, Checkpoint, acknowledged
from timerwheel.rocketmq.codes import Result
from timerwheel.rocketmq.members import Members
from timerwheel.rocketmq.name_server import BROKER, NameServer
from timerwheel.rocketmq.pulls import ANSWER_BYTES_MAX, MESSAGES_MAX, filter_of
from timerwheel.rocketmq.request import Answer, Link, RefusalError, Request
from timerwheel.rocketmq.topics import Topics
from timerwheel.rocketmq.translation import leased_form

WAIT_MS_MAX: Final = 30_000
HELD_MAX: Final = 20_000
"""Most held pops and notifications of all connections."""
ALL_QUEUES: Final = -1
_FROM_THE_END: Final = 1
_COUNT_BITS: Final = (MESSAGES_MAX - 1).bit_length()
_LEASES: Final = NUMBER_MAX + 1 >> _COUNT_BITS

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """A group of a topic."""

    topic: str
    group: str


class Held:
    """Requests that wait for something to answer them with, at most `count_max`. Event loop only."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._held: dict[asyncio.Future[Any], Link] = {}
        self._is_stopping = False

    @property
    def is_full(self) -> bool:
        """Whether no request can be held now."""
        return self._is_stopping or len(self._held) >= self._count_max

    async def wait(self, link: Link, work: Coroutine[Any, Any, T]) -> T | None:
        """Hold a request of this connection; returns what `work` returns, None if it was broken off."""
        task = asyncio.create_task(work)
        self._held[task] = link
        link.held(1)
        try:
            await asyncio.wait((task,))
        finally:
            task.cancel()
            link.held(-1)
            del self._held[task]
        return None if task.cancelled() else task.result()

    def closed(self, link: Link) -> None:
        """A connection was closed: its held requests end."""
        for task, holder in self._held.items():
            if holder is link:
                task.cancel()

    def stop(self) -> None:
        """End all held requests, and hold none any more."""
        self._is_stopping = True
        for task in self._held:
            task.cancel()


class Pops:
    """See the module. Event loop only."""

    def __init__(self, engine: Engine, topics: Topics, name_server: NameServer, members: Members) -> None:
        self._engine = engine
        self._topics = topics
        self._name_server = name_server
        self._members = members
        self._held = Held(HELD_MAX)

    def closed(self, link: Link) -> None:
        """A connection was closed."""
        self._held.closed(link)

    def stop(self) -> None:
        """Answer all that wait, and let none wait any more."""
        self._held.stop()

    # ------------------------------------------------------------------ pops

    async def pop(self, request: Request) -> Answer:
        """Lease messages, or hold the request until there are some."""
        place = self._place(request)
        self._check_queue(request, place.topic)
        if request.text("order", "false") == "true" and not self._engine.topics.ordered(place.topic):
            detail = (
                f"topic {place.topic!r} is not ordered; run `timerwheel topics set {place.topic} --ordered`"
            )
            raise RefusalError(Result.SYSTEM_ERROR, detail)
        terms = self._terms(request, place)
        count_max = min(max(request.number("maxMsgNums"), 1), MESSAGES_MAX)
        invisible_ms = request.number("invisibleTime", low=1, high=INVISIBLE_MS_MAX)
        invisible_ms = max(invisible_ms, self._engine.settings.redelivery_delay_ms)
        wait_ms = min(request.number("pollTime", 0), WAIT_MS_MAX)
        take = partial(
            self._engine.groups.receive,
            *place,
            count_max=count_max,
            bytes_max=ANSWER_BYTES_MAX,
            invisible_ms=invisible_ms,
            wanted=lambda: request.link.takes_more,
        )
        found = await take(terms)
        if not found and wait_ms:
            if self._held.is_full:
                return _nothing(Result.POLLING_FULL)
            del terms  # who waits holds nothing of the request
            request.forget_content()
            found = await self._held.wait(request.link, take(wait_ms=wait_ms)) or []
        if not found:
            return _nothing(Result.POLLING_TIMEOUT)
        return self._answer(request, place, found, invisible_ms)

    def _terms(self, request: Request, place: Place) -> GroupTerms:
        """Return what the first receive of a pop asks of its group."""
        tags = filter_of(request.text("expType", "TAG"), request.text("exp", "*")).tags
        return GroupTerms(
            "*" if tags is None else " || ".join(sorted(tags)),
            self._start(request, place),
            create=True,
            backoff=Exponential(initial_ms=0),
        )

    def _start(self, request: Request, place: Place) -> Start | None:
        """Return where a group begins that this pop makes; None if it is there.

        At the end only of a topic that has lost its first messages, as RocketMQ's broker does.
        """
        if self._engine.groups.kind(*place) is not None:
            return None
        queues = range(self._topics.queues_of(place.topic))
        is_young = all(self._engine.queues.queue_bounds(place.topic, queue)[0] == 0 for queue in queues)
        return "tail" if request.number("initMode", 0) == _FROM_THE_END and not is_young else "head"

    def _answer(self, request: Request, place: Place, found: Sequence[Delivery], invisible_ms: int) -> Answer:
        first = self._engine.groups.lease_of(*place, *place_in(found[0].receipt))
        link = request.link
        if first is None or link.is_closed or not link.has_room:  # rewound, gone, or slow
            self._engine.groups.put_back(*place, [one.receipt for one in found])
            return _nothing(Result.POLLING_TIMEOUT)
        host = self._name_server.address(request)
        popped_ms = found[0].invisible_until_ms - invisible_ms
        pop = _number(first, len(found))
        offsets: dict[int, list[int]] = defaultdict(list)
        whole: list[tuple[Delivery, int, int]] = []
        for one in found:
            if one.message.problem is not None:
                logger.error("a consumer skips a message that cannot be read: %s", one.message.problem)
                continue
            queue, offset = place_in(one.receipt)
            offsets[queue].append(offset)
            whole.append((one, queue, offset))
        if not whole:
            return _nothing(Result.POLLING_TIMEOUT)
        starts = {queue: min(each) for queue, each in offsets.items()}
        parts: list[bytes] = []
        for one, queue, offset in whole:
            named = Checkpoint(
                starts[queue], popped_ms, invisible_ms, pop, BROKER, queue, offset, one.receipt
            )
            more = {POP_CHECKPOINT: named.encode()}
            parts.append(leased_form(one.message, queue, offset, one.attempt, host, more))
        fields = _lease_fields(popped_ms, invisible_ms, pop) | {
            "restNum": str(self._engine.groups.left(*place)),
            "startOffsetInfo": ";".join(f"0 {queue} {start}" for queue, start in starts.items()),
            "msgOffsetInfo": ";".join(
                f"0 {queue} {','.join(map(str, each))}" for queue, each in offsets.items()
            ),
        }
        return Answer(fields=fields, body=b"".join(parts))

    async def notification(self, request: Request) -> Answer:
        """Say whether there are messages for a group, as soon as there are some."""
        place = self._place(request)
        self._check_queue(request, place.topic)
        groups = self._engine.groups
        wait_ms = min(request.number("pollTime", 0), WAIT_MS_MAX)
        has_messages: bool | None = await groups.wait_for_messages(*place, 0)
        is_full = not has_messages and bool(wait_ms) and self._held.is_full
        if not has_messages and wait_ms and not is_full:
            request.forget_content()
            work = groups.wait_for_messages(*place, wait_ms)
            has_messages = await self._held.wait(request.link, work)
        fields = {"hasMsg": _text(bool(has_messages)), "pollingFull": _text(is_full)}
        return Answer(fields=fields)

    # ------------------------------------------------------------------ what becomes of popped messages

    async def acknowledge(self, request: Request) -> Answer:
        """A message is done."""
        place = self._place(request)
        receipt = self._receipt(place, Checkpoint.decode(request.text("extraInfo")))
        results = [] if receipt is None else await self._engine.groups.ack(*place, [receipt])
        return _settled(results, 1)

    async def acknowledge_batch(self, request: Request) -> Answer:
        """Messages are done, of any topics and groups."""
        parts = acknowledged(request.frame.body)
        receipts: dict[Place, list[str]] = defaultdict(list)
        for part, offsets in parts:
            place = Place(part.topic, check_group(part.group))
            self._check(request, place.topic)
            leases = (self._lease(place, part.queue, offset, part.pop) for offset in offsets)
            receipts[place] += [lease.receipt for lease in leases if lease is not None]
        results: list[ReceiptResult] = []
        for place, each in receipts.items():
            for at in range(0, len(each), RECEIVE_MAX):
                results += await self._engine.groups.ack(*place, each[at : at + RECEIVE_MAX])
        return _settled(results, sum(len(offsets) for _, offsets in parts))

    async def change_invisible_time(self, request: Request) -> Answer:
        """A message is invisible for so long from now.

        A push consumer asks for it when it has failed: the message comes back then, and that is stored.
        For any other client the lease is prolonged, and may still be acknowledged.
        """
        place = self._place(request)
        named = Checkpoint.decode(request.text("extraInfo"))
        invisible_ms = request.number("invisibleTime", high=INVISIBLE_MS_MAX)
        receipt = self._receipt(place, named)
        results: list[ReceiptResult] = []
        groups = self._engine.groups
        if receipt is not None and self._is_member(request, place.group):
            reason = "its consumer could not process it"
            results = await groups.nack(*place, [receipt], delay_ms=invisible_ms, reason=reason)
        elif receipt is not None:
            least_ms = max(self._engine.settings.redelivery_delay_ms, 1)
            results = await groups.extend(*place, [receipt], max(invisible_ms, least_ms))
        lease = groups.lease_of(*place, named.queue, named.offset)
        is_held = lease is not None and bool(results) and results[0].ok
        pop = _number(lease, 1) if is_held and lease is not None else named.pop
        return _settled(results, 1, _lease_fields(self._engine.clock.now_ms(), invisible_ms, pop))

    def _is_member(self, request: Request, group: str) -> bool:
        """Whether the client of this connection is a push consumer of the group, by its heartbeats."""
        return any(member.link is request.link for member in self._members.of(group).values())

    def _receipt(self, place: Place, named: Checkpoint) -> str | None:
        """Return the receipt of the lease that a checkpoint names; None if that has ended."""
        if named.receipt:
            return named.receipt
        lease = self._lease(place, named.queue, named.offset, named.pop)
        return None if lease is None else lease.receipt

    def _lease(self, place: Place, queue: int, offset: int, pop: int) -> Lease | None:
        lease = self._engine.groups.lease_of(*place, queue, offset)
        return lease if lease is not None and lease.receipt and _is_of(lease, pop) else None

    # ------------------------------------------------------------------ within

    def _place(self, request: Request) -> Place:
        """Return topic and group of a request; RefusalError unless its caller may receive of the topic."""
        topic = request.text("topic")
        self._check(request, topic)
        return Place(topic, request.group())

    def _check_queue(self, request: Request, topic: str) -> None:
        """RefusalError for a queue that the topic does not have. What a group leases is of any queue."""
        if request.number("queueId", ALL_QUEUES, low=ALL_QUEUES) != ALL_QUEUES:
            self._topics.queue_of(request, topic)

    def _check(self, request: Request, topic: str) -> None:
        if topic.startswith(RETRY_PREFIX):
            detail = (
                f"{topic[:127]!r}: retry topics cannot be popped; a pop group receives its retries from its "
                "own topic"
            )
            raise RefusalError(Result.NO_PERMISSION, detail)
        self._topics.must_read(request, topic)


def _number(first: Lease, count: int) -> int:
    """Return the number of a pop by its first lease and the count of its leases, 1 to MESSAGES_MAX."""
    return (first.run + first.number) % _LEASES << _COUNT_BITS | (count - 1)


def _is_of(lease: Lease, pop: int) -> bool:
    first, count = pop >> _COUNT_BITS, (pop & MESSAGES_MAX - 1) + 1
    return (lease.run + lease.number - first) % _LEASES < count


def _text(value: bool) -> str:  # noqa: FBT001 - the one argument
    return "true" if value else "false"


def _lease_fields(popped_ms: int, invisible_ms: int, pop: int) -> dict[str, str]:
    return {"popTime": str(popped_ms), "invisibleTime": str(invisible_ms), "reviveQid": str(pop)}


def _nothing(result: Result) -> Answer:
    """Return the answer without messages; clients read its fields."""
    return Answer(result, _lease_fields(0, 0, 0) | {"restNum": "0"})


def _settled(results: Sequence[ReceiptResult], count: int, fields: dict[str, str] | None = None) -> Answer:
    good = sum(result.ok for result in results)
    if good == count:
        return Answer(fields=fields or {})
    ended = "the lease has ended" if count == 1 else f"{count - good} of {count} leases have ended"
    return Answer(Result.NO_MESSAGE, fields or {}, remark=f"{ended}; others may have the message now")
