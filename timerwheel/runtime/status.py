"""The states of an engine's life, and which may follow which."""

from enum import StrEnum

from timerwheel.errors import NotReadyError


class Status(StrEnum):
    """A state of an engine's life."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPING = "stopping"
    CLOSED = "closed"


_NEXT = {
    Status.STARTING: {Status.READY, Status.FAILED, Status.STOPPING, Status.CLOSED},
    Status.READY: {Status.FAILED, Status.STOPPING, Status.CLOSED},
    Status.FAILED: {Status.STOPPING, Status.CLOSED},
    Status.STOPPING: {Status.FAILED, Status.CLOSED},
    Status.CLOSED: set(),
}


class Life:
    """The status of one engine, and the reason if it failed. Belongs to the event loop."""

    def __init__(self) -> None:
        self.status = Status.STARTING
        self._reason = ""

    def __str__(self) -> str:
        """Return the status in words, for people and for `/readyz`."""
        return f"{self.status}: {self._reason}" if self.status is Status.FAILED else str(self.status)

    def become(self, status: Status, reason: str = "") -> bool:
        """Enter a state; returns False, and changes nothing, if it may not follow the current one."""
        if status not in _NEXT[self.status]:
            return False
        self.status, self._reason = status, reason
        return True

    @property
    def ready(self) -> bool:
        """Whether the engine accepts work."""
        return self.status is Status.READY

    def check_ready(self) -> None:
        """Raise NotReadyError unless the engine accepts work."""
        if not self.ready:
            raise NotReadyError(f"the service is {self}")
