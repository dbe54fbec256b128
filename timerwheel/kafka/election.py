"""The election of a journal's leader, by a consumer group: `timerwheel.runtime.election.Election`.

    group      CLUSTER-leader, over the topic CLUSTER-log, which has one partition; who has it is to lead
    client.id  the URL of the node: so the group is the list of nodes
    dead       a node that sends no heartbeat for 6 s; the others learn of it half a second later
    certain    the leader commits an offset each second: the coordinator takes it from a member alone, and
               gives the partition to no other for 6 s then (`timerwheel.kafka.tenure`)
    copied     the offset that a node commits for the group CLUSTER-log.URL, so that Kafka's own tools show
               how far behind it is; its metadata say whether the node has room on its disk
    aside      a node that stands aside is in the group CLUSTER-log.aside instead, whose partition means
               nothing: so it is still seen, and never chosen

The partition is never read here: it is paused. A node that starts again before its former self has lost the
group leads at once if nobody else is there: a URL has one process, so that self is dead. It does so once in
its life: two nodes that were given one URL by mistake would otherwise shut each other out forever.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from timerwheel.clock import Clock
from timerwheel.kafka.clients import CALL_S, check_properties, client_properties, error_text
from timerwheel.kafka.cluster import why_not
from timerwheel.kafka.tenure import SESSION_MS, Tenure
from timerwheel.runtime.election import Node
from timerwheel.settings import JournalAddress
from timerwheel.store.errors import JournalAwayError

HEARTBEAT_MS: Final = 500
POLL_S: Final = 0.1
LOOK_MS: Final = 1_000
"""How often a node that does not lead looks who does."""
COMMIT_MS: Final = 2_000
COMMIT_AGAIN_MS: Final = 60_000
"""A position is committed again after this time: Kafka forgets it some day, and a commit may have failed."""
ROOM: Final = "room"
NO_ROOM: Final = "no-room"
SHARED_MS: Final = 30_000
"""After this time another member with the URL of this node is not its former self; logged as often."""
END_S_MAX: Final = 20.0
"""How long the group waits for the engine of a node that is not to lead any longer."""
LEAVE_S: Final = 5.0
"""How long to wait for brokers to hear that this node leaves; else they learn it from its silence."""
OF_A_VOTER: Final = {
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": HEARTBEAT_MS,
    "partition.assignment.strategy": "cooperative-sticky",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "latest",
}
"""Properties of a consumer that takes part."""
PARTITION: Final = 0
FORBIDDEN: Final = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED})
"""Errors that last until somebody gives a right; a broker that starts may refuse a log-in by mistake."""

logger = logging.getLogger(__name__)


def has_partitions(assignment: bytes) -> bool:
    """Whether a member's assignment, as the consumer protocol encodes it, names a topic."""
    return int.from_bytes(assignment[2:6], "big", signed=True) > 0  # a version, then the number of topics


def _raise_refusal(polled: Message | None, servers: str, group: str) -> None:
    """Raise JournalAwayError if the brokers do not let this user take part; they may at any later time."""
    error = None if polled is None else polled.error()
    if error is not None and error.code() in FORBIDDEN:
        raise JournalAwayError(why_not(KafkaException(error), servers, f"which joins the group {group}"))


def group_of(address: JournalAddress) -> str:
    """Return the name of the consumer group that elects the leader of a journal."""
    return f"{address.cluster}-leader"


def check_voter(address: JournalAddress, properties: Mapping[str, str]) -> None:
    """Raise SettingsError if nobody can take part in an election with these properties."""

    def make_dry(properties: Mapping[str, str]) -> None:
        Consumer(client_properties("", properties) | OF_A_VOTER | {"group.id": group_of(address)}).close()

    check_properties(properties, make_dry)


def aside_of(address: JournalAddress) -> str:
    """Return the name of the consumer group of the nodes that stand aside."""
    return f"{address.cluster}-log.aside"


def said_of_room(metadata: str | None) -> bool | None:
    """Whether a node has room, by the metadata of what it committed; None if it has not said so."""
    return {ROOM: True, NO_ROOM: False}.get(metadata or "")


class Member(NamedTuple):
    """A process that takes part: the URL that it was given, and whether it has the partition."""

    url: str
    leads: bool


class Copied(NamedTuple):
    """What a node has committed of itself."""

    position: int | None
    has_room: bool | None


