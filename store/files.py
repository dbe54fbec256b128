"""The few file operations that durability depends on, behind one interface.

The log writes only through a `Files`, so that a test can substitute a file layer that crashes at any write,
sync, rename or unlink, drops unsynced data and tears the current write (`tests/harness/faulty.py`).
`doc/log-format.md` states the assumptions about a real disk.

This module also decides who may read what the service writes: `FILE_MODE`, `DIRECTORY_MODE`, `UMASK`.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from timerwheel.store.errors import FormatError

FILE_MODE = 0o640
"""Mode of every file: a log holds messages and the secrets of push. The umask may restrict it further."""
DIRECTORY_MODE = 0o750
UMASK = 0o027
"""The umask of every `timerwheel` command, for files that libraries create."""
_PERMISSIONS = 0o777


class ReadFile(Protocol):
    """An open file with reads at any position."""

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; shorter only at the end of the file."""

    def size(self) -> int:
        """Bytes in the file, durable or not."""

    def close(self) -> None:
        """Release the descriptor; does not sync."""


class ReadFiles(Protocol):
    """The file system operations for reading a log; the file system may be remote."""

    def open_readonly(self, path: Path) -> ReadFile:
        """Open for reading only. Raises FileNotFoundError."""

    def names(self, directory: Path) -> list[str]:
        """Sorted names in a directory."""


