"""The lock of one log in an archive (`spark_jobs.run_lock`): one run writes the log at a time.

A task checks that its run still has the lock before it writes a manifest (`confirm`). So a task that outlives
its run, as on an executor that was thought lost, commits nothing:

1. Locally, each attempt writes below `_writing/<log id>/<run>/`, which ends with the run. A rename from there
   then fails, whatever else happens in between.
2. In a store, the object must name the run. Between that look and the PUT of the manifest the lock may
   change; the manifest's own conditional PUT then decides.
"""

import contextlib
import shutil
import socket
from pathlib import Path

import msgspec
from fsspec.implementations.local import LocalFileSystem

from timerwheel.spark_jobs.archive.store import ArchiveError
from timerwheel.spark_jobs.run_lock import RunLock, has_lock
from timerwheel.spark_jobs.storage import file_system, listed, storage_errors
from timerwheel.store.files import make_directory

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
        if isinstance(file_system(self.url)[0], LocalFileSystem):
            valid = self.directory.is_dir()
            otherwise = f", or {socket.gethostname()} has another directory at this path than the driver"
        else:
            valid = has_lock(self.url, self.log_id, self.run_id)
            otherwise = ""
        if not valid:
            raise ArchiveError(
                f"{self.url}: this run no longer has the lock of log {self.log_id}{otherwise}; its task "
                "writes nothing. Run archive again when no other run is at work"
            )


class ArchiveLock:
    """Holds the lock of a log from creation to `release`. Raises ArchiveLockedError."""

    def __init__(self, url: str, log_id: str, now_text: str) -> None:
        self._lock = RunLock(
            url,
            log_id,
            purpose="archive",
            now_text=now_text,
            taken=lambda who: ArchiveLockedError(f"{url}: another run is archiving log {log_id}: {who}"),
        )
        self.run = Run(url, log_id, self._lock.run_id)
        self._fs, self._root = file_system(url)
        self._is_local = isinstance(self._fs, LocalFileSystem)
        try:
            self._remove_leftovers()
            if self._is_local:
                make_directory(self.run.directory)
        except BaseException:
            self.release()
            raise

    def _remove_leftovers(self) -> None:
        """What a killed run was writing, also one of format 1, whose directories were named by segment."""
        place = f"{self._root}/{WRITING}"
        with storage_errors(self.run.url):
            try:
                self._fs.invalidate_cache()
                found = listed(self._fs, place)
            except FileNotFoundError:
                found = []
            for name in found:
                if name.startswith(self.run.log_id):
                    self._fs.rm(f"{place}/{name}", recursive=True)

    def end_writing(self) -> None:
        """End the attempts of this run that are still at work: none can commit after this returns."""
        if self._is_local:
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
        self._lock.release()

    def __enter__(self) -> "ArchiveLock":
        """Hold it for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give it up."""
        self.release()
