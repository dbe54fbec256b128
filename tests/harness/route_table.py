"""The table of routes of a service that is not started, for tests that only read it."""

from pathlib import Path

from timerwheel.api.budget import Budget
from timerwheel.api.gate import Gate
from timerwheel.api.loop_pauses import LoopPauses
from timerwheel.api.metrics import Metrics
from timerwheel.api.routes.route import Route
from timerwheel.api.routes.table import routes
from timerwheel.settings import Settings


def route_table(data: Path) -> list[Route]:
    """Every call, with handlers that have no engine yet."""
    gate = Gate(Settings(data=data))
    return routes(gate, Metrics(gate, Budget(gate.settings.in_progress_bytes_max), LoopPauses()))
