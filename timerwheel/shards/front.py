"""Runs a node of a service in shards: one process for each shard, and this one, which takes all calls.

Order at the start: the directory is locked, processes of a node that was killed there end, all sockets are
bound, and then the processes start; the node is ready once each shard is served, here or by another node.
Order at the stop: no new connections, the shards stop and finish what they do, their answers are passed on,
and then this process ends.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import msgspec
from aiohttp import web

from timerwheel import tokens
from timerwheel.api.app import make_app
from timerwheel.api.connection_limit import Runner, connections_in_front, raise_file_limit
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http.route import Route
from timerwheel.api.reload import Read, reloaded_on_signal
from timerwheel.api.security.binding import check_binding
from timerwheel.api.security.handshakes import Handshakes
from timerwheel.api.server import (
    NODE_GONE_S_MAX,
    RUNNER_OPTIONS,
    http_logger,
    in_one_line,
    rare_collections,
    stop_signals,
    url_of,
)
from timerwheel.api.service.metrics import Metrics
from timerwheel.clock import Clock, SystemClock
from timerwheel.errors import SettingsError
from timerwheel.listening import ListenError, bound
from timerwheel.model.durations import format_ms
from timerwheel.settings import Serving, Settings
from timerwheel.shards import layout
from timerwheel.shards.calls import Calls
from timerwheel.shards.connection_pool import ConnectionPool
from timerwheel.shards.forwarder import Forwarder
from timerwheel.shards.leaders import Leaders, Place, Seek
from timerwheel.shards.processes import ShardProcess
from timerwheel.shards.sends import Sends
from timerwheel.shards.service import LiveCalls, NodeCalls
from timerwheel.state.log_manifest import shards_in
from timerwheel.store.errors import LockedError
from timerwheel.store.lock import DirectoryLock
from timerwheel.tls import check_own, ssl_context

PURPOSE = "timerwheel in front of shards"
BACKLOG = 1_024
BIND_TRIES = 50
"""How often a run of free ports is looked for, when any port will do."""
FORMER_MS_MAX = int(NODE_GONE_S_MAX * 1000) + 5_000
"""How long processes of a node that was killed may take to end."""
FORMER_PORTS_MS_MAX = 2_000
"""How long their ports may take to be free after that."""
LOOK_MS = 50

logger = logging.getLogger("timerwheel")


class ShardProcessInfo(NamedTuple):
    """A shard of this node, once it is ready."""

    shard: int
    url: str
    pid: int | None


Ready = Callable[[str, list[ShardProcessInfo]], None]


async def serve(
    settings: Settings,
    serving: Serving,
    arguments: Sequence[str],
    ready: Ready,
    *,
    reload: Read | None = None,
    seek: Seek | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; `ready` gets the URL and the shards once each of them is served.

    `arguments` are those of the command line, for the processes of the shards. `seek` asks the elections who
    leads a shard whose process does not answer here. Raises SettingsError,
    TokensError, ListenError, LockedError and ShardFailedError.
    """
    _check(settings, serving)
    context = ssl_context(serving, "http/1.1")
    clock = SystemClock()
    http_logger.addFilter(in_one_line)
    async with AsyncExitStack() as stack:
        sockets = await _taken(stack, settings.data, serving, clock)
        node = _Node(serving, sockets)
        pool = await stack.enter_async_context(
            ConnectionPool(serving, [place.own_url for place in node.places])
        )
        handle = EngineHandle(settings)
        leaders = Leaders(node.places, pool, clock, seek)
        forwarder = Forwarder(leaders, pool)
        front = Front(handle, serving, forwarder, node.url, clock)
        app = front.app()
        handshakes = None if context is None else Handshakes(context, clock)
        runner = Runner(app, connections_in_front(raise_file_limit()), handshakes, **RUNNER_OPTIONS)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.SockSite(runner, sockets[0], backlog=BACKLOG)
        await site.start()
        processes = [
            ShardProcess(place.number, sockets[1 + place.number], arguments, clock) for place in node.places
        ]
        stack.enter_context(
            reloaded_on_signal(reload, settings, serving, context, lambda: _reload_all(pool, processes))
        )
        stop = stack.enter_context(stop_signals())
        stack.enter_context(rare_collections())

        def is_served() -> None:
            front.node.begin()
            layout.keep_number(settings.data, serving.shards)
            shown = [
                ShardProcessInfo(one.shard, node.places[one.shard].public_url, one.pid) for one in processes
            ]
            ready(node.url, shown)

        try:
            await _until_stopped(processes, leaders, stop, is_served)
        finally:
            handle.stop()
            await runner.stop_listening()
            await asyncio.gather(*(process.stop() for process in processes))