def members(common: Mapping[str, Any], group: str) -> list[Member]:
    """Return the members of a group; KafkaException.

    `describe_consumer_groups` would be the newer call, but it may end the process with an assertion of
    librdkafka 2.16 when it is asked while brokers are away.
    """
    with AdminClient(dict(common)) as admin:
        groups: list[Any] = admin.list_groups(group, CALL_S)
        return [
            Member(one.client_id, has_partitions(one.assignment)) for found in groups for one in found.members
        ]


def leader_of(address: JournalAddress, properties: Mapping[str, str]) -> str | None:
    """Return the URL of the node that is to lead a journal; None if there is none, or Kafka does not say.

    Takes no part in the election. It waits for the brokers.
    """
    try:
        found = members(client_properties(address.servers, properties), group_of(address))
    except KafkaException as error:
        logger.debug("cannot see who leads %s: %s", address.cluster, error_text(error))
        return None
    return next((one.url for one in found if one.leads), None)


class KafkaElection:
    """See the module. Belongs to the event loop, but for what says that it runs in the thread."""

    def __init__(
        self, address: JournalAddress, properties: Mapping[str, str], clock: Clock, url: str
    ) -> None:
        self.topic = address.topic
        self.group = group_of(address)
        self._aside_group = aside_of(address)
        self._servers = address.servers
        self.url = url
        self.leader_url: str | None = None
        """Who leads, as far as this node has heard."""
        self._common = client_properties(address.servers, properties) | {"client.id": url}
        self._clock = clock
        self._thread: threading.Thread | None = None  # that takes part; another one may still be leaving
        self._ended = threading.Event()
        self._ended.set()
        self._won = self._lost = asyncio.get_running_loop().create_future()
        self._has = False  # the partition, or what a former self had
        self._acting = False
        self._has_voted = False
        self._shared_ms: int | None = None  # since when another process takes part with this URL
        self._position: int | None = None
        self._has_room: bool | None = None
        self._is_aside = False
        self._commit_ms = self._committed_ms = self._look_ms = 0
        self._committed: Copied | None = None
        self._tenure = Tenure()

    # ------------------------------------------------------------------ on the event loop

    @property
    def is_won(self) -> bool:
        """Whether this process is to lead."""
        return self._won.done() and not self._lost.done()

    @property
    def leads_until_ms(self) -> int:
        """Until when, by `Clock.uptime_ms`, the group can have chosen no other process."""
        return self._tenure.until_ms

    async def won(self) -> None:
        """Take part; return once this process is to lead."""
        if self._thread is None or not self._thread.is_alive():
            loop = asyncio.get_running_loop()
            self._begin()
            self._thread = threading.Thread(target=self._run, args=(loop,), name="election", daemon=True)
            self._thread.start()
        await asyncio.shield(self._won)

    async def lost(self) -> None:
        """Return once this process is not to lead any longer."""
        await asyncio.shield(self._lost)

    def ended(self) -> None:
        """Say that no engine runs, so that another node may begin; nothing if this one still is to lead."""
        if self._lost.done():
            self._begin()
            self._ended.set()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._won, self._lost = loop.create_future(), loop.create_future()
        if self._has:
            self._won.set_result(None)

    async def leave(self) -> None:
        """Take no part, and do not lead, until the next `won`.

        librdkafka lets go of a group only when all that it has asked is answered. While brokers hang, its
        thread is left alone with that: nothing that it learns counts any more.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            self._tenure.end()
            self._ended.set()
            await asyncio.to_thread(thread.join, LEAVE_S)
            self._tenure.end()  # the thread may have been in the middle of something
            self._ended.set()
            self._acting = False
            self._lose()

    def report(self, position: int) -> None:
        """Let others know up to which position this process has copied."""
        self._position = position

    def say_room(self, *, has_room: bool) -> None:
        """Let others know whether this process has room on its disk."""
        self._has_room = has_room

    def stand_aside(self, *, is_aside: bool) -> None:
        """Be none of those from whom the leader is chosen, or be one again."""
        self._is_aside = is_aside

    async def nodes(self) -> list[Node]:
        """Return who takes part, by URL. Raises JournalAwayError."""
        return await asyncio.to_thread(self._nodes)

    def _nodes(self) -> list[Node]:
        place = TopicPartition(self.topic, PARTITION)
        try:
            leaders: dict[str, bool] = {}
            for one in members(self._common, self.group):
                leaders[one.url] = one.leads or leaders.get(one.url, False)
            aside = {one.url for one in members(self._common, self._aside_group)} - leaders.keys()
            with self._copy_consumer(self.url) as consumer:
                end = consumer.get_watermark_offsets(place, timeout=CALL_S)[1]
            return [
                self._node(url, end, leads=leaders.get(url, False), is_aside=url in aside)
                for url in sorted(leaders.keys() | aside)
            ]
        except KafkaException as error:
            raise JournalAwayError(
                why_not(error, self._servers, f"which asks for the group {self.group}")
            ) from error

    def _node(self, url: str, end: int, *, leads: bool, is_aside: bool) -> Node:
        copied = self._copied(url)
        behind = None if copied.position is None else max(end - copied.position, 0)
        has_room = self._has_room if url == self.url else copied.has_room
        return Node(url, leads, 0 if leads else behind, has_room, is_aside)

    def _copied(self, url: str) -> Copied:
        with self._copy_consumer(url) as consumer:
            found = consumer.committed([TopicPartition(self.topic, PARTITION)], timeout=CALL_S)[0]
        if found.offset < 0:
            return Copied(None, None)
        return Copied(found.offset, said_of_room(found.metadata))

    # ------------------------------------------------------------------ in the thread

    @property
    def _takes_part(self) -> bool:
        """Whether this thread takes part; False from `leave` on."""
        return self._thread is threading.current_thread()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take part until `leave`; what it cannot go on after ends the engine, or the wait for one."""

        def post(call: Callable[[], None]) -> None:
            if self._takes_part and not loop.is_closed():
                loop.call_soon_threadsafe(call)

        try:
            self._vote(post)
        except JournalAwayError as error:
            post(partial(self._fail, error))
        except Exception as error:  # nobody awaits a thread: the engine would wait forever
            logger.exception("the election failed")
            post(partial(self._fail, error))

    def _vote(self, post: Callable[[Callable[[], None]], None]) -> None:
        copied = self._copy_consumer(self.url)
        self._committed = None
        try:
            while self._takes_part:
                if self._is_aside:
                    self._stay_aside(copied, post)
                else:
                    self._stand(copied, post)
        finally:
            self._end_tenure()
            copied.close()

    def _let_go(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Lead no longer, and return once no engine runs here."""
        self._end_tenure()
        post(self._lose)
        if self._takes_part:
            self._ended.wait(END_S_MAX)

    def _end_tenure(self) -> None:
        if self._takes_part:
            self._tenure.end()

    def _stand(self, copied: Consumer, post: Callable[[Callable[[], None]], None]) -> None:
        """Be one of those from whom the leader is chosen, until it is to leave or to stand aside."""

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            consumer.incremental_assign(partitions)
            if partitions and self._takes_part:
                consumer.pause(partitions)
                self._acting = False
                self._tenure.begin(self._clock.uptime_ms())
                self._ended.clear()
                post(self._win)

        def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            if partitions:
                self._let_go(post)
            consumer.incremental_unassign(partitions)

        def forgotten(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._end_tenure()
            post(self._lose)
            consumer.incremental_unassign(partitions)

        self._act_for_former_self(post)
        consumer = self._group_consumer(self.group)
        try:
            consumer.subscribe([self.topic], on_assign=assigned, on_revoke=revoked, on_lost=forgotten)
            while self._takes_part and not self._is_aside:
                _raise_refusal(consumer.poll(POLL_S), self._servers, self.group)
                if self._tenure.should_ask(asked_ms := self._clock.uptime_ms()):
                    self._ask(consumer, asked_ms)
                self._keep_up(copied, post, looks=self._acting or not self.is_won)
            # No engine may run here once the group has let go of this node.
            if self._takes_part and not self._ended.is_set():
                self._acting = False
                self._let_go(post)
        finally:
            consumer.close()

    def _act_for_former_self(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Lead at once if the group knows nobody but this node; see the module."""
        if not self._has_voted and self._is_alone() and self._takes_part:
            self._acting = True
            self._ended.clear()
            post(self._win)
        self._has_voted = True

    def _stay_aside(self, copied: Consumer, post: Callable[[Callable[[], None]], None]) -> None:
        """Be seen, and not be chosen, until it is to leave or to stand again."""

        def paused(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            consumer.incremental_assign(partitions)
            if partitions:
                consumer.pause(partitions)

        consumer = self._group_consumer(self._aside_group)
        try:
            consumer.subscribe([self.topic], on_assign=paused)
            while self._is_aside and self._takes_part:
                _raise_refusal(consumer.poll(POLL_S), self._servers, self._aside_group)
                self._keep_up(copied, post, looks=True)
        finally:
            consumer.close()

    def _keep_up(self, copied: Consumer, post: Callable[[Callable[[], None]], None], *, looks: bool) -> None:
        """From time to time, see who leads, and commit what there is to say of this node."""
        now_ms = self._clock.monotonic_ms()
        if looks and now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_MS
            self._look(post)
        said = Copied(self._position, self._has_room)
        is_known = said == self._committed and now_ms < self._committed_ms + COMMIT_AGAIN_MS
        if now_ms < self._commit_ms or is_known or (said.position is None and said.has_room is not False):
            return
        self._commit_ms, self._committed_ms, self._committed = now_ms + COMMIT_MS, now_ms, said
        self._commit(copied, said)

    def _look(self, post: Callable[..., None]) -> None:
        """See who leads; a node that acts for its former self ends that once the group has decided."""
        try:
            found = members(self._common, self.group)
        except KafkaException as error:
            logger.debug("cannot see who leads: %s", error_text(error))
            return
        self._warn_of_shared_url(found)
        leaders = [one.url for one in found if one.leads]
        self.leader_url = leaders[0] if leaders else None
        if self._acting and leaders and leaders != [self.url]:
            self._acting = False
            post(self._lose)

    def _warn_of_shared_url(self, found: Sequence[Member]) -> None:
        """Warn of another process with this URL; a former self is soon forgotten."""
        now_ms = self._clock.monotonic_ms()
        if sum(one.url == self.url for one in found) < 2:  # noqa: PLR2004 - this one and another
            self._shared_ms = None
        elif self._shared_ms is None:
            self._shared_ms = now_ms
        elif now_ms - self._shared_ms >= SHARED_MS:
            self._shared_ms = now_ms
            logger.warning(
                "another process takes part in the election with the URL %s of this node: give each its own "
                "--node-url",
                self.url,
            )

    def _is_alone(self) -> bool:
        """Whether all that the group knows is a former self of this process."""
        try:
            found = members(self._common, self.group)
        except KafkaException as error:
            logger.debug("cannot see who takes part: %s", error_text(error))
            return False
        return {one.url for one in found} == {self.url}

    def _ask(self, consumer: Consumer, asked_ms: int) -> None:
        """Commit an offset as a member of the group: the answer shows that this node still is one.

        It is the end of the journal, as far as this node knows: so the group has no lag in Kafka's tools.
        """
        offset = max(self._position or 0, 0)
        place = TopicPartition(self.topic, PARTITION, offset, metadata=str(asked_ms))
        try:
            consumer.commit(offsets=[place], asynchronous=True)
        except KafkaException as error:
            logger.debug("cannot ask whether this node leads: %s", error_text(error))

    def _answered(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        """The coordinator has answered what was asked, or nobody has in time."""
        for place in places:
            if error is None and place.error is None and place.metadata:
                self._tenure.confirmed(int(place.metadata))

    def _commit(self, copied: Consumer, said_now: Copied) -> None:
        """Commit how far this node is; one that had no room to begin with has copied nothing."""
        metadata = "" if said_now.has_room is None else ROOM if said_now.has_room else NO_ROOM
        place = TopicPartition(self.topic, PARTITION, said_now.position or 0, metadata=metadata)
        try:
            copied.commit(offsets=[place], asynchronous=True)
        except KafkaException as error:
            logger.debug("cannot say how far the copy is: %s", error_text(error))

    def _group_consumer(self, group: str) -> Consumer:
        return Consumer(self._common | OF_A_VOTER | {"group.id": group, "on_commit": self._answered})

    def _copy_consumer(self, url: str) -> Consumer:
        """Return a consumer that is never subscribed: it has the offset up to which a node has copied."""
        return Consumer(self._common | {"group.id": f"{self.topic}.{url}", "enable.auto.commit": False})

    # ------------------------------------------------------------------ posted to the event loop

    def _win(self) -> None:
        self._has, self.leader_url = True, self.url
        if not self._won.done():
            self._won.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._has = False
        for waited in (self._won, self._lost):
            if not waited.done():
                waited.set_exception(error)
                waited.exception()  # nobody may be waiting for it

    def _lose(self) -> None:
        self._has = False
        if self._won.done() and not self._lost.done():
            self._lost.set_result(None)
