"""The service on a machine in trouble: `python -m tests.harness.troubled --data DIR`, with flags of `serve`.

While the file `hold` lies beside the data directory, no sync comes to its end, as on a disk that hangs. The
wall clock is the machine's and what the file `step` says in milliseconds, read once a signal SIGUSR1 came.
"""

import asyncio
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from timerwheel.api.server import serve
from timerwheel.cli.configuration import configure
from timerwheel.clock import SystemClock
from timerwheel.store.files import DiskFiles, LogFile
from timerwheel.store.write_ring import WriteRing

LOOK_S = 0.005


class HangingFile:
    """A file whose syncs wait while another file is there; all else is the real file's."""

    def __init__(self, file: LogFile, hold: Path) -> None:
        self._file = file
        self._hold = hold

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        """Wait, then sync."""
        while self._hold.exists():
            time.sleep(LOOK_S)
        self._file.sync()


class HangingRing(WriteRing):
    """A ring whose writes wait while another file is there: in a thread, as the kernel has them wait."""

    def __init__(self, hold: Path) -> None:
        super().__init__()
        self._hold = hold
        self._late = os.eventfd(0, os.EFD_CLOEXEC)
        self._late_bytes: int | None = None
        self._is_late_written = False
        self._either = select.epoll()
        self._either.register(super().fd, select.EPOLLIN)
        self._either.register(self._late, select.EPOLLIN)

    @property
    def fd(self) -> int:
        """Readable when a write has ended, late or not."""
        return self._either.fileno()

    def begin(self, fd: int, position: int, data: bytes) -> bool:
        """Begin it, or wait with that."""
        if not self._hold.exists():
            return super().begin(fd, position, data)
        self._buffer[: len(data)] = data
        threading.Thread(target=self._write_late, args=(fd, position, len(data)), daemon=True).start()
        return True

    def _write_late(self, fd: int, position: int, size: int) -> None:
        while self._hold.exists():
            time.sleep(LOOK_S)
        self._late_bytes = os.pwrite(fd, memoryview(self._buffer)[:size], position)
        os.fdatasync(fd)
        os.eventfd_write(self._late, 1)
        self._is_late_written = True

    @property
    def has_ended(self) -> bool:
        """Whether the late one has, or the ring's."""
        return self._is_late_written or super().has_ended

    def ended(self) -> int | None:
        """The end of the late one, or of the ring's."""
        if self._late_bytes is None:
            return super().ended()
        os.eventfd_read(self._late)
        found, self._late_bytes, self._is_late_written = self._late_bytes, None, False
        return found


class HangingFiles(DiskFiles):
    """The real file system, but for the syncs of files that grow."""

    def __init__(self, hold: Path) -> None:
        self._hold = hold

    def open(self, path: Path, *, create: bool = False, direct: bool = False) -> HangingFile:
        """As of the real file system."""
        return HangingFile(super().open(path, create=create, direct=direct), self._hold)

    def open_ring(self, directory: Path) -> HangingRing:
        """As of the real file system, but for the ends of writes."""
        super().open_ring(directory).close()
        return HangingRing(self._hold)


class SteppingClock(SystemClock):
    """The machine's clock and a step, which is another after each call of `step_as`."""

    def __init__(self) -> None:
        self.step_ms = 0

    def now_ms(self) -> int:
        """Wall clock with the step."""
        return super().now_ms() + self.step_ms

    async def wait_until(self, due_ms: int | None, wake: asyncio.Event) -> None:
        """As the machine's, whose own time it is told."""
        await super().wait_until(None if due_ms is None else due_ms - self.step_ms, wake)


def main() -> None:
    """Serve until a signal."""
    arguments = sys.argv[1:]
    flags = dict(zip((name.removeprefix("--") for name in arguments[::2]), arguments[1::2], strict=True))
    found = configure({}, {f"TIMERWHEEL_{name.upper().replace('-', '_')}": flags[name] for name in flags})
    beside = found.settings.data.parent
    clock = SteppingClock()

    def step(*_: object) -> None:
        clock.step_ms = int((beside / "step").read_text())
        (beside / "step").unlink()

    signal.signal(signal.SIGUSR1, step)
    asyncio.run(
        serve(
            found.settings,
            found.serving,
            lambda url: print(url, flush=True),
            files=HangingFiles(beside / "hold"),
            clock=clock,
        )
    )


if __name__ == "__main__":
    main()
