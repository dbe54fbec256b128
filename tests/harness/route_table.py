"""The table of routes of a service that is not started, for tests that only read it."""

from pathlib import Path

from api.budget import Budget
from api.gate import Gate
from api.loop_pauses import LoopPauses
from api.metrics import Metrics
from api.routes.route import Route
from api.routes.table import routes
from timerwheel.settings import Settings


def route_table(data: Path) -> list[Route]:
    """Every call, with handlers that have no engine yet."""
    gate = Gate(Settings(data=data))
    return routes(gate, Metrics(gate, Budget(gate.settings.in_progress_bytes_max), LoopPauses()))
