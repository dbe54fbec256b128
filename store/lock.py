"""The lock that lets one process own a data directory, and names it to the others."""

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from types import TracebackType

import orjson

from store.errors import LockedError


class DirectoryLock:
    """An flock on `lock` in the directory; the kernel frees it when the process ends, however it ends."""

    def __init__(self, directory: Path, *, purpose: str, now_text: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "lock"
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._fd, 4096, 0)
            os.close(self._fd)
            raise LockedError(f"{directory} is in use by {_owner_text(owner)}; stop it first") from None
        facts = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "purpose": purpose,
            "since": now_text,
        }
        os.ftruncate(self._fd, 0)
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same, of an unnamed owner
            os.pwrite(self._fd, orjson.dumps(facts), 0)

    def release(self) -> None:
        """Free the lock; the file stays, since removing it would let two processes hold two locks."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "DirectoryLock":
        """Hold the lock for a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release it."""
        self.release()


def _owner_text(owner: bytes) -> str:
    try:
        facts = orjson.loads(owner)
        return f"process {facts['pid']} ({facts['purpose']} on {facts['host']} since {facts['since']})"
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "another process"
