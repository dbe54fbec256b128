"""Free disk space, as far as the engine knows between two measurements, and whether the index has room."""

from collections.abc import Callable

from timerwheel.errors import DiskReserveError, IndexFullError
from timerwheel.settings import Settings
from timerwheel.store.files import Files


class DiskSpace:
    """The free bytes of the data directory's disk. Belongs to the event loop, except `look`."""

    def __init__(self, files: Files, settings: Settings) -> None:
        self._files = files
        self._settings = settings
        self.free_bytes = 1 << 62
        self._index_refusal: Callable[[], IndexFullError | None] = lambda: None

    def ask_index(self, refusal: Callable[[], IndexFullError | None]) -> None:
        """Have this called for why nothing more may wait for the index, if that is so."""
        self._index_refusal = refusal

    @property
    def reserve_bytes(self) -> int:
        """What must stay free for new messages to be taken; a reload may change it."""
        return self._settings.disk_reserve_bytes

    def look(self) -> int:
        """Measure the free space; a reader thread may call this."""
        return self._files.free_bytes(self._settings.data)

    def refresh(self) -> None:
        """Measure the free space now, on the event loop, after a write that found no room."""
        self.free_bytes = self.look()

    def use(self, size_bytes: int) -> None:
        """Subtract written bytes: a fast sender must not use up the reserve before the next measurement."""
        self.free_bytes = max(self.free_bytes - size_bytes, 0)

    @property
    def refusal(self) -> DiskReserveError | IndexFullError | None:
        """Return why new messages are refused while everything else continues, or None."""
        reserve_bytes = self.reserve_bytes
        if self.free_bytes < reserve_bytes:
            return DiskReserveError(self.free_bytes, reserve_bytes)
        return self._index_refusal()
