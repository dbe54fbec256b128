"""How much room the disk has, as far as the engine knows between two looks."""

from timerwheel.errors import DiskReserveError
from timerwheel.settings import Settings
from timerwheel.store.files import Files


class DiskSpace:
    """The free bytes of the data directory's disk. Belongs to the event loop, but for `look`."""

    def __init__(self, files: Files, settings: Settings) -> None:
        self._files = files
        self._settings = settings
        self.free_bytes = 1 << 62

    def look(self) -> int:
        """Ask the disk; a reader thread may do so."""
        return self._files.free_bytes(self._settings.data)

    def refresh(self) -> None:
        """Ask the disk now, on the event loop: after a write that found no room."""
        self.free_bytes = self.look()

    def use(self, size_bytes: int) -> None:
        """So many bytes were written: a fast sender must not use up the reserve before the next look."""
        self.free_bytes -= size_bytes

    @property
    def refusal(self) -> DiskReserveError | None:
        """Why new messages are refused while all else goes on, or None."""
        reserve_bytes = self._settings.disk_reserve_bytes
        return DiskReserveError(self.free_bytes, reserve_bytes) if self.free_bytes < reserve_bytes else None
