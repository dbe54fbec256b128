"""The lock of one log in an archive: one run writes it at a time, and the others learn which.

On a local path it is an flock (`timerwheel.store.lock`), which the kernel frees with the process, so a killed
run leaves nothing to clear. In an object store it is an object, `_lock/<log id>.json`, made by a conditional
PUT; a killed run leaves it there, and the error says how to remove it.

A task checks that its run still has the lock before it writes a manifest (`confirm`). So a task that outlives
its run, as on an executor that was thought lost, commits nothing:

1. Locally, each attempt writes below `_writing/<log id>/<run>/`, which ends with the run. A rename from there
   then fails, whatever else happens in between.
2. In a store, the object must name the run. Between that look and the PUT of the manifest the lock may
   change; the manifest's own conditional PUT then decides.
"""

import contextlib
import os
import shutil
import socket
import uuid
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

import msgspec
from fsspec.implementations.local import LocalFileSystem

from timerwheel.spark_jobs.archive.store import ArchiveError, put_new
from timerwheel.spark_jobs.storage import file_system
from timerwheel.store.errors import LockedError
from timerwheel.store.files import make_directory
from timerwheel.store.lock import DirectoryLock, is_locked

LOCKS = "_lock"
WRITING = "_writing"


class ArchiveLockedError(ArchiveError):
    """Another run is archiving the log to this archive."""

    code = "archive_locked"


class Run(msgspec.Struct, frozen=True):
    """One archive run over one log: what its tasks need to know. `url` is the archive's."""

    url: str
    log_id: str
    run_id: str

    @property
    def directory(self) -> Path:
        """On a local path, where its attempts write."""
        return Path(file_system(self.url)[1], WRITING, self.log_id, self.run_id)

    def confirm(self) -> None:
        """Raise ArchiveError unless the run still has its lock."""
        fs, root = file_system(self.url)
        if isinstance(fs, LocalFileSystem):
            valid = self.directory.is_dir()
            otherwise = f", or {socket.gethostname()} has another directory at this path than the driver"
        else:
            valid = _owner(fs, f"{root}/{LOCKS}/{self.log_id}.json").run_id == self.run_id
            otherwise = ""
        if not valid:
            raise ArchiveError(
                f"{self.url}: this run no longer has the lock of log {self.log_id}{otherwise}; its task "
                "writes nothing. Run archive again when no other run is at work"
            )


class _Owner(msgspec.Struct, frozen=True):
    """The content of a lock object."""

    run_id: str = ""
    host: str = "an unknown host"
    pid: int = 0
    since: str = "an unknown time"


class ArchiveLock:
    """Holds the lock of a log from creation to `release`. Raises ArchiveLockedError."""

    def __init__(self, url: str, log_id: str, now_text: str) -> None:
        self.run = Run(url, log_id, uuid.uuid4().hex)
        self._fs, self._root = file_system(url)
        self._local: DirectoryLock | None = None
        self._own = _Owner(self.run.run_id, socket.gethostname(), os.getpid(), now_text)
        self._path = f"{self._root}/{LOCKS}/{log_id}.json"
        try:
            if isinstance(self._fs, LocalFileSystem):
                self._lock_locally(now_text)
                self._remove_leftovers()
                make_directory(self.run.directory)
            else:
                self._lock_remotely()
                self._remove_leftovers()
        except BaseException:
            self.release()
            raise

    def _lock_locally(self, now_text: str) -> None:
        run = self.run
        directory = Path(self._root, LOCKS, run.log_id)
        try:
            self._local = DirectoryLock(directory, purpose="archive", now_text=now_text)
        except LockedError as error:
            raise ArchiveLockedError(
                f"{run.url}: another run is archiving log {run.log_id}: {error}"
            ) from None

    def _lock_remotely(self) -> None:
        run = self.run
        with contextlib.suppress(FileExistsError):
            put_new(self._fs, self._path, msgspec.json.encode(self._own))
        owner = _owner(self._fs, self._path)
        if owner != self._own:  # also where the store ignores the condition and somebody was faster
            raise ArchiveLockedError(
                f"{run.url}: another run is archiving log {run.log_id}: process {owner.pid} on {owner.host} "
                f"since {owner.since}; if that process no longer exists, delete "
                f"{run.url}/{LOCKS}/{run.log_id}.json"
            )

    def _remove_leftovers(self) -> None:
        """What a killed run was writing, also one of format 1, whose directories were named by segment."""
        try:
            self._fs.invalidate_cache()
            found = self._fs.ls(f"{self._root}/{WRITING}", detail=False)
        except FileNotFoundError:
            found = []
        for name in found:
            if PurePosixPath(str(name)).name.startswith(self.run.log_id):
                self._fs.rm(str(name), recursive=True)

    def end_writing(self) -> None:
        """End the attempts of this run that are still at work: none can commit after this returns."""
        if self._local is not None:
            directory = self.run.directory
            with contextlib.suppress(FileNotFoundError):
                ended = directory.with_name(directory.name + ".ended")
                directory.rename(ended)
                shutil.rmtree(ended, ignore_errors=True)
            for place in (directory.parent, directory.parent.parent):
                with contextlib.suppress(OSError):  # another run is at work
                    place.rmdir()

    def release(self) -> None:
        """Give up the lock."""
        self.end_writing()
        if self._local is not None:
            self._local.release()
        elif _owner(self._fs, self._path) == self._own:
            self._fs.rm(self._path)

    def __enter__(self) -> "ArchiveLock":
        """Hold it for a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it up."""
        self.release()


def is_held(url: str, log_id: str) -> bool:
    """Whether a run is archiving this log, or one that was killed left its lock in a store."""
    fs, root = file_system(url)
    if isinstance(fs, LocalFileSystem):
        directory = Path(root, LOCKS, log_id)
        return directory.is_dir() and is_locked(directory)
    return bool(fs.exists(f"{root}/{LOCKS}/{log_id}.json"))


def _owner(fs: Any, path: str) -> _Owner:  # noqa: ANN401 - fsspec has no types
    """What a lock object says; nobody in particular if it is gone or says nothing."""
    try:
        return msgspec.json.decode(fs.cat_file(path), type=_Owner)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return _Owner()
