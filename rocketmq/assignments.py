"""Assignments: which queues a consumer reads, and how, if it leaves that to the broker.

A group of kind `leases` on a topic is in mode POP: each consumer pops from all queues. Any other group is in
mode PULL, and its consumers share the queues. So a mode is chosen by making the group, and is as durable.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import orjson

from timerwheel.engine import Engine
from timerwheel.groups.config import LEASES, Exponential, GroupConfig, GroupDiffersError, check_group
from timerwheel.rocketmq.codes import Result
from timerwheel.rocketmq.members import Members, Name
from timerwheel.rocketmq.name_server import BROKER
from timerwheel.rocketmq.offsets import Offsets
from timerwheel.rocketmq.pops import ALL_QUEUES
from timerwheel.rocketmq.request import Answer, RefusalError, Request
from timerwheel.rocketmq.topics import Topics
from timerwheel.tokens import Scope

POP: Final = "POP"
PULL: Final = "PULL"
BROADCASTING: Final = "BROADCASTING"


class Query(msgspec.Struct, frozen=True, rename="camel"):
    """What a consumer asks."""

    topic: Name
    consumer_group: Name
    client_id: Name
    strategy_name: Name = "AVG"
    message_model: Name = "CLUSTERING"


class Mode(msgspec.Struct, frozen=True, rename="camel"):
    """How a group shall consume a topic."""

    topic: Name
    consumer_group: Name
    mode: Literal["POP", "PULL"] = PULL


_decode_query = msgspec.json.Decoder(Query).decode
_decode_mode = msgspec.json.Decoder(Mode).decode


class Assignments:
    """See the module. Event loop only."""

    def __init__(self, engine: Engine, topics: Topics, offsets: Offsets, members: Members) -> None:
        self._engine = engine
        self._topics = topics
        self._offsets = offsets
        self._members = members

    def query(self, request: Request) -> Answer:
        """The queues of a consumer; null, which changes nothing for it, if they cannot be shared that way."""
        try:
            asked = _decode_query(request.frame.body)
        except (ValueError, RecursionError) as error:
            raise RefusalError(Result.SYSTEM_ERROR, f"the query is malformed: {error}") from None
        self._topics.must_read(request, asked.topic)
        check_group(asked.consumer_group)
        if self._engine.groups.kind(asked.topic, asked.consumer_group) == LEASES:
            return _assigned(asked.topic, [ALL_QUEUES], POP)
        queues = range(self._topics.queues_of(asked.topic))
        if asked.message_model == BROADCASTING:
            return _assigned(asked.topic, queues, PULL)
        share = _STRATEGIES.get(asked.strategy_name)
        clients = sorted(self._members.sharing(request, asked.consumer_group))
        if share is None or asked.client_id not in clients:
            return Answer(body=b'{"messageQueueAssignments":null}')
        return _assigned(asked.topic, share(queues, clients.index(asked.client_id), len(clients)), PULL)

    async def set_mode(self, request: Request) -> Answer:
        """Make a group of the kind that consumes so; refused if there is one of the other kind."""
        try:
            wanted = _decode_mode(request.frame.body)
        except (ValueError, RecursionError) as error:
            raise RefusalError(Result.SYSTEM_ERROR, f"the mode is malformed: {error}") from None
        request.must_have(Scope.ADMIN, wanted.topic)
        self._topics.must_have_route(wanted.topic)
        place = wanted.topic, wanted.consumer_group
        if wanted.mode == PULL:
            await self._offsets.make(*place)
        elif self._engine.groups.kind(*place) is None:
            await self._engine.groups.put(*place, GroupConfig(backoff=Exponential(initial_ms=0)))
        elif self._engine.groups.kind(*place) != LEASES:
            raise GroupDiffersError(
                f"group {wanted.consumer_group!r} of topic {wanted.topic!r} commits offsets and cannot "
                "pop; delete the group first, or use another name"
            )
        return Answer()


def _averagely(queues: Sequence[int], index: int, clients: int) -> Sequence[int]:
    """Return the queues of one of so many clients: a stretch, one longer for the first clients."""
    each, more = divmod(len(queues), clients)
    begin = index * each + min(index, more)
    return queues[begin : begin + each + (index < more)]


def _by_circle(queues: Sequence[int], index: int, clients: int) -> Sequence[int]:
    return queues[index::clients]


_STRATEGIES = {"AVG": _averagely, "AVG_BY_CIRCLE": _by_circle}


def _assigned(topic: str, queues: Sequence[int], mode: str) -> Answer:
    body = {
        "messageQueueAssignments": [
            {"messageQueue": {"topic": topic, "brokerName": BROKER, "queueId": queue}, "mode": mode}
            for queue in queues
        ]
    }
    return Answer(body=orjson.dumps(body))
