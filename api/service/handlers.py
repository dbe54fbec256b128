"""The handlers of the wheel, the delay levels, health and the cluster."""

from aiohttp import web
from msgspec import UNSET

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import query, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.security import access
from timerwheel.runtime.election import NoStandbyError
from timerwheel.tokens import Scope
from timerwheel.wire.cluster import ClusterInfo, Moved, MoveQuery, NodeInfo
from timerwheel.wire.fields import NoQuery
from timerwheel.wire.service import Health, Levels, Readiness, ReadinessQuery, Slots, SlotsQuery
from timerwheel.wire.tokens import TokenInfo


class TokenCalls:
    """The handler for `/v1/token`. Event loop only."""

    async def get(self, request: web.Request) -> web.Response:
        """GET /v1/token: what the caller may do."""
        query.read(request, NoQuery)
        token = access.of(request).token
        if token is None:
            return responses.json(TokenInfo(None, [Scope.ADMIN], ["*"], None, None))
        topics = list(token.topics) or ["*"]
        info = TokenInfo(token.name, list(token.scopes), topics, token.rate_per_s, token.expires_ms)
        return responses.json(info)


class HealthCalls:
    """Handlers for `/healthz` and `/readyz`; they also answer while the engine recovers."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    async def alive(self, request: web.Request) -> web.Response:
        """GET /healthz: 200 as long as requests are answered at all."""
        query.read(request, NoQuery)
        return responses.json(Health("alive"))

    async def ready(self, request: web.Request) -> web.Response:
        """GET /readyz: 200 once recovered, else 503; `?for=send`: 507 while sends are refused."""
        wanted = query.read(request, ReadinessQuery)
        if not self._handle.ready:
            raise self._handle.not_ready
        role = UNSET if self._handle.cluster is None else self._handle.role
        refusal = self._handle.engine.disk.refusal
        if refusal is None:
            return responses.json(Readiness(self._handle.status, role))
        if wanted.purpose == "send":
            raise refusal
        return responses.json(Readiness(self._handle.status, role, str(refusal)))


class ClusterCalls:
    """Handlers for `/v1/cluster`; they also answer while another node leads. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    async def get(self, request: web.Request) -> web.Response:
        """GET /v1/cluster: the nodes with the same journal."""
        query.read(request, NoQuery)
        cluster, role = self._handle.cluster, self._handle.role
        if cluster is None:
            return responses.json(ClusterInfo("", role, []))
        nodes = [
            NodeInfo(node.url, "leader" if node.is_leader else "standby", node.behind)
            for node in await cluster.nodes()
        ]
        return responses.json(ClusterInfo(cluster.url, role, nodes))

    async def move(self, request: web.Request) -> web.Response:
        """POST /v1/cluster/move: lets another node lead."""
        wanted = query.read(request, MoveQuery)
        if wanted.shard is not UNSET and wanted.shard != self._handle.shard:
            raise RequestError(
                "invalid_parameter", f"shard = {wanted.shard}: this process is not of that shard"
            )
        if self._handle.cluster is None:
            raise NoStandbyError("the service has no journal, and no other node")
        return responses.json(Moved(await self._handle.cluster.move()))


class WheelCalls:
    """Handlers for `/v1/wheel` and `/v1/levels`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    async def wheel(self, request: web.Request) -> web.Response:
        """GET /v1/wheel: counts per level, the next due time, what is overdue or set aside."""
        query.read(request, NoQuery)
        return responses.json(await self._handle.engine.messages.wheel())

    async def slots(self, request: web.Request) -> web.Response:
        """GET /v1/wheel/slots: counts per slot."""
        wanted = query.read(request, SlotsQuery)
        query.check_range("from_ms", wanted.from_ms, "to_ms", wanted.to_ms)
        level = None if wanted.level is UNSET else wanted.level
        slots = await self._handle.engine.messages.slots(level, wanted.from_ms, wanted.to_ms)
        return responses.json(Slots(slots))

    async def levels(self, request: web.Request) -> web.Response:
        """GET /v1/levels: the delay levels with the pending messages of each."""
        query.read(request, NoQuery)
        return responses.json(Levels(await self._handle.engine.messages.levels()))
