"""What RocketMQ's `mqadmin` and its test suites ask for: topics, groups, progress, resets.

Answers with a map whose keys are objects are written as RocketMQ's JSON library writes them, which is not
standard JSON: `{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{...}}}`.
"""

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import orjson

from timerwheel.engine import Engine
from timerwheel.errors import UnknownTopicError
from timerwheel.groups.config import LEASES, UnknownGroupError, check_group
from timerwheel.model.admission import RETRY_PREFIX
from timerwheel.rocketmq.codes import PERM_INHERIT, VERSION, Call, Result
from timerwheel.rocketmq.members import Members
from timerwheel.rocketmq.name_server import BROKER
from timerwheel.rocketmq.offsets import Offsets
from timerwheel.rocketmq.request import INT64_MAX, Answer, RefusalError, Request
from timerwheel.rocketmq.topics import QUEUES_OF_NEW, Topics
from timerwheel.settings import TOPIC_QUEUES_MAX
from timerwheel.state.config_table import ConfigTable
from timerwheel.tokens import Scope
from timerwheel.version import version

DELETE_WAIT_MS = 2_000
"""How long `deleteTopic` waits for the end of a deletion; clients wait 5 seconds for their answer."""

NOT_GIVEN: Final = -1
"""The queue and the offset of a reset that names none."""


class _RetryPolicy(msgspec.Struct, frozen=True, rename="camel"):
    type: str = "CUSTOMIZED"
    exponential_retry_policy: dict[str, object] | None = None
    customized_retry_policy: dict[str, object] | None = None


class _GroupConfig(msgspec.Struct, frozen=True, rename="camel"):
    group_name: str
    consume_enable: bool = True
    retry_max_times: int = 16
    group_retry_policy: _RetryPolicy | None = _RetryPolicy()
    retry_queue_nums: int = 1
    broker_id: int = 0
    notify_consumer_ids_changed_enable: bool = True


_decode_config = msgspec.json.Decoder(_GroupConfig).decode
_USUAL: Final = _GroupConfig("")
_NOT_SET: Final = {
    "consume_enable": ("consumeEnable", "revoke the token of its consumers, or pause the topic"),
    "retry_max_times": (
        "retryMaxTimes",
        "set maxReconsumeTimes of the consumer, or for POP max_attempts with 'timerwheel groups put'",
    ),
    "group_retry_policy": ("groupRetryPolicy", "give backoff with 'timerwheel groups put'"),
    "retry_queue_nums": ("retryQueueNums", "the retry topic of a group has one queue"),
    "broker_id": ("brokerId", "there is one broker, 0"),
    "notify_consumer_ids_changed_enable": ("notifyConsumerIdsChangedEnable", "consumers are always notified"),
}
"""Fields of a group that must have their usual values: the names that users know, and what to do instead."""


