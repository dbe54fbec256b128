"""Who consumes in which group: clients say so in heartbeats, and share the queues of a topic.

A group's members are notified as soon as one joins or leaves with which they share queues, so they share
these again at once. A connection that closes takes its clients along.

Any client that may receive can name any group. So clients of different tokens share its queues only if they
read a topic in common, and may; and a client has its id to itself, as far as other tokens are concerned.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
import orjson

from timerwheel.groups.config import check_group, is_group
from timerwheel.rocketmq.codes import LANGUAGES, OTHER_LANGUAGE, Call, Result
from timerwheel.rocketmq.producers import ClientLink, Producers
from timerwheel.rocketmq.request import INT32_MAX, Answer, Caller, Link, RefusalError, Request
from timerwheel.tokens import Scope

GROUPS_MAX: Final = 1_000
"""Most groups of one heartbeat, and of all clients of one connection; of producers and consumers each."""
HEARTBEAT_BYTES_MAX: Final = 1 << 20
MEMBERS_BYTES_MAX: Final = 2 << 20
"""Most bytes of heartbeats by which the clients of one connection are members of groups."""
ALL_MEMBERS_BYTES_MAX: Final = 64 << 20
"""Most bytes of heartbeats by which clients are members of groups; in memory they take ten times as many."""

Name = Annotated[str, msgspec.Meta(max_length=255)]


class Subscription(msgspec.Struct, frozen=True, rename="camel"):
    """What a consumer reads of a topic."""

    topic: Name
    sub_string: str = "*"
    expression_type: str | None = None


CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
BEGINNINGS: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


class ConsumerData(msgspec.Struct, frozen=True, rename="camel"):
    """A consumer of a client. The C++ client gives a choice by its place, all others by its name."""

    group_name: Name
    consume_type: str | int = ""
    message_model: str | int = ""
    consume_from_where: str | int = ""
    subscription_data_set: list[Subscription] = []

    def described(self) -> dict[str, str]:
        """Return the choices by name, with those of a push consumer for what it does not say."""
        return {
            "consumeFromWhere": _named(self.consume_from_where, BEGINNINGS, BEGINNINGS[0]),
            "consumeType": _named(self.consume_type, CONSUME_TYPES, CONSUME_TYPES[1]),
            "messageModel": _named(self.message_model, MESSAGE_MODELS, MESSAGE_MODELS[1]),
        }


def _named(said: str | int, names: Sequence[str], default: str) -> str:
    if isinstance(said, int):
        return names[said] if 0 <= said < len(names) else default
    return said or default


class ProducerData(msgspec.Struct, frozen=True, rename="camel"):
    """A producer of a client."""

    group_name: Name


class Heartbeat(msgspec.Struct, frozen=True):
    """What a client says of itself every 30 seconds."""

    client_id: Name = msgspec.field(name="clientID")
    consumers: Annotated[list[ConsumerData], msgspec.Meta(max_length=GROUPS_MAX)] = msgspec.field(
        name="consumerDataSet", default_factory=list
    )
    producers: Annotated[list[ProducerData], msgspec.Meta(max_length=GROUPS_MAX)] | None = msgspec.field(
        name="producerDataSet", default=None
    )


class Member(msgspec.Struct, frozen=True):
    """A client in a group."""

    link: ClientLink
    caller: Caller
    data: ConsumerData
    topics: frozenset[str]
    """Those that it reads, and may."""
    language: str
    version: int
    """The number of its version of RocketMQ, from its last heartbeat."""


class _Own(msgspec.Struct):
    """What a connection has: its clients in groups, with the bytes that count for each, and their sum."""

    members: dict[tuple[str, str], int]
    size_bytes: int = 0

    def put(self, key: tuple[str, str], size_bytes: int) -> None:
        """Add one."""
        self.members[key] = size_bytes
        self.size_bytes += size_bytes

    def drop(self, key: tuple[str, str]) -> int:
        """Remove one if it is there; returns its bytes."""
        size_bytes = self.members.pop(key, 0)
        self.size_bytes -= size_bytes
        return size_bytes


_NOTHING: Final = _Own({})
_decode = msgspec.json.Decoder(Heartbeat).decode


class Members:
    """See the module. Event loop only."""

    def __init__(self, producers: Producers) -> None:
        self._producers = producers
        self._groups: dict[str, dict[str, Member]] = {}
        self._links: dict[int, _Own] = {}  # by the identity of the connection
        self._size_bytes = 0  # of all of them

    def of(self, group: str) -> dict[str, Member]:
        """Return the members of a group by the ids of their clients."""
        return self._groups.get(group, {})

    def subscription(self, link: Link, group: str, topic: str) -> Subscription | None:
        """Return what a client of this connection reads of a topic in a group, as its last heartbeat says."""
        own = self._links.get(id(link))
        for name, client in own.members if own is not None else ():
            if name == group:
                for one in self._groups[name][client].data.subscription_data_set:
                    if one.topic == topic:
                        return one
        return None

    def groups_reading(self, may: Callable[[str], bool]) -> Sequence[str]:
        """Return the groups in which somebody reads a topic of which `may` is true."""
        return [
            group
            for group, members in self._groups.items()
            if any(map(may, {topic for member in members.values() for topic in member.topics}))
        ]

    def sharing(self, request: Request, group: str) -> Sequence[str]:
        """Return the ids of the clients that share the queues of a group with those of a connection."""
        members = self.of(group)
        own = [member.topics for member in members.values() if member.link is request.link]
        reads = frozenset[str]().union(*own).__contains__ if own else request.caller.may
        return [
            client
            for client, member in members.items()
            if member.caller.name == request.caller.name or any(map(reads, member.topics))
        ]

    def visible(self, request: Request, group: str) -> dict[str, Member]:
        """Return the members of a group of which the caller may know: those that read one of its topics."""
        caller = request.caller
        return {
            client: member
            for client, member in self.of(group).items()
            if caller.holds(Scope.ADMIN)
            or member.caller.name == caller.name
            or any(map(caller.may, member.topics))
        }

    def heartbeat(self, request: Request) -> Answer:
        """A client tells in which groups it consumes and produces.

        One illegal name of a group is an error, but the consumers of the others join. A producer may have any
        name: it is only compared with that of a transaction.
        """
        size_bytes = len(request.frame.body)
        if size_bytes > HEARTBEAT_BYTES_MAX:
            detail = f"a heartbeat of {size_bytes} bytes; at most {HEARTBEAT_BYTES_MAX} are allowed"
            raise RefusalError(Result.SYSTEM_ERROR, detail)
        try:
            found = _decode(request.frame.body)
        except (ValueError, RecursionError) as error:
            raise RefusalError(Result.SYSTEM_ERROR, f"the heartbeat is malformed: {error}") from None
        if found.consumers:
            request.must_have(Scope.RECEIVE)
        legal = [data for data in found.consumers if is_group(data.group_name)]
        for data in legal:
            self._join(request, found.client_id, data, size_bytes // len(found.consumers))
        link: ClientLink = request.link  # type: ignore[assignment]  # each connection is one
        for producer in found.producers or ():
            self._producers.join(link, request.caller, found.client_id, producer.group_name)
        for data in found.consumers:
            check_group(data.group_name)  # the client's other groups are in by now
        return Answer(fields={"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"})

    def _join(self, request: Request, client: str, data: ConsumerData, size_bytes: int) -> None:
        link: ClientLink = request.link  # type: ignore[assignment]  # each connection is one
        self._check_room(link, data.group_name, client, size_bytes)
        members = self._groups.setdefault(data.group_name, {})
        known = members.get(client)
        if known is not None and known.caller.name != request.caller.name:
            detail = f"client {client!r} of group {data.group_name!r} has another token"
            raise RefusalError(Result.NO_PERMISSION, detail)
        if known is not None:
            self._drop(known.link, data.group_name, client)
        topics = frozenset(one.topic for one in data.subscription_data_set if request.caller.may(one.topic))
        frame = request.frame
        language = frame.language if frame.language in LANGUAGES else OTHER_LANGUAGE
        version = min(max(frame.version, 0), INT32_MAX)
        member = Member(link, request.caller, data, topics, language, version)
        members[client] = member
        self._links.setdefault(id(link), _Own({})).put((data.group_name, client), size_bytes)
        self._size_bytes += size_bytes
        if known is None or known.link is not link:
            self._notify(data.group_name, member)

    def _check_room(self, link: Link, group: str, client: str, size_bytes: int) -> None:
        """RefusalError if the clients of a connection would be in too many groups, or hold too many bytes."""
        own = self._links.get(id(link), _NOTHING)
        known_bytes = own.members.get((group, client))
        more_bytes = size_bytes - (known_bytes or 0)
        is_full = known_bytes is None and len(own.members) >= GROUPS_MAX
        if is_full or own.size_bytes + more_bytes > MEMBERS_BYTES_MAX:
            detail = f"the clients of this connection are in {len(own.members)} groups; leave some first"
            raise RefusalError(Result.SYSTEM_ERROR, detail)
        if self._size_bytes + more_bytes > ALL_MEMBERS_BYTES_MAX:
            detail = f"all clients say more than {ALL_MEMBERS_BYTES_MAX} bytes of themselves; try again later"
            raise RefusalError(Result.SYSTEM_BUSY, detail)

    def _drop(self, link: Link, group: str, client: str) -> None:
        own = self._links.get(id(link))
        if own is not None:
            self._size_bytes -= own.drop((group, client))
            if not own.members:
                del self._links[id(link)]

    def unregister(self, request: Request) -> Answer:
        """A client leaves a group."""
        client, group = request.text("clientID"), request.text("consumerGroup", "")
        member = self.of(group).get(client)
        if member is not None and member.link is request.link:
            self._leave(group, client, member.link)
        self._producers.leave(request.link, request.caller, client, request.text("producerGroup", ""))
        return Answer()

    def closed(self, link: Link) -> None:
        """A connection was closed."""
        self._producers.closed(link)
        own = self._links.get(id(link))
        for group, client in list(own.members) if own is not None else ():
            self._leave(group, client, link)

    def _leave(self, group: str, client: str, link: Link) -> None:
        member = self.of(group).get(client)
        if member is None or member.link is not link:
            return
        del self._groups[group][client]
        self._drop(link, group, client)
        if not self._groups[group]:
            del self._groups[group]
        self._notify(group, member)

    def list(self, request: Request) -> Answer:
        """The ids of the clients of a group."""
        group = request.group()
        request.must_have(Scope.RECEIVE)
        if not (clients := self.sharing(request, group)):
            raise RefusalError(Result.SYSTEM_ERROR, f"no consumer of group {group!r} is connected")
        return Answer(body=orjson.dumps({"consumerIdList": clients}))

    def _notify(self, group: str, changed: Member) -> None:
        """Notify the members of a group that share queues with one that has joined or left."""
        links: dict[int, ClientLink] = {}
        for member in self.of(group).values():
            if member.caller.name == changed.caller.name or not member.topics.isdisjoint(changed.topics):
                links[id(member.link)] = member.link
        for link in links.values():
            link.notify(Call.NOTIFY_CONSUMERS, {"consumerGroup": group})
