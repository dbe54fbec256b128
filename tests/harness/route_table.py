"""The table of routes of a service that is not started, for tests that only read it."""

from pathlib import Path

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.groups.window import Windows
from timerwheel.api.http.budget import Budget
from timerwheel.api.http.route import Route
from timerwheel.api.routes import routes
from timerwheel.api.service.figures import FigureKeeper
from timerwheel.api.service.loop_pauses import LoopPauses
from timerwheel.api.service.metrics import Metrics
from timerwheel.clock import SystemClock
from timerwheel.settings import Settings


def route_table(data: Path) -> list[Route]:
    """Every call, with handlers that have no engine yet."""
    handle = EngineHandle(Settings(data=data))
    metrics = Metrics(handle, Budget(handle.settings.in_progress_bytes_max), LoopPauses())
    return routes(handle, metrics, Windows(), FigureKeeper(handle, SystemClock()))
