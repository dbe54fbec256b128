"""The front for RocketMQ's remoting clients: listens, and gives each request to the part that serves it.

1. Requests of one connection are served side by side, and answered as they are done.
2. A code that is not served is answered with NOT_SUPPORTED at once.
3. At the stop, no new request is taken; what is in progress is finished, at most for FINISH_MS_MAX.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from timerwheel import tls
from timerwheel.clock import Clock
from timerwheel.engine import Engine
from timerwheel.errors import SettingsError
from timerwheel.listening import ListenError, bound
from timerwheel.rocketmq.admin import Admin
from timerwheel.rocketmq.assignments import Assignments
from timerwheel.rocketmq.codes import RESULT_NAMES, Call, Result
from timerwheel.rocketmq.connection import Connection
from timerwheel.rocketmq.frame import Frame
from timerwheel.rocketmq.greeting import Greeting
from timerwheel.rocketmq.locks import Locks
from timerwheel.rocketmq.lookups import Lookups
from timerwheel.rocketmq.members import Members
from timerwheel.rocketmq.name_server import Advertised, NameServer
from timerwheel.rocketmq.offsets import Offsets
from timerwheel.rocketmq.pops import Pops
from timerwheel.rocketmq.producers import Producers
from timerwheel.rocketmq.pulls import Pulls
from timerwheel.rocketmq.refusals import answer_of
from timerwheel.rocketmq.repeats import Repeats
from timerwheel.rocketmq.request import SMALL_BYTES, TOO_MUCH, Answer, Callers, Handler, Request
from timerwheel.rocketmq.retries import Retries
from timerwheel.rocketmq.sends import Sends
from timerwheel.rocketmq.stored_message import Host
from timerwheel.rocketmq.topics import Topics
from timerwheel.rocketmq.transactions import Transactions
from timerwheel.settings import Serving, address_of
from timerwheel.telemetry.background import in_background

CONNECTIONS_MAX: Final = 1_000
FINISH_MS_MAX: Final = 10_000
LOOK_MS: Final = 10_000
TOKENS_LOOK_MS: Final = 1_000
BACKLOG: Final = 128
LARGE_BYTES: Final = 1 << 20
"""A connection for which so many bytes are held idle is closed if they keep others from being served."""
TOKEN_FIELD: Final = "AccessKey"  # noqa: S105 - a name

logger = logging.getLogger(__name__)


class Remoting:
    """The calls of the protocol on an open engine. Event loop only; each connection belongs to it."""

    def __init__(
        self,
        engine: Engine,
        callers: Callers,
        advertised: Advertised | None,
        repeats_max: int,
        *,
        is_exact: bool = False,
    ) -> None:
        self._engine = engine
        self._callers = callers
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._all_left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held_bytes = 0
        self._bytes_max = engine.settings.in_progress_bytes_max
        producers = Producers()
        self.members = Members(producers)
        topics = Topics(engine)
        name_server = NameServer(topics, advertised)
        self._locks = Locks(engine.clock.monotonic_ms, topics, self.members)
        offsets = Offsets(engine, topics)
        self._pulls = Pulls(engine, topics, name_server, self.members, offsets)
        self._pops = Pops(engine, topics, name_server, self.members)
        assignments = Assignments(engine, topics, offsets, self.members)
        lookups = Lookups(engine, topics, name_server)
        retries = Retries(engine, lookups, name_server, offsets, self._locks)
        repeats = Repeats(repeats_max, engine.clock.monotonic_ms)
        sends = Sends(engine, topics, name_server, repeats, retries, is_exact=is_exact)
        transactions = Transactions(engine, name_server, producers)
        admin = Admin(engine, topics, offsets, self.members)
        engine.groups.offsets.on_rewind.append(admin.rewound)
        self._calls: Mapping[int, Handler] = {
            Call.SEND: sends.take,
            Call.SEND_V2: sends.take,
            Call.SEND_BATCH: sends.take,
            Call.RECALL: sends.recall,
            Call.END_TRANSACTION: transactions.end,
            Call.PULL: self._pulls.pull,
            Call.LITE_PULL: self._pulls.pull,
            Call.POP: self._pops.pop,
            Call.ACKNOWLEDGE: self._pops.acknowledge,
            Call.ACKNOWLEDGE_BATCH: self._pops.acknowledge_batch,
            Call.CHANGE_INVISIBLE_TIME: self._pops.change_invisible_time,
            Call.NOTIFICATION: self._pops.notification,
            Call.CHECK_CLIENT: self._pulls.check_client,
            Call.QUERY_ASSIGNMENT: assignments.query,
            Call.SET_REQUEST_MODE: assignments.set_mode,
            Call.QUERY_OFFSET: offsets.committed,
            Call.UPDATE_OFFSET: offsets.commit,
            Call.MAX_OFFSET: offsets.largest,
            Call.MIN_OFFSET: offsets.smallest,
            Call.SEARCH_OFFSET: offsets.search,
            Call.EARLIEST_STORE_TIME: offsets.earliest_time,
            Call.LOCK_QUEUES: self._locks.lock,
            Call.UNLOCK_QUEUES: self._locks.unlock,
            Call.SEND_BACK: retries.send_back,
            Call.VIEW_MESSAGE: lookups.view,
            Call.QUERY_MESSAGE: lookups.query,
            Call.UPDATE_TOPIC: admin.update_topic,
            Call.DELETE_TOPIC: admin.delete_topic,
            Call.DELETE_TOPIC_ROUTE: admin.delete_route,
            Call.DELETE_KV_CONFIG: admin.delete_config,
            Call.UPDATE_GROUP: admin.update_group,
            Call.DELETE_GROUP: admin.delete_group,
            Call.TOPIC_CONFIG: admin.topic_config,
            Call.TOPIC_STATS: admin.topic_stats,
            Call.ALL_TOPICS: admin.all_topics,
            Call.GROUPS_OF_TOPIC: admin.groups_of_topic,
            Call.CONSUME_STATS: admin.consume_stats,
            Call.CONSUMER_CONNECTIONS: admin.connections,
            Call.BROKER_RUNTIME_INFO: admin.runtime_info,
            Call.RESET_OFFSETS: admin.reset_offsets,
            Call.ROUTE: name_server.route,
            Call.CLUSTER: name_server.cluster,
            Call.HEARTBEAT: self.members.heartbeat,
            Call.UNREGISTER: self.members.unregister,
            Call.CONSUMER_LIST: self.members.list,
        }
        self._call_names = {code: Call(code).name for code in self._calls}

    # ------------------------------------------------------------------ what connections say

    def connection(self) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(self)

    def has_room(self, greeted: int) -> bool:
        """See `House`."""
        return not self._is_stopping and len(self._connections) + greeted < CONNECTIONS_MAX

    def opened(self, connection: Connection) -> bool:
        """See `Receiver`."""
        if not self.has_room(0):
            logger.warning(
                "refusing a connection of %s: %d are open", connection.peer.address, CONNECTIONS_MAX
            )
            return False
        self._connections.add(connection)
        return True

    def closed(self, connection: Connection) -> None:
        """See `Receiver`."""
        self._connections.discard(connection)
        if not self._connections and self._is_stopping and not self._all_left.done():
            self._all_left.set_result(None)
        self.members.closed(connection)
        self._locks.closed(connection)
        self._pulls.closed(connection)
        self._pops.closed(connection)

    def hold(self, change_bytes: int) -> bool:
        """See `Receiver`."""
        self._held_bytes += change_bytes
        return self._held_bytes <= self._bytes_max

    def make_room(self, least_bytes: int = 0) -> None:
        """See `Receiver`."""
        idle = max(self._connections, key=lambda one: one.idle_bytes, default=None)
        if idle is not None and idle.idle_bytes >= least_bytes:
            held = f"{idle.idle_bytes} bytes are held for it"
            logger.warning("closing the connection of %s: %s, and memory is short", idle.peer.address, held)
            idle.abort()

    def now_ms(self) -> int:
        """See `Receiver`."""
        return self._engine.clock.monotonic_ms()

    def received(self, connection: Connection, frame: Frame) -> None:
        """Serve a request."""
        size_bytes = frame.size_bytes
        caller = self._callers.of_key(frame.fields.get(TOKEN_FIELD, ""))
        has_room = connection.began(size_bytes)
        if caller is None:
            request = Request(connection, frame, _NOBODY, size_bytes, self._count)
            request.answer(Answer(Result.NO_PERMISSION, remark=_NO_TOKEN))
            return
        connection.callers.setdefault(caller.name, caller)
        request = Request(connection, frame, caller, size_bytes, self._count)
        handler = self._calls.get(frame.code, _unknown)
        if caller.take():
            busy = f"the token {caller.name!r} has exceeded its rate limit"
            request.answer(Answer(Result.SYSTEM_BUSY, remark=busy))
            return
        if not has_room and (frame.body or size_bytes > SMALL_BYTES):
            self.make_room(LARGE_BYTES)
            request.answer(Answer(Result.SYSTEM_BUSY, remark=TOO_MUCH))
            return
        try:
            found = handler(request) if self._engine.lead.is_certain else self._assured(handler, request)
        except Exception as error:  # noqa: BLE001 - whatever it is becomes an answer
            request.answer(answer_of(error))
            return
        if isinstance(found, Answer):
            request.answer(found)
        elif found is not None:
            task = asyncio.create_task(self._serve(request, found))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _assured(self, handler: Handler, request: Request) -> Answer | None:
        """Serve a request once it is certain that no other process leads."""
        await self._engine.lead.assure()
        if request.link.is_closed:  # nobody would take back what it gets now: a lock, a place in a group
            return Answer(Result.SYSTEM_ERROR, remark="the connection is closed")
        found = handler(request)
        return found if found is None or isinstance(found, Answer) else await found

    async def _serve(self, request: Request, work: Awaitable[Answer | None]) -> None:
        try:
            answer = await work
        except Exception as error:  # noqa: BLE001 - as above
            answer = answer_of(error)
        if answer is not None:  # else the handler answers by itself
            request.answer(answer)

    def _count(self, code: int, result: int) -> None:
        """Count a request that was answered; clients choose codes, so those not served share a name."""
        call = self._call_names.get(code, "other")
        self._engine.counters.front_calls["remoting", call, RESULT_NAMES[result]] += 1

    # ------------------------------------------------------------------ while it runs, and the end

    def look(self) -> None:
        """Close connections that have been silent, or slow, for too long, or hold too much."""
        if not self.hold(0):
            self.make_room(LARGE_BYTES)
        for connection in list(self._connections):
            if connection.is_too_slow:
                logger.info("closing the connection of %s: too slow", connection.peer.address)
                connection.abort()

    def look_at_tokens(self) -> None:
        """Close the connections of callers whose tokens have ended: they may hold requests, and be asked."""
        for connection in list(self._connections):
            if not all(map(self._callers.is_current, connection.callers.values())):
                logger.info("closing the connection of %s: its token has ended", connection.peer.address)
                connection.abort()

    async def close(self) -> None:
        """Finish what is in progress, and close all connections."""
        self._is_stopping = True
        self._pulls.stop()
        self._pops.stop()
        for connection in list(self._connections):
            connection.finish()
        if self._connections:
            await self._engine.clock.wait_for(self._all_left, FINISH_MS_MAX)
        for connection in list(self._connections):
            connection.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class RemotingFront:
    """Listens for RocketMQ's clients: `bind` first, `open` once the engine is ready, then `close`.

    With a certificate it speaks TLS too, and reads the certificate again when its files change.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._host = Host(*address_of(serving.rocketmq))
        self._context: ssl.SSLContext | None = None
        self._certificates: tls.Digests = {}
        self.greeting: Greeting | None = None
        """Greets clients while it is open with a certificate."""
        self._socket: socket.socket | None = None
        self._listener: asyncio.Server | None = None
        self._remoting: Remoting | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def address(self) -> Host:
        """Where it listens; the port is the bound one."""
        assert self._socket is not None
        name = self._socket.getsockname()
        return Host(name[0], name[1])

    def bind(self) -> None:
        """Take the address, without listening yet; ListenError, SettingsError for a certificate."""
        self._certificates = tls.digests(self._serving)
        self._context = tls.ssl_context(self._serving)
        host, port = self._host
        try:
            self._socket = bound(host, port)
        except OSError as error:
            where = f"{host}:{port} for RocketMQ's clients"
            raise ListenError.of(error, where, "choose one with --rocketmq") from error
        self._host = self.address

    async def open(self, engine: Engine, callers: Callers) -> None:
        """Serve clients with this engine."""
        assert self._socket is not None
        serving, advertised = self._serving, None
        if serving.rocketmq_address:
            advertised = await Advertised.of(Host(*address_of(serving.rocketmq_address)))
        repeats_max, is_exact = serving.rocketmq_repeats_max, serving.rocketmq_exact
        remoting = Remoting(engine, callers, advertised, repeats_max, is_exact=is_exact)
        self._remoting = remoting
        make: Callable[[], asyncio.Protocol] = remoting.connection
        if self._context is not None:
            self.greeting = Greeting(remoting, self._context, engine.clock)
            make = self.greeting.protocol
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(make, sock=self._socket, backlog=BACKLOG)
        self._watch = in_background(self._keep_looking(engine.clock), "the front for RocketMQ's clients")
        logger.info("serving RocketMQ's clients on %s:%d", *self.address)

    async def _keep_looking(self, clock: Clock) -> None:
        """Close connections that have been silent for too long, look at tokens and at the certificate."""
        assert self._remoting is not None
        looked_ms = clock.monotonic_ms()
        while True:
            await clock.sleep_for(TOKENS_LOOK_MS)
            self._remoting.look_at_tokens()
            if clock.monotonic_ms() - looked_ms < LOOK_MS:
                continue
            looked_ms = clock.monotonic_ms()
            self._remoting.look()
            if self.greeting is not None:
                self.greeting.look()
            self._renew()

    def _renew(self) -> None:
        """Use the certificate and key from their files, if these have changed and can be used."""
        found = tls.digests(self._serving)
        if self._context is None or found == self._certificates:
            return
        try:
            tls.reload(self._context, self._serving)
        except SettingsError as error:
            logger.error("the certificate for RocketMQ's clients stays the old one: %s", error)  # noqa: TRY400
        else:
            logger.info("RocketMQ's clients: %s", tls.news(self._certificates, found))
        self._certificates = found

    async def close(self) -> None:
        """Stop listening, finish requests in progress, close all connections."""
        listener, remoting, greeting, watch = self._listener, self._remoting, self.greeting, self._watch
        self._listener = self._remoting = self.greeting = self._watch = None
        if listener is not None:
            listener.close()
        elif self._socket is not None:
            self._socket.close()
        if watch is not None:
            watch.cancel()
        if greeting is not None:
            greeting.close()
        if remoting is not None:
            await remoting.close()


def _unknown(request: Request) -> Answer:
    return Answer(Result.NOT_SUPPORTED, remark=f"request code {request.frame.code} is not supported")


class _Nobody:
    name = "nobody"
    has_all_topics = False

    def holds(self, scope: object) -> bool:  # noqa: ARG002 - as Caller
        return False

    def may(self, topic: str) -> bool:  # noqa: ARG002 - as Caller
        return False

    def take(self) -> int:
        return 0

    def charge(self, messages: int) -> None:
        pass


_NOBODY = _Nobody()
_NO_TOKEN = "give a token of this service as the AccessKey; any SecretKey will do"  # noqa: S105 - no secret
