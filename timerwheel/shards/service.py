"""What a node in front of shards says of itself: health, the map of the shards, metrics, live figures."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Literal

import aiohttp
import msgspec
from aiohttp import hdrs, web
from msgspec import UNSET
from multidict import CIMultiDict

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import problems, query, responses
from timerwheel.api.http.problems import FULL_DISK_RETRY_S, RequestError
from timerwheel.api.http.route import EVENTS
from timerwheel.api.service.metrics import CONTENT_TYPE, Metrics
from timerwheel.clock import Clock
from timerwheel.errors import NotReadyError, OutcomeUnknownError
from timerwheel.model.live_events import Tick, Wheel
from timerwheel.shards import layout, merging
from timerwheel.shards.forwarder import Call, Forwarder, headers_for_shard, to_client
from timerwheel.shards.leaders import Leaders, Place
from timerwheel.telemetry.background import in_background
from timerwheel.wire.cluster import ClusterInfo, Moved, MoveQuery, NodeInfo, Role, ShardInfo
from timerwheel.wire.fields import NoQuery
from timerwheel.wire.service import Health, Readiness, ReadinessQuery, ShardReadiness

TICK_MS = 1_000
SILENT_MS_MAX = 3_000
"""How long the live view waits for any shard before it ends."""
WRITE_S_MAX = 5.0
ASK_S_MAX = 5.0
OK = 200
ERROR = 400
IN_FRONT = "front"
# A node in front of shards has no engine that could be ready.
_of_engine = re.compile(r"^(?:# (?:HELP|TYPE) )?timerwheel_(?:ready|accepting) .*\n", re.MULTILINE)


class NodeCalls:
    """The handlers of the calls on the node and the service. Event loop only."""

    def __init__(
        self,
        handle: EngineHandle,
        forwarder: Forwarder,
        node_url: str,
        metrics: Metrics,
        *,
        has_journal: bool,
    ) -> None:
        self._handle = handle
        self._forwarder = forwarder
        self._leaders: Leaders = forwarder.leaders
        self._node_url = node_url
        self._metrics = metrics
        self._has_journal = has_journal
        self._has_begun = False

    def begin(self) -> None:
        """Every shard was served once since the start."""
        self._has_begun = True

    # ------------------------------------------------------------------ health

    async def alive(self, request: web.Request) -> web.Response:
        """GET /healthz: 200 as long as requests are answered at all."""
        query.read(request, NoQuery)
        return responses.json(Health("alive"))

    async def ready(self, request: web.Request) -> web.Response:
        """GET /readyz: 200 once all shards were served, and as long as one is; `?for=send` wants all now."""
        wanted = query.read(request, ReadinessQuery)
        places, missing = self._leaders.places, self._leaders.missing
        for_send = wanted.purpose == "send"
        if self._handle.stopping:
            raise NotReadyError(self._handle.refusal)
        if len(missing) == len(places) or (missing and (for_send or not self._has_begun)):
            first = places[missing[0]]
            raise NotReadyError(f"nobody leads shard {', '.join(map(str, missing))}: {first.why}")
        answers = [place.readiness for place in places]
        refusing = next((one for one in answers if one.refusing), None)
        if refusing is not None and for_send:
            return problems.problem(
                refusing.refusing_code, refusing.refusing, headers={"Retry-After": str(FULL_DISK_RETRY_S)}
            )
        status = f"ready, but for shard {', '.join(map(str, missing))}" if missing else "ready"
        role = self._role if self._has_journal else UNSET
        shards = [ShardReadiness(place.number, _role_of(place), place.shown_leader) for place in places]
        aside = "; ".join(
            f"shard {shard}: {one.set_aside}" for shard, one in enumerate(answers) if one.set_aside
        )
        found = Readiness(status, role, shards=shards, set_aside=aside or UNSET)
        if refusing is not None:
            found = msgspec.structs.replace(
                found, refusing=refusing.refusing, refusing_code=refusing.refusing_code
            )
        return responses.json(found)

    @property
    def _role(self) -> Role:
        if not self._has_journal:
            return "alone"
        return "leader" if any(place.role == "leader" for place in self._leaders.places) else "standby"

    # ------------------------------------------------------------------ the map

    async def cluster(self, request: web.Request) -> web.Response:
        """GET /v1/cluster: the nodes, and for each shard its processes, and which of them leads."""
        query.read(request, NoQuery)
        shards = await asyncio.gather(*(self._shard(request, place) for place in self._leaders.places))
        return responses.json(ClusterInfo(self._node_url, self._role, _nodes(shards), list(shards)))

    async def _shard(self, request: web.Request, place: Place) -> ShardInfo:
        own: Role = "alone" if not self._has_journal else "leader" if place.role == "leader" else "standby"
        nodes = [NodeInfo(place.public_url, own, 0 if own != "standby" else None)]
        if self._has_journal:
            with contextlib.suppress(NotReadyError, OutcomeUnknownError, TimeoutError):
                nodes = await self._nodes_of(request, place.number) or nodes
        return ShardInfo(place.number, place.shown_leader, nodes)

    async def _nodes_of(self, request: web.Request, shard: int) -> list[NodeInfo]:
        headers = headers_for_shard(request.headers)
        headers[hdrs.ACCEPT_ENCODING] = "identity"
        call = Call(hdrs.METH_GET, "/v1/cluster", headers, may_repeat=True)
        async with asyncio.timeout(ASK_S_MAX):
            answer = await self._forwarder.ask(shard, call)
        return msgspec.json.decode(answer.body, type=ClusterInfo).nodes if answer.status == OK else []

    async def move(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/cluster/move?shard=N: lets another node lead the shard, whichever leads it now."""
        wanted = query.read(request, MoveQuery)
        if wanted.shard is UNSET or wanted.shard >= self._leaders.count:
            raise RequestError(
                "invalid_parameter", f"shard: say which shard to move, from 0 to {self._leaders.count - 1}"
            )
        call = Call(hdrs.METH_POST, "/v1/cluster/move", headers_for_shard(request.headers))
        answer = await self._forwarder.ask(wanted.shard, call)
        if answer.status >= ERROR:
            return to_client(answer)
        leader = msgspec.json.decode(answer.body, type=Moved).leader
        return responses.json(Moved(layout.node_url(leader, wanted.shard)))

    # ------------------------------------------------------------------ metrics

    async def scrape(self, request: web.Request) -> web.Response:
        """GET /metrics: of this node's processes, each with the label `shard`."""
        own = await self._metrics.scrape(request)
        assert isinstance(own.body, bytes)
        texts = [(IN_FRONT, _of_engine.sub("", own.body.decode()) + self._own_families())]
        headers = headers_for_shard(request.headers)
        headers[hdrs.ACCEPT_ENCODING] = "identity"
        found = await asyncio.gather(
            *(self._forwarder.of_own(place, "/metrics", headers) for place in self._leaders.places)
        )
        texts += [(str(shard), text.decode()) for shard, text in enumerate(found) if text is not None]
        merged = merging.metrics(texts)
        return web.Response(
            body=merged.encode(), headers={"Content-Type": CONTENT_TYPE, "X-Content-Type-Options": "nosniff"}
        )

    def _own_families(self) -> str:
        forwarder = self._forwarder
        ready = int(not self._leaders.missing and not self._handle.stopping)
        return f"# TYPE timerwheel_ready gauge\ntimerwheel_ready {ready}\n" + "".join(
            f"# HELP timerwheel_forward_{name}_total {about}\n"
            f"# TYPE timerwheel_forward_{name}_total counter\n"
            f"timerwheel_forward_{name}_total {value}\n"
            for name, about, value in (
                ("calls", "Calls that went to a shard", forwarder.forwarded),
                ("repeats", "Calls that went to another process of their shard", forwarder.repeated),
                ("breaks", "Calls whose connection to their shard broke", forwarder.interrupted),
            )
        )


