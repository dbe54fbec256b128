"""The few file operations that durability rests on, behind one seam.

Everything the log writes goes through a `Files`, so that a test can stand in a file layer that
crashes at any write, sync, rename or unlink, drops what was not synced and tears what was being
written (`tests/harness/faulty.py`). What is assumed of a real disk is stated in `doc/log-format.md`.

This module also decides who may read what the service writes: `FILE_MODE`, `DIRECTORY_MODE`, `UMASK`.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from timerwheel.store.errors import FormatError

FILE_MODE = 0o640
"""Of every file: a log holds messages, and the secrets with which push signs. The umask may narrow it."""
DIRECTORY_MODE = 0o750
UMASK = 0o027
"""The same for what libraries create: a command of `timerwheel` narrows its own umask by this."""
_PERMISSIONS = 0o777


class ReadFile(Protocol):
    """One open file that is read at any position."""

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; shorter only at the end of the file."""

    def size(self) -> int:
        """Bytes in the file, durable or not."""

    def close(self) -> None:
        """Release the descriptor; does not sync."""


class ReadFiles(Protocol):
    """What reading a log asks of a file system, which may be a remote one."""

    def open_readonly(self, path: Path) -> ReadFile:
        """Open for reading only; FileNotFoundError if it is not there."""

    def names(self, directory: Path) -> list[str]:
        """Sorted names in a directory."""


class AppendFile(ReadFile, Protocol):
    """One open file that grows at its end and is read at any position."""

    def append(self, data: bytes) -> None:
        """Write all of `data` at the end; raises OSError and may have written a part of it."""

    def sync(self) -> None:
        """Return once every byte appended so far is durable (fdatasync)."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes; durable after the next `sync`."""


class Files(ReadFiles, Protocol):
    """The file system as the log needs it."""

    def open(self, path: Path, *, create: bool = False) -> AppendFile:
        """Open for reading and appending; with `create`, the file must not exist yet."""

    def open_readonly(self, path: Path) -> AppendFile:
        """Open for reading only."""

    def write_whole(self, path: Path, data: bytes) -> None:
        """Create or replace `path` so that it is, after any crash, whole old or whole new."""

    def unlink(self, path: Path) -> None:
        """Remove a file; durable after `sync_dir`."""

    def make_dir(self, directory: Path) -> None:
        """Create a directory and its parents if they are missing."""

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
        """Bytes in the file; asked of the system, since a read-only file may grow under us."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the descriptor once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """Close a file that was let go of without `close`."""
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
        """Write beside, sync, rename over, sync the directory."""
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
        """Remove the file if it is there."""
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


def sync_directory(directory: Path) -> None:
    """Make creations, renames and removals in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """Create a directory and its missing parents durably, with `DIRECTORY_MODE`, if it is not there.

    Without the sync of its parent, a power cut could take a new directory with all that was synced in it.
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


def create_file(path: Path) -> int:
    """A descriptor of a new file that can be read and written; FileExistsError if there is one already."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)


def open_ordinary(path: Path) -> BinaryIO:
    """Open an ordinary file for reading; FormatError for a link, a directory, a device or a pipe.

    For what others may have put there: a link leads elsewhere, and a pipe without a writer never answers.
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
    """All of an ordinary file; FormatError as above, and for one that is larger."""
    with open_ordinary(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > size_max:
            raise FormatError(f"{path} has {size} bytes; at most {size_max} are read")
        return file.read(size_max)


class Narrowed(NamedTuple):
    """How many files and directories were closed to others, and those that could not be."""

    changed: int
    refused: list[Path]


def narrow(paths: Iterable[Path], *, group: bool = True) -> Narrowed:
    """Take from files, and from directories with all in them, what these modes do not grant.

    Without `group`, the owner alone may read them. Follows a link only where it is one of `paths`: an index
    may lie on another disk. Cost: a stat for each.
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