class AppendFile(ReadFile, Protocol):
    """An open file with appends at its end and reads at any position."""

    def append(self, data: bytes) -> None:
        """Write all of `data` at the end. An OSError may leave a part of it written."""

    def sync(self) -> None:
        """Return once every byte appended so far is durable (fdatasync)."""

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes; durable after the next `sync`."""


class Files(ReadFiles, Protocol):
    """The file system operations of the log."""

    def open(self, path: Path, *, create: bool = False) -> AppendFile:
        """Open for reading and appending; with `create`, the file must not exist yet."""

    def open_readonly(self, path: Path) -> AppendFile:
        """Open for reading only."""

    def write_whole(self, path: Path, data: bytes) -> None:
        """Create or replace `path` atomically: after any crash it is entirely old or entirely new."""

    def unlink(self, path: Path) -> None:
        """Remove a file; durable after `sync_dir`."""

    def make_dir(self, directory: Path) -> None:
        """Create a directory and its missing parents."""

    def sync_dir(self, directory: Path) -> None:
        """Make creations, renames and removals in a directory durable."""

    def free_bytes(self, directory: Path) -> int:
        """Bytes an ordinary user may still write to the file system of `directory`."""


class DiskFile:
    """`AppendFile` on a real descriptor. Safe to read from one thread while another appends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = os.fstat(fd).st_size

    def append(self, data: bytes) -> None:
        """Write all of `data` at the end of the file."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, self._size)
            self._size += written
            view = view[written:]

    def sync(self) -> None:
        """Fdatasync: data and the size, not the times."""
        os.fdatasync(self._fd)

    def read(self, position: int, size: int) -> bytes:
        """Pread, repeated until `size` bytes or the end of the file."""
        data = os.pread(self._fd, size, position)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def truncate(self, size: int) -> None:
        """Ftruncate."""
        os.ftruncate(self._fd, size)
        self._size = size

    def size(self) -> int:
        """Bytes in the file, from fstat: a writer may grow a file that we read."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the descriptor once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """Close a file that was dropped without `close`."""
        self.close()


class DiskFiles:
    """`Files` on the real file system."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        """Open for reading and appending, creating with `FILE_MODE`."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return self._file(os.open(path, flags, FILE_MODE))

    def open_readonly(self, path: Path) -> DiskFile:
        """Open for reading only."""
        return self._file(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def _file(self, fd: int) -> DiskFile:
        return DiskFile(fd)

    def write_whole(self, path: Path, data: bytes) -> None:
        """Write a temporary file, sync, rename, sync the directory."""
        temporary = path.with_name(path.name + ".tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
        self.sync_dir(path.parent)

    def unlink(self, path: Path) -> None:
        """Remove the file if it exists."""
        path.unlink(missing_ok=True)

    def names(self, directory: Path) -> list[str]:
        """Sorted names in the directory."""
        return sorted(path.name for path in directory.iterdir())

    def make_dir(self, directory: Path) -> None:
        """Mkdir -p with `DIRECTORY_MODE`."""
        make_directory(directory)

    def sync_dir(self, directory: Path) -> None:
        """Fsync on the directory's descriptor."""
        sync_directory(directory)

    def free_bytes(self, directory: Path) -> int:
        """`f_bavail` of the file system."""
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize


def read_whole(files: ReadFiles, path: Path) -> bytes | None:
    """Return the contents of a small file, None if it does not exist."""
    try:
        file = files.open_readonly(path)
    except FileNotFoundError:
        return None
    with contextlib.closing(file):
        return file.read(0, file.size())


def sync_directory(directory: Path) -> None:
    """Make creations, renames and removals in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """Create a directory and its missing parents durably, with `DIRECTORY_MODE`.

    Without the sync of its parent, a power cut could remove a new directory with everything synced in it.
    """
    try:
        directory.mkdir(mode=DIRECTORY_MODE)
    except FileNotFoundError:
        make_directory(directory.parent)
        directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    except FileExistsError:
        if not directory.is_dir():
            raise
        return
    with contextlib.suppress(PermissionError):  # a parent that this user may not read cannot be synced
        sync_directory(directory.absolute().parent)


def remove(path: Path) -> None:
    """Remove a directory, a file or a link, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def create_file(path: Path) -> int:
    """Create a file for reading and writing; returns its descriptor. Raises FileExistsError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)


def open_ordinary(path: Path) -> BinaryIO:
    """Open an ordinary file for reading; FormatError for a link, a directory, a device or a pipe.

    For files that others may have put there: a link may lead anywhere, and a pipe without a writer blocks.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise FormatError(f"{path} is not an ordinary file but a link or a socket") from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FormatError(f"{path} is not an ordinary file but a directory, a device or a pipe")
    return open(fd, "rb")  # noqa: PTH123 - a descriptor


def read_ordinary(path: Path, size_max: int) -> bytes:
    """Read all of an ordinary file. Raises FormatError as above, and for a larger file."""
    with open_ordinary(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > size_max:
            raise FormatError(f"{path} has {size} bytes; at most {size_max} are allowed")
        return file.read(size_max)


class Narrowed(NamedTuple):
    """How many files and directories were restricted, and those that could not be."""

    changed: int
    refused: list[Path]


def narrow(paths: Iterable[Path], *, group: bool = True) -> Narrowed:
    """Remove the permissions beyond these modes from files, and from directories with their contents.

    Without `group`, only the owner may read them. Follows a link only if it is one of `paths`: an index may
    be on another disk. Cost: a stat for each.
    """
    changed = 0
    refused: list[Path] = []
    for path in paths:
        for one in _tree(path):
            try:
                changed += _narrow_one(one, _PERMISSIONS if group else stat.S_IRWXU)
            except FileNotFoundError:
                continue
            except PermissionError:
                refused.append(one)
    return Narrowed(changed, refused)


def _narrow_one(path: Path, bound: int) -> bool:
    found = path.stat()
    granted = bound & (DIRECTORY_MODE if stat.S_ISDIR(found.st_mode) else FILE_MODE)
    mode = stat.S_IMODE(found.st_mode)
    if not mode & _PERMISSIONS & ~granted:
        return False
    path.chmod(mode & ~(_PERMISSIONS & ~granted))
    return True


def _tree(path: Path) -> Iterator[Path]:
    yield path
    for directory, names, files in os.walk(path):
        for name in (*names, *files):
            found = Path(directory, name)
            if not found.is_symlink():
                yield found
