"""The lock of a data directory: one process owns it, and others can see which.

An owner has a lock exclusively; a process that only looks has it shared, for a moment. So a lock that cannot
be taken, but can be shared, has no owner, and is taken as soon as nobody looks.
"""

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path

import orjson

from timerwheel.store.errors import LockedError
from timerwheel.store.files import make_directory, open_descriptor

_OWNER_BYTES_MAX = 4096
_TRIES_MAX = 10
_NO_DIRECTORY_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP)  # for example NFS


class DirectoryLock:
    """An flock on the directory and one on the file `lock` in it; the kernel frees them with the process.

    The lock of the directory is decisive: it lasts as long as the directory, even if files in it are deleted.
    The file names the owner, and excludes versions that lock only the file.
    """

    def __init__(self, directory: Path, *, purpose: str, now_text: str) -> None:
        self.path = directory / "lock"
        self._fds: list[int] = []
        try:
            fd = self._lock(directory)
        except BlockingIOError:
            owner = _owner(directory, self.path)
            self.release()
            raise LockedError(f"{directory} is in use by {owner}; stop it first") from None
        except BaseException:
            self.release()
            raise
        facts = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "purpose": purpose,
            "since": now_text,
        }
        os.ftruncate(fd, 0)
        with contextlib.suppress(OSError):  # on a full disk the lock holds, but without a name of the owner
            os.pwrite(fd, orjson.dumps(facts), 0)

    def _lock(self, directory: Path) -> int:
        """Take both locks; returns the descriptor of the file."""
        tries = 0
        while True:
            make_directory(directory)
            try:
                self._lock_directory(directory)
                fd = open_descriptor(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
            except FileNotFoundError:
                # A restore that fails removes the directory that it made, which this process may have open.
                self.release()
                tries += 1
                if tries == _TRIES_MAX:
                    raise
                continue
            self._fds.append(fd)
            _own(fd)
            return fd

    def _lock_directory(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._fds.append(fd)
        try:
            _own(fd)
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno not in _NO_DIRECTORY_LOCKS:
                raise

    def release(self) -> None:
        """Free the lock; the file stays and names the last owner."""
        while self._fds:
            os.close(self._fds.pop())

    def __enter__(self) -> "DirectoryLock":
        """Hold the lock for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release it."""
        self.release()


def _own(fd: int) -> None:
    """Take a lock; BlockingIOError if another process owns it."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _look(fd)
        else:
            return


def _look(fd: int) -> None:
    """Return if nobody owns a lock; BlockingIOError otherwise."""
    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.flock(fd, fcntl.LOCK_UN)


def is_locked(directory: Path) -> bool:
    """Whether another process owns the directory; False also if the file system has no directory locks."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _look(fd)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_LOCKS:
            raise
    finally:
        os.close(fd)
    return False


def _owner(directory: Path, file: Path) -> str:
    """The holder of the lock, from the file, or if that is gone or stale, from the kernel's list."""
    return _named_by(file) or _listed(directory) or "another process"


def _named_by(file: Path) -> str | None:
    """The owner named in the file `lock`, which is valid only while that owner holds the lock."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            _look(fd)
        except BlockingIOError:
            facts = orjson.loads(os.pread(fd, _OWNER_BYTES_MAX, 0))
            return f"process {facts['pid']} ({facts['purpose']} on {facts['host']} since {facts['since']})"
        finally:
            os.close(fd)
    return None


def _listed(directory: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        found = directory.stat()
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, _, process, where, *_ = line.split()
            if (kind, where) == ("FLOCK", place) and int(process) > 0:
                return f"another process, {process}"
    return None