def _role_of(place: Place) -> Literal["leader", "standby", "waiting"]:
    return "waiting" if place.leader is None else "leader" if place.leader == place.own_url else "standby"


def _nodes(shards: list[ShardInfo] | tuple[ShardInfo, ...]) -> list[NodeInfo]:
    """Return the nodes of all shards' processes, by URL."""
    found: dict[str, list[NodeInfo]] = {}
    for shard in shards:
        for node in shard.nodes:
            found.setdefault(layout.node_url(node.url, shard.shard), []).append(node)
    nodes: list[NodeInfo] = []
    for url, parts in sorted(found.items()):
        roles = {part.role for part in parts}
        role: Role = "alone" if "alone" in roles else "leader" if "leader" in roles else "standby"
        behind = [part.behind for part in parts]
        worst = None if None in behind else max(one for one in behind if one is not None)
        nodes.append(NodeInfo(url, role, worst, _all_have_room(parts)))
    return nodes


def _all_have_room(parts: Sequence[NodeInfo]) -> bool | None:
    rooms = [part.has_room for part in parts]
    return False if False in rooms else None if None in rooms else True


class LiveCalls:
    """The handler of `/v1/live`: the events of all shards, added up once a second. Event loop only."""

    def __init__(self, handle: EngineHandle, forwarder: Forwarder, clock: Clock) -> None:
        self._handle = handle
        self._forwarder = forwarder
        self._clock = clock

    async def live(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/live: events until the client disconnects or the service stops."""
        query.read(request, NoQuery)
        for shard in range(self._forwarder.leaders.count):
            self._forwarder.leaders.url_of(shard)
        ticks: dict[int, Tick] = {}
        wheels: dict[int, Wheel] = {}
        response = responses.events()
        headers = headers_for_shard(request.headers)
        async with _running(
            [self._follow(shard, headers, ticks, wheels) for shard in range(self._forwarder.leaders.count)]
        ):
            try:
                await response.prepare(request)
                await self._stream(request, response, ticks, wheels)
            except (ConnectionError, TimeoutError):
                if request.transport is not None:
                    request.transport.abort()
        return response

    async def head(self, request: web.Request) -> web.Response:
        """HEAD /v1/live: the headers of GET."""
        query.read(request, NoQuery)
        return responses.events_head()

    async def _follow(
        self, shard: int, headers: CIMultiDict[str], ticks: dict[int, Tick], wheels: dict[int, Wheel]
    ) -> None:
        """Keep the newest events of a shard, whichever process serves it."""
        call = Call(hdrs.METH_GET, "/v1/live", headers, may_repeat=True, waits=True)
        while True:
            with contextlib.suppress(
                NotReadyError,
                OutcomeUnknownError,
                aiohttp.ClientError,
                OSError,
                TimeoutError,
            ):
                async with (
                    await self._forwarder.open(shard, call) as upstream,
                    self._forwarder.leaders.serving(shard, str(upstream.url)),
                ):
                    if upstream.status == OK and upstream.content_type == EVENTS:
                        await _read(upstream, shard, ticks, wheels)
            ticks.pop(shard, None)
            wheels.pop(shard, None)
            await self._clock.sleep_for(TICK_MS)

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        ticks: dict[int, Tick],
        wheels: dict[int, Wheel],
    ) -> None:
        shown: list[Wheel] = []
        heard_ms = self._clock.monotonic_ms()
        while request.transport is not None:
            now_ms = self._clock.monotonic_ms()
            if self._handle.stopping:
                await _end(response, self._handle.refusal)
                return
            if ticks:
                heard_ms = now_ms
                missing = [one for one in range(self._forwarder.leaders.count) if one not in ticks]
                await _event(response, "tick", merging.tick(list(ticks.values()), missing))
            elif now_ms - heard_ms >= SILENT_MS_MAX:
                await _end(response, "no shard answers; try again in some seconds")
                return
            newest = list(wheels.values())
            if newest and newest != shown:
                await _event(response, "wheel", merging.wheel_event(newest))
                shown = newest
            await self._clock.sleep_for(TICK_MS)


@contextlib.asynccontextmanager
async def _running(loops: Sequence[Coroutine[None, None, None]]) -> AsyncIterator[None]:
    tasks = [in_background(loop, "following the live view of a shard") for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(
    upstream: aiohttp.ClientResponse, shard: int, ticks: dict[int, Tick], wheels: dict[int, Wheel]
) -> None:
    kind = ""
    async for line in upstream.content:
        if line.startswith(b"event: "):
            kind = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            if kind == "tick":
                ticks[shard] = msgspec.json.decode(line[6:], type=Tick)
            elif kind == "wheel":
                wheels[shard] = msgspec.json.decode(line[6:], type=Wheel)


async def _event(response: web.StreamResponse, kind: str, content: Tick | Wheel) -> None:
    await _write(response, b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(content)))


async def _end(response: web.StreamResponse, why: str) -> None:
    await _write(response, problems.end_event(problems.problem(NotReadyError.code, why)))


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Write; raises TimeoutError if the client reads nothing."""
    async with asyncio.timeout(WRITE_S_MAX):
        await response.write(data)
