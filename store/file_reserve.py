"""Reserves file descriptors for the log, so that it can open files even when connections use up the rest.

Each reserved descriptor is an open /dev/null until the log needs it. If a connection grabs the slot between
closing one and opening the file, the next one is closed.
"""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from timerwheel.store.files import DiskFile, DiskFiles, ReadPath

_FULL = (errno.EMFILE, errno.ENFILE)

T = TypeVar("T")


class FileReserve:
    """Up to `count` descriptors, including those in use by files of the log. Any thread may call."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.RLock()  # garbage collection may close a file at any point
        self._kept: list[int] = []
        self._held = 0
        self._fill()

    def with_room(self, call: Callable[[], T]) -> T:
        """Run `call`, which opens a file; raises OSError EMFILE if the reserve is used up."""
        try:
            return self._try(call)
        finally:
            self._fill()

    def _try(self, call: Callable[[], T]) -> T:
        while True:
            given_up = self._give_up_one()
            try:
                return call()
            except OSError as error:
                if error.errno not in _FULL or not given_up:
                    raise

    def hold(self) -> None:
        """Count a descriptor that stays open."""
        with self._lock:
            self._held += 1

    def release(self) -> None:
        """Count a descriptor that was closed."""
        with self._lock:
            self._held -= 1
        self._fill()

    def _give_up_one(self) -> bool:
        with self._lock:
            if not self._kept:
                return False
            os.close(self._kept.pop())
            return True

    def _fill(self) -> None:
        with self._lock:
            while len(self._kept) + self._held < self._count:
                try:
                    self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                except OSError as error:
                    if error.errno not in _FULL:
                        raise
                    return  # retried when the next file is closed

    def close(self) -> None:
        """Close the reserved descriptors."""
        with self._lock:
            self._count = 0
            while self._kept:
                os.close(self._kept.pop())


class _ReservedFile(DiskFile):
    """A file that returns its descriptors to the reserve."""

    def __init__(self, fd: int, direct_fd: int, reserve: FileReserve) -> None:
        super().__init__(fd, direct_fd)
        self._reserve = reserve
        for _ in range(1 if direct_fd < 0 else 2):
            reserve.hold()

    def end_writing(self) -> None:
        """Close the descriptor for direct writes."""
        was_open = self._direct_fd >= 0
        super().end_writing()
        if was_open:
            self._reserve.release()

    def close(self) -> None:
        """Close the descriptors once."""
        was_open = self._fd >= 0
        super().close()
        if was_open:
            self._reserve.release()


class ReservedFiles(DiskFiles):
    """The real file system, on descriptors of a reserve."""

    def __init__(self, reserve: FileReserve) -> None:
        self._reserve = reserve

    def open(self, path: Path, *, create: bool = False, direct: bool = False) -> DiskFile:
        """Open for reading and writing, creating with `FILE_MODE`."""
        return self._reserve.with_room(
            lambda: super(ReservedFiles, self).open(path, create=create, direct=direct)
        )

    def open_readonly(self, path: ReadPath) -> DiskFile:
        """Open for reading only."""
        return self._reserve.with_room(lambda: super(ReservedFiles, self).open_readonly(path))

    def _file(self, fd: int, direct_fd: int = -1) -> DiskFile:
        return _ReservedFile(fd, direct_fd, self._reserve)

    def write_whole(self, path: Path, data: bytes) -> None:
        """Write a temporary file, sync, rename, sync the directory."""
        self._reserve.with_room(lambda: super(ReservedFiles, self).write_whole(path, data))

    def names(self, directory: ReadPath) -> list[str]:
        """Sorted names in the directory."""
        return self._reserve.with_room(lambda: super(ReservedFiles, self).names(directory))

    def sync_dir(self, directory: Path) -> None:
        """Fsync on the directory's descriptor."""
        self._reserve.with_room(lambda: super(ReservedFiles, self).sync_dir(directory))