class Admin:
    """See the module. Event loop only."""

    def __init__(self, engine: Engine, topics: Topics, offsets: Offsets, members: Members) -> None:
        self._engine = engine
        self._topics = topics
        self._offsets = offsets
        self._members = members

    async def update_topic(self, request: Request) -> Answer:
        """Make a topic, or give it more queues; what cannot be set is refused as not supported."""
        topic = request.text("topic")
        request.must_have(Scope.ADMIN, topic)
        self._topics.must_have_route(topic)
        read, write = [
            request.number(name, QUEUES_OF_NEW, low=1, high=TOPIC_QUEUES_MAX)
            for name in ("readQueueNums", "writeQueueNums")
        ]
        if read != write:
            detail = f"{read} queues to read and {write} to write: give the same number with -r and -w"
            raise RefusalError(Result.NOT_SUPPORTED, detail)
        has, wanted = self._topics.permissions(topic), request.number("perm", -1, low=-1)
        if wanted not in {-1, has, has | PERM_INHERIT}:
            detail = f"perm = {wanted} is not supported: topic {topic!r} has {has}; API tokens control access"
            raise RefusalError(Result.NOT_SUPPORTED, detail)
        if request.text("order", "false") == "true":
            detail = 'order = true is not supported: set "ordered" of the topic over HTTP'
            raise RefusalError(Result.NOT_SUPPORTED, detail)
        await self._engine.topics.change(topic, queues=read)
        return Answer()

    async def delete_topic(self, request: Request) -> Answer:
        """Delete a topic; one that does not exist is not an error, as with RocketMQ.

        The answer comes when no message of it is delivered any more, or shortly after, with the last step.
        """
        topic = request.text("topic")
        request.must_have(Scope.ADMIN, topic)
        self._topics.must_have_route(topic)
        with contextlib.suppress(UnknownTopicError):
            await self._engine.topic_deletions.delete(topic, DELETE_WAIT_MS)
        return Answer()

    def delete_route(self, request: Request) -> Answer:
        """The name server forgets a topic: nothing to do, since a topic has its route from its name."""
        request.must_have(Scope.ADMIN, request.text("topic"))
        return Answer()

    def delete_config(self, request: Request) -> Answer:
        """The name server forgets a value: `mqadmin` asks for that when it deletes a topic. None are kept."""
        request.must_have(Scope.ADMIN)
        return Answer()

    def update_group(self, request: Request) -> Answer:
        """Groups are made when they are used: the name is checked, and that nothing else is to be set.

        What `mqadmin` sends of itself is accepted, and so are choices that have no effect here: each group
        may broadcast, and gets ordered messages in order.
        """
        request.must_have(Scope.ADMIN)
        if not request.frame.body:
            return Answer()
        try:
            wanted = _decode_config(request.frame.body)
            check_group(wanted.group_name)
        except (ValueError, RecursionError) as error:
            raise RefusalError(Result.SYSTEM_ERROR, f"the group is malformed: {error}") from None
        for field, (name, way) in _NOT_SET.items():
            if (value := getattr(wanted, field)) != getattr(_USUAL, field):
                detail = f"{name} = {msgspec.json.encode(value).decode()} is not supported: {way}"
                raise RefusalError(Result.NOT_SUPPORTED, detail)
        return Answer()

    async def delete_group(self, request: Request) -> Answer:
        """Forget how far a group has come in each topic, if that is asked for.

        Otherwise there is nothing to delete, since groups are made when they are used. A group that does not
        exist is not an error. Dead letters stay.
        """
        group = request.group("groupName")
        topics = self._known_in(group)
        request.must_have(Scope.ADMIN)
        for topic in topics:
            request.must_have(Scope.ADMIN, topic)
        if request.text("cleanOffset", "false") == "true":
            for topic in topics:
                with contextlib.suppress(UnknownGroupError):  # deleted by another call since
                    await self._engine.groups.delete(topic, group)
        return Answer()

    def topic_config(self, request: Request) -> Answer:
        """The settings of a topic, which `mqadmin` can do without."""
        return Answer(Result.TOPIC_NOT_EXIST, remark=f"ask for the route of topic {request.text('topic')!r}")

    async def topic_stats(self, request: Request) -> Answer:
        """The bounds of each queue of a topic, and when its last message was stored."""
        topic = request.text("topic")
        self._topics.must_read(request, topic)
        table: list[tuple[int, dict[str, int]]] = []
        for queue in range(self._topics.queues_of(topic)):
            low, high = self._engine.queues.queue_bounds(topic, queue)
            last_ms = await self._stored_ms(topic, queue, high - 1) if high > low else 0
            table.append((queue, {"lastUpdateTimestamp": last_ms, "maxOffset": high, "minOffset": low}))
        return Answer(body=b'{"offsetTable":{%s}}' % _by_queue(topic, table))

    def all_topics(self, request: Request) -> Answer:
        """The names of all topics that the caller may see, and of the retry topics of their groups.

        A retry topic is listed before a message is in it: by these names `mqadmin` knows which groups exist.
        """
        may = request.caller.may
        names = dict.fromkeys(filter(may, filter(self._topics.has_route, self._engine.queues.topic_names())))
        stored = (name.rpartition("/") for name in self._engine.control.items(ConfigTable.GROUP))
        groups = [group for topic, _, group in stored if self._topics.has_route(topic) and may(topic)]
        groups += self._members.groups_reading(may)
        names |= dict.fromkeys(f"{RETRY_PREFIX}{group}" for group in groups)
        return Answer(body=orjson.dumps({"topicList": list(names)}))

    async def consume_stats(self, request: Request) -> Answer:
        """How far a group has come in each queue of a topic."""
        group, topic = request.group(), request.text("topic", "")
        request.must_have(Scope.RECEIVE)
        if topic:
            self._topics.must_read(request, topic)
        names = [topic] if topic else self._topics_of(group)
        parts: list[bytes] = []
        for name in filter(request.caller.may, names):
            table: list[tuple[int, dict[str, int]]] = []
            for queue, consumed in enumerate(self._consumed(name, group)):
                offset = consumed or 0
                high = self._engine.queues.queue_bounds(name, queue)[1]
                last_ms = await self._stored_ms(name, queue, offset - 1) if offset else 0
                found = {"brokerOffset": high, "consumerOffset": offset, "lastTimestamp": last_ms}
                table.append((queue, found | {"pullOffset": offset}))
            parts.append(_by_queue(name, table))
        return Answer(body=b'{"consumeTps":0.0,"offsetTable":{%s}}' % b",".join(filter(None, parts)))

    def _consumed(self, topic: str, group: str) -> Sequence[int | None]:
        """Return how far a group has come in each queue: what it committed, or up to where it has leased.

        None for a queue of which it has committed nothing.
        """
        if self._engine.groups.kind(topic, group) == LEASES:
            return [queue.cursor for queue in self._engine.groups.info(topic, group).queues]
        queues = range(self._topics.queues_of(topic))
        return [self._offsets.of(topic, group, queue) for queue in queues]

    def groups_of_topic(self, request: Request) -> Answer:
        """The groups of a topic."""
        topic = request.text("topic")
        self._topics.must_read(request, topic)
        return Answer(
            body=orjson.dumps({"groupList": [info.group for info in self._engine.groups.all(topic)]})
        )

    def _topics_of(self, group: str) -> list[str]:
        """Return the topics of a group, and those to which its members subscribe."""
        data = [member.data for member in self._members.of(group).values()]
        subscribed = {one.topic for each in data for one in each.subscription_data_set}
        return sorted({*self._known_in(group), *subscribed})

    def _known_in(self, group: str) -> list[str]:
        """Return the topics in which there is a group of this name."""
        names = (name.rpartition("/") for name in self._engine.control.items(ConfigTable.GROUP))
        return [topic for topic, _, found in names if found == group]

    async def _stored_ms(self, topic: str, queue: int, offset: int) -> int:
        _, positions = await self._engine.queues.positions(topic, queue, offset, 1)
        return int(positions["store_ms"][0]) if len(positions) else 0

    def connections(self, request: Request) -> Answer:
        """The clients of a group, as far as the caller may read what they read."""
        request.must_have(Scope.RECEIVE)
        members = self._members.visible(request, request.group())
        if not members:
            raise RefusalError(Result.CONSUMER_NOT_ONLINE, "no consumer of the group is connected")
        data = next(iter(members.values())).data
        body = {
            "connectionSet": [
                {
                    "clientAddr": f"{member.link.peer.address}:{member.link.peer.port}",
                    "clientId": client,
                    "language": member.language,
                    "version": member.version,
                }
                for client, member in members.items()
            ],
            **data.described(),
            "subscriptionTable": {
                one.topic: {"topic": one.topic, "subString": one.sub_string, "expressionType": "TAG"}
                for one in data.subscription_data_set
                if request.caller.may(one.topic)
            },
        }
        return Answer(body=orjson.dumps(body))

    def runtime_info(self, request: Request) -> Answer:
        """A few numbers that `mqadmin clusterList` shows; the metrics over HTTP say more."""
        request.must_have(Scope.ADMIN)
        none = "0.0 0.0 0.0"
        table = {
            "brokerVersionDesc": f"timerwheel {version()}",
            "brokerVersion": str(VERSION),
            "putTps": none,
            "getTransferredTps": none,
            "getTransferedTps": none,
            "sendThreadPoolQueueSize": "0",
            "pullThreadPoolQueueSize": "0",
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(self._engine.clock.now_ms()),
            "commitLogDiskRatio": "0.0",
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": str(self._engine.core.state.pending),
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
        }
        return Answer(body=orjson.dumps({"table": table}))

    async def reset_offsets(self, request: Request) -> Answer:
        """Rewind a group to a time, or in one queue to an offset; `rewound` notifies its clients.

        Answers with the queues that were reset, and where each goes on, once that is durable. Without
        `isForce`, a queue is only ever set back.
        """
        topic, group = request.text("topic"), request.group("group")
        request.must_have(Scope.ADMIN, topic)
        if not self._topics.exists(topic):
            raise RefusalError(Result.TOPIC_NOT_EXIST, f"topic {topic[:127]!r} does not exist")
        time_ms = request.number("timestamp", low=-INT64_MAX)
        wanted = await self._wanted(request, topic, time_ms)
        if request.text("isForce", "true") != "true":
            consumed = self._consumed(topic, group)
            wanted = {queue: offset for queue, offset in wanted.items() if _is_back(offset, consumed[queue])}
        if wanted:
            if self._engine.groups.kind(topic, group) is None:
                await self._offsets.make(topic, group)
            await self._engine.groups.rewind(topic, group, offsets=wanted)
        return Answer(body=_offset_table(topic, wanted))

    async def _wanted(self, request: Request, topic: str, time_ms: int) -> dict[int, int]:
        """Return where each queue that a reset names shall go on; RefusalError.

        A reset names one queue, or all by -1. It names an offset of its queue, or a time by the offset -1.
        """
        offset = request.number("offset", NOT_GIVEN, low=NOT_GIVEN)
        queues = range(self._topics.queues_of(topic))
        if request.number("queueId", NOT_GIVEN, low=NOT_GIVEN) != NOT_GIVEN:
            queue = self._topics.queue_of(request, topic)
            queues = range(queue, queue + 1)
        elif offset != NOT_GIVEN:
            raise RefusalError(Result.SYSTEM_ERROR, f"offset = {offset}: name its queue with queueId too")
        wanted: dict[int, int] = {}
        for queue in queues:
            low, high = self._engine.queues.queue_bounds(topic, queue)
            if offset == NOT_GIVEN:
                at_time = partial(self._engine.queues.first_from, topic, queue, time_ms)
                wanted[queue] = high if time_ms < 0 else await at_time()
            elif low <= offset <= high:
                wanted[queue] = offset
            else:
                has = f"queue {queue} of topic {topic!r} has offsets from {low} to {high}"
                raise RefusalError(Result.SYSTEM_ERROR, f"offset = {offset}: {has}")
        return wanted

    def rewound(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Have the clients of a group read on from these offsets: they would commit their own ones again."""
        now_ms = self._engine.clock.now_ms()
        fields = {"topic": topic, "group": group, "timestamp": str(now_ms), "isForce": "true"}
        body = _offset_table(topic, offsets)
        links = {id(member.link): member.link for member in self._members.of(group).values()}
        for link in links.values():
            link.notify(Call.RESET_CLIENT_OFFSETS, fields, body)


def _offset_table(topic: str, offsets: Mapping[int, int]) -> bytes:
    return b'{"offsetTable":{%s}}' % _by_queue(topic, list(offsets.items()))


def _is_back(offset: int, consumed: int | None) -> bool:
    return consumed is None or offset < consumed


def _by_queue(topic: str, table: list[tuple[int, dict[str, int]]] | list[tuple[int, int]]) -> bytes:
    """Return the entries of a map whose keys are queues, as RocketMQ's JSON library writes them."""
    return b",".join(
        orjson.dumps({"brokerName": BROKER, "queueId": queue, "topic": topic}) + b":" + orjson.dumps(value)
        for queue, value in table
    )
