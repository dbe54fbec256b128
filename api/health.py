"""Whether the process lives, and whether it takes messages."""

from aiohttp import web

from timerwheel.api import answers, query
from timerwheel.api.gate import Gate
from timerwheel.api.wire import Health, NoQuery, Readiness, ReadinessQuery
from timerwheel.errors import NotReadyError


class HealthCalls:
    """Handlers for `/healthz` and `/readyz`: they answer while the engine recovers, too."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def alive(self, request: web.Request) -> web.Response:
        """GET /healthz: 200 as long as requests are answered at all."""
        query.read(request, NoQuery)
        return answers.json(Health("alive"))

    async def ready(self, request: web.Request) -> web.Response:
        """GET /readyz: 200 once recovered, else 503; `?for=send`: 507 while sends are refused."""
        wanted = query.read(request, ReadinessQuery)
        if not self._gate.ready:
            raise NotReadyError(f"the service is not ready: {self._gate.status}")
        refusal = self._gate.engine.refusal
        if refusal is None:
            return answers.json(Readiness(self._gate.status))
        if wanted.purpose == "send":
            raise refusal
        return answers.json(Readiness(self._gate.status, str(refusal)))
