"""A handle on the engine for the API: empty while the engine opens; it also knows when the service stops.

With it the socket can be bound, and `/healthz` can answer, before a long recovery is over.
"""

from timerwheel.engine import Engine
from timerwheel.errors import NotReadyError
from timerwheel.push.push import Push
from timerwheel.push.traces import Traces
from timerwheel.settings import Settings

LOOK_UP_MS = 500
"""How often a waiting request checks whether its client is still there and the service is not stopping."""


class EngineHandle:
    """Holds the engine once it is open. Used on the event loop only."""

    def __init__(self, settings: Settings, traces: Traces | None = None) -> None:
        self.settings = settings
        self.traces = traces
        self.stopping = False
        self._engine: Engine | None = None
        self._push: Push | None = None

    def open(self, engine: Engine, push: Push) -> None:
        """Let requests through to `engine`, and to `push`, which delivers its messages."""
        self._engine = engine
        self._push = push

    @property
    def push(self) -> Push:
        """The push subscriptions; raises `NotReadyError` before `open`."""
        if self._push is None:
            raise NotReadyError("the service is starting and still recovering its data")
        return self._push

    @property
    def engine(self) -> Engine:
        """The engine; raises `NotReadyError` before `open`."""
        if self._engine is None:
            raise NotReadyError("the service is starting and still recovering its data")
        return self._engine

    @property
    def status(self) -> str:
        """One of starting, ready, stopping, or "failed: " and why."""
        if self._engine is None:
            return "starting"
        return "stopping" if self.stopping else self._engine.status

    @property
    def ready(self) -> bool:
        """Whether new messages are accepted."""
        return self._engine is not None and self._engine.ready and not self.stopping
