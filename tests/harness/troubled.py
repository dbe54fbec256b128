"""The service on a machine in trouble: `python -m tests.harness.troubled --data DIR`, with flags of `serve`.

While the file `hold` lies beside the data directory, no sync comes to its end, as on a disk that hangs. The
wall clock is the machine's and what the file `step` says in milliseconds, read once a signal SIGUSR1 came.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import Any

from timerwheel.api.server import serve
from timerwheel.cli.configuration import configure
from timerwheel.clock import SystemClock
from timerwheel.store.files import DiskFiles, LogFile

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


class HangingFiles(DiskFiles):
    """The real file system, but for the syncs of files that grow."""

    def __init__(self, hold: Path) -> None:
        self._hold = hold

    def open(self, path: Path, *, create: bool = False, direct: bool = False) -> HangingFile:
        """As of the real file system."""
        return HangingFile(super().open(path, create=create, direct=direct), self._hold)


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
