"""The lock of a run that writes where several could: one run writes at a time, and the others learn which.

On a local path it is an flock (`timerwheel.store.lock`) on the directory `_lock/<name>`, which the kernel
frees with the process, so a killed run leaves nothing to clear. In an object store it is an object,
`_lock/<name>.json`, made by a conditional PUT; a killed run leaves it there, and the error says how to remove
it.
"""

import contextlib
import os
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from fsspec.implementations.local import LocalFileSystem

from timerwheel.spark_jobs.storage import file_system, put_new, storage_errors, url_of
from timerwheel.store.errors import LockedError
from timerwheel.store.lock import DirectoryLock, is_locked

LOCKS = "_lock"


class Owner(msgspec.Struct, frozen=True):
    """The content of a lock object."""

    run_id: str = ""
    host: str = "an unknown host"
    pid: int = 0
    since: str = "an unknown time"


class RunLock:
    """Holds the lock `name` of a directory or URL from creation to `release`.

    `taken` makes the error for a lock that another run has, from a text that says which run; `purpose` is
    one word for that text.
    """

    def __init__(
        self, url: str, name: str, *, purpose: str, now_text: str, taken: Callable[[str], Exception]
    ) -> None:
        self.run_id = uuid.uuid4().hex
        self._url, self._name = url, name
        self._fs, root = file_system(url)
        self._local: DirectoryLock | None = None
        self._own = Owner(self.run_id, socket.gethostname(), os.getpid(), now_text)
        self._path = _path(root, name)
        if isinstance(self._fs, LocalFileSystem):
            try:
                self._local = DirectoryLock(Path(root, LOCKS, name), purpose=purpose, now_text=now_text)
            except LockedError as error:
                raise taken(str(error)) from None
            return
        try:
            self._lock_remotely(taken)
        except BaseException:
            self.release()
            raise

    def _lock_remotely(self, taken: Callable[[str], Exception]) -> None:
        with contextlib.suppress(FileExistsError):
            put_new(self._fs, self._path, msgspec.json.encode(self._own))
        owner = owner_of(self._fs, self._path)
        if owner != self._own:  # also where the store ignores the condition and somebody was faster
            raise taken(
                f"process {owner.pid} on {owner.host} since {owner.since}; if that process no longer exists, "
                f"delete {self._url}/{LOCKS}/{self._name}.json"
            )

    def is_held(self) -> bool:
        """Whether this run still has the lock: an object in a store may have been deleted since."""
        return self._local is not None or has_lock(self._url, self._name, self.run_id)

    def release(self) -> None:
        """Give up the lock."""
        if self._local is not None:
            self._local.release()
        elif owner_of(self._fs, self._path) == self._own:
            with storage_errors(self._url):
                self._fs.rm(self._path)

    def __enter__(self) -> "RunLock":
        """Hold it for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give it up."""
        self.release()


def has_lock(url: str, name: str, run_id: str) -> bool:
    """Whether the lock object of a store names this run."""
    fs, root = file_system(url)
    return owner_of(fs, _path(root, name)).run_id == run_id


def is_held(url: str, name: str) -> bool:
    """Whether a run has this lock, or one that was killed left it in a store."""
    fs, root = file_system(url)
    if isinstance(fs, LocalFileSystem):
        directory = Path(root, LOCKS, name)
        return directory.is_dir() and is_locked(directory)
    with storage_errors(url):
        return bool(fs.exists(_path(root, name)))


def owner_of(fs: Any, path: str) -> Owner:  # noqa: ANN401 - fsspec has no types
    """What a lock object says; nobody in particular if it is gone or says nothing."""
    try:
        with storage_errors(url_of(fs, path)):
            raw = fs.cat_file(path)
        return msgspec.json.decode(raw, type=Owner)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return Owner()


def _path(root: str, name: str) -> str:
    return f"{root}/{LOCKS}/{name}.json"
