"""The handlers of the wheel, the delay levels, health and the cluster."""

from functools import partial

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import query, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import Need, call
from timerwheel.api.security import access
from timerwheel.model import list_cursor
from timerwheel.model.messages import WheelInfo
from timerwheel.runtime.election import NoStandbyError
from timerwheel.tokens import Scope
from timerwheel.wire.cluster import ClusterInfo, Moved, MoveQuery, NodeInfo
from timerwheel.wire.fields import given
from timerwheel.wire.paging import PageQuery
from timerwheel.wire.service import Health, Levels, Peak, Readiness, ReadinessQuery, Slots, SlotsQuery
from timerwheel.wire.tokens import TokenInfo

_reads = partial(call, "GET", needs=Need.TOKEN)
_open = partial(_reads, needs=Need.OPEN, needs_engine=False)


class ServiceCalls:
    """Handlers for the wheel, the delay levels, the caller's token, health and the cluster. Event loop only.

    Those of health also answer while the engine recovers, and those of the cluster while another node leads.
    """

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    @_reads("/v1/wheel", "getWheel", answer=WheelInfo)
    async def wheel(self, _: web.Request) -> web.Response:
        """Get an overview of the wheel.

        Counts per level, the next due time, what is overdue or set aside.
        """
        return responses.json(await self._handle.engine.messages.wheel())

    @_reads("/v1/wheel/slots", "listSlots", answer=Slots, problems=("illegal_cursor",))
    async def slots(self, _: web.Request, params: SlotsQuery) -> web.Response:
        """List the slots of the wheel with their counts."""
        query.check_range("from_ms", params.from_ms, "to_ms", params.to_ms)
        every = await self._handle.engine.messages.slots(given(params.level), params.from_ms, params.to_ms)
        slots, cursor = list_cursor.page(every, list_cursor.slot_key, params.count_max, params.after)
        return responses.json(Slots(slots, params.answered(cursor)))

    @_reads("/v1/wheel/peak", "getPeak", answer=Peak)
    async def peak(self, _: web.Request) -> web.Response:
        """Get the next second in which most messages fall due."""
        return responses.json(Peak(await self._handle.engine.messages.peak()))

    @_reads("/v1/levels", "listLevels", answer=Levels, problems=("illegal_cursor",))
    async def levels(self, _: web.Request, params: PageQuery) -> web.Response:
        """List the delay levels with the pending messages of each."""
        every = await self._handle.engine.messages.levels()
        levels, cursor = list_cursor.page(every, list_cursor.level_key, params.count_max, params.after)
        return responses.json(Levels(levels, params.answered(cursor)))

    @_reads("/v1/token", "getToken", answer=TokenInfo, needs_engine=False)
    async def token(self, request: web.Request) -> web.Response:
        """Get the scopes and topics of the caller's token."""
        token = access.of(request).token
        if token is None:
            return responses.json(TokenInfo(None, [Scope.ADMIN], ["*"], None, None))
        topics = list(token.topics) or ["*"]
        info = TokenInfo(token.name, list(token.scopes), topics, token.rate_per_s, token.expires_ms)
        return responses.json(info)

    @_open("/healthz", "getHealth", answer=Health)
    async def alive(self, _: web.Request) -> web.Response:
        """Alive.

        200 as long as requests are answered at all.
        """
        return responses.json(Health("alive"))

    @_open("/readyz", "getReadiness", answer=Readiness, problems=("not_ready", "disk_reserve", "no_space"))
    async def ready(self, _: web.Request, params: ReadinessQuery) -> web.Response:
        """Readiness: recovery is complete; with for=send, new messages are accepted too.

        200 once recovered, else 503; `?for=send`: 507 while sends are refused.
        """
        if not self._handle.ready:
            raise self._handle.not_ready
        await self._handle.assure_lead()
        role = UNSET if self._handle.cluster is None else self._handle.role
        engine = self._handle.engine
        refusal = engine.disk.refusal
        if refusal is not None and params.purpose == "send":
            raise refusal
        found = Readiness(self._handle.status, role, set_aside=_set_aside(len(engine.firing.quarantined)))
        if refusal is not None:
            found = msgspec.structs.replace(found, refusing=str(refusal), refusing_code=refusal.code)
        return responses.json(found)

    @_reads("/v1/cluster", "getCluster", answer=ClusterInfo, needs_engine=False, problems=("not_ready",))
    async def cluster(self, _: web.Request) -> web.Response:
        """List the nodes with the same journal, and which one leads."""
        cluster, role = self._handle.cluster, self._handle.role
        if cluster is None:
            return responses.json(ClusterInfo("", role, []))
        nodes = [
            NodeInfo(node.url, "leader" if node.is_leader else "standby", node.behind, node.has_room)
            for node in await cluster.nodes()
        ]
        return responses.json(ClusterInfo(cluster.url, role, nodes))

    @call(
        "POST",
        "/v1/cluster/move",
        "moveLeader",
        needs=Need.ADMIN,
        audited=True,
        answer=Moved,
        needs_engine=False,
        problems=("not_ready", "not_leader", "no_standby"),
    )
    async def move(self, _: web.Request, params: MoveQuery) -> web.Response:
        """Let another node lead; answers once it does."""
        if params.shard is not UNSET and params.shard != self._handle.shard:
            raise RequestError(
                "invalid_parameter", f"shard = {params.shard}: this process serves another shard"
            )
        if self._handle.cluster is None:
            raise NoStandbyError("the service has no journal, and no other node")
        return responses.json(Moved(await self._handle.cluster.move()))


def _set_aside(count: int) -> str | UnsetType:
    """Return what to do about due messages that cannot be read."""
    if not count:
        return UNSET
    return (
        f"{count} due message(s) cannot be read, and keep their segments and all behind them: GET /v1/wheel "
        "lists them; if no backup has one, `timerwheel recall ID --damaged` ends it"
    )
