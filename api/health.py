"""Whether the process lives, and whether it takes messages."""

from aiohttp import web

from api import answers, query
from api.gate import Gate
from api.wire import Health, NoQuery
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
        """GET /readyz: 200 once recovered and accepting, else 503 with the status."""
        query.read(request, NoQuery)
        if not self._gate.ready:
            raise NotReadyError(f"the service is not ready: {self._gate.status}")
        return answers.json(Health(self._gate.status))