async def _until_stopped(
    processes: Sequence[ShardProcess], leaders: Leaders, stop: asyncio.Event, served: Callable[[], None]
) -> None:
    """Run the processes until the signal to stop; raises ShardFailedError."""
    begun = asyncio.Event()

    async def say_once() -> None:
        await leaders.all_known()
        begun.set()
        served()

    tasks = [asyncio.create_task(process.run(begun)) for process in processes]
    tasks += [asyncio.create_task(leaders.watch()), asyncio.create_task(say_once())]
    stopped = asyncio.create_task(_set(stop))
    running = set(tasks)
    try:
        while not stopped.done():
            done, _ = await asyncio.wait({*running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                running.discard(task)
                task.result()
        logger.info("stopping")
    finally:
        for task in (*tasks, stopped):
            task.cancel()


def _reload_all(pool: ConnectionPool, processes: Sequence[ShardProcess]) -> None:
    pool.renew()
    for process in processes:
        process.reload()


async def _set(event: asyncio.Event) -> None:
    await event.wait()


class _Node:
    """The addresses of a node's processes."""

    def __init__(self, serving: Serving, sockets: Sequence[socket.socket]) -> None:
        near = [url_of(serving, _reachable(one.getsockname()[0]), one.getsockname()[1]) for one in sockets]
        bound = [url_of(serving, *one.getsockname()[:2]) for one in sockets]
        self.url = serving.node_url or bound[0]
        """Its URL, as others call it."""
        self.places = [
            Place(
                shard,
                near[1 + shard],
                layout.shard_url(serving.node_url, shard) if serving.node_url else bound[1 + shard],
            )
            for shard in range(serving.shards)
        ]


async def _taken(stack: AsyncExitStack, home: Path, serving: Serving, clock: Clock) -> list[socket.socket]:
    """Take the directory and the addresses; returns their sockets. Raises LockedError and ListenError."""
    stack.enter_context(DirectoryLock(home, purpose=PURPOSE, now_text=format_ms(clock.now_ms())))
    await _former_ended(home, clock)
    sockets = await _bound(serving, clock, FORMER_PORTS_MS_MAX if shards_in(home) else 0)
    stack.enter_context(_closing(sockets))
    return sockets


async def _former_ended(home: Path, clock: Clock) -> None:
    """Wait for processes of a node that was killed, which end by themselves; LockedError."""
    until_ms = clock.monotonic_ms() + FORMER_MS_MAX
    for data in shards_in(home):
        while True:
            try:
                DirectoryLock(data, purpose=PURPOSE, now_text="").release()
            except LockedError:
                if clock.monotonic_ms() >= until_ms:
                    raise
                await clock.sleep_for(LOOK_MS)
            else:
                break


class Front:
    """The calls of a node in front of shards."""

    def __init__(
        self, handle: EngineHandle, serving: Serving, forwarder: Forwarder, url: str, clock: Clock
    ) -> None:
        self._handle = handle
        self._serving = serving
        self._forwarder = forwarder
        self._url = url
        self._clock = clock
        self.node: NodeCalls

    def app(self) -> web.Application:
        """Return the application; TokensError."""
        return make_app(self._handle, self._serving, clock=self._clock, in_front=self._table)

    def _table(self, routes: list[Route], metrics: Metrics) -> list[Route]:
        """Return the routes with the handlers of a node in front of shards."""
        handle, forwarder = self._handle, self._forwarder
        calls = Calls(forwarder, Sends(handle, forwarder, self._clock))
        node = self.node = NodeCalls(
            handle, forwarder, self._url, metrics, has_journal=bool(self._serving.journal)
        )
        live = LiveCalls(handle, forwarder, self._clock)
        own = {
            "getHealth": node.alive,
            "getReadiness": node.ready,
            "getCluster": node.cluster,
            "moveLeader": node.move,
            "getMetrics": node.scrape,
            "live": live.live,
        }
        found: list[Route] = []
        for route in routes:
            if (
                not route.described or route.name == "getToken"
            ):  # the console's page; tokens are those of the node
                found.append(route)
            elif route.name in own:
                head = live.head if route.name == "live" else None
                found.append(msgspec.structs.replace(route, handler=own[route.name], head=head))
            else:
                found.append(msgspec.structs.replace(route, handler=calls.handler_of(route), head=None))
        return found


def _check(settings: Settings, serving: Serving) -> None:
    """Raise SettingsError and TokensError for what would not work, before anything is made."""
    layout.check(settings, serving)
    if serving.journal and not serving.node_url and _reachable(serving.host) != serving.host:
        raise SettingsError(
            f"node_url: with a journal and host = {serving.host}, other nodes need to know where this one "
            "is; give its URL"
        )
    check_binding(serving, tokens.read(settings.data))
    check_own(serving)


def _reachable(host: str) -> str:
    """Return where this machine reaches an address that it listens on."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"  # noqa: PLR2004 - of IP


@contextmanager
def _closing(sockets: Sequence[socket.socket]) -> Iterator[None]:
    try:
        yield
    finally:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.close()


async def _bound(serving: Serving, clock: Clock, patience_ms: int) -> list[socket.socket]:
    """Return listening sockets for the node and its shards, on consecutive ports; ListenError."""
    until_ms, tries = clock.monotonic_ms() + patience_ms, 1
    while True:
        try:
            return _bind_all(serving)
        except ListenError:
            if serving.port == 0 and tries < BIND_TRIES:
                tries += 1
            elif clock.monotonic_ms() < until_ms:
                await clock.sleep_for(LOOK_MS)
            else:
                raise


def _bind_all(serving: Serving) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    port = serving.port
    try:
        for _ in range(1 + serving.shards):
            sockets.append(_bind(serving.host, port))
            port = sockets[-1].getsockname()[1] + 1
    except BaseException:
        for one in sockets:
            one.close()
        raise
    return sockets


def _bind(host: str, port: int) -> socket.socket:
    try:
        return bound(host, port, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise ListenError.of(error, f"{host}:{port}", "choose others with --port") from error
