"""The few file operations that durability depends on, behind one interface.

The log writes only through a `Files`, so that a test can substitute a file layer that crashes at any write,
sync, rename or unlink, drops unsynced data and tears the current write (`tests/harness/faulty.py`).
`doc/log-format.md` states the assumptions about a real disk.

This module also decides who may read what the service writes: `FILE_MODE`, `DIRECTORY_MODE`, `UMASK`.
"""

import contextlib
import errno
import mmap
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from timerwheel.store.errors import NO_SPACE, FormatError, NotAFileError

FILE_MODE = 0o640
"""Mode of every file: a log holds messages and the secrets of push. The umask may restrict it further."""
DIRECTORY_MODE = 0o750
UMASK = 0o027
"""The umask of every `timerwheel` command, for files that libraries create."""
_PERMISSIONS = 0o777
SECTOR_BYTES = 512
"""A disk writes a sector completely or not at all."""
DIRECT_BYTES_MAX = 32 * 1024
"""Larger writes go through the page cache: their pages are full, and readers may want them soon."""
_PROBE_NAME = "direct.probe"
NO_DIRECT_WRITES = "allows no direct writes"
_KINDS = {
    errno.EISDIR: "a directory",
    errno.ELOOP: "a link",
    errno.ENXIO: "a socket or a pipe",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
}

ReadPath = Path | str
"""A local path, or the URL of a remote file as text: a `Path` would make one slash of its `//`."""


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

    def open_readonly(self, path: ReadPath) -> ReadFile:
        """Open for reading only. Raises FileNotFoundError, and NotAFileError for what is not a file."""

    def names(self, directory: ReadPath) -> list[str]:
        """Sorted names in a directory."""


class LogFile(ReadFile, Protocol):
    """An open file that one thread writes from front to back, with reads at any position."""

    @property
    def sector_bytes(self) -> int:
        """The unit of direct writes, to which the log pads; 0 if every write goes through the page cache."""

    @property
    def refuses_direct(self) -> bool:
        """Whether a direct write was refused, so that there will be no other."""

    def write(self, position: int, data: bytes) -> None:
        """Write all of `data` at a position within the file or at its end.

        An OSError may leave a part of it written.
        """

    def sync(self) -> None:
        """Return once every byte written so far is durable (fdatasync)."""

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes; durable after the next `sync`."""

    def end_writing(self) -> None:
        """Release what only writing needs: no write follows, readers stay."""


class Files(ReadFiles, Protocol):
    """The file system operations of the log."""

    def open(self, path: Path, *, create: bool = False, direct: bool = False) -> LogFile:
        """Open for reading and writing; with `create`, the file must not exist yet.

        With `direct`, small writes of whole sectors bypass the page cache, if the file system allows it.
        """

    def open_readonly(self, path: ReadPath) -> LogFile:
        """Open for reading only."""

    def direct_fault(self, directory: Path) -> str | None:
        """Why there are no direct writes in this directory, or reads through the page cache do not see them.

        None if they work. The reason goes on after the name of the directory.
        """

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
    """`LogFile` on a real descriptor. Safe to read from one thread while another writes.

    `direct_fd` is a second descriptor of the same file, opened with O_DIRECT.
    """

    def __init__(self, fd: int, direct_fd: int = -1) -> None:
        self._fd = fd
        self._direct_fd = direct_fd
        self._direct = direct_fd >= 0
        self.direct_errno = 0  # of an open that was refused
        self.refuses_direct = False
        self._size = os.fstat(fd).st_size
        self._buffer = mmap.mmap(-1, DIRECT_BYTES_MAX) if direct_fd >= 0 else None  # aligned to a page

    @property
    def sector_bytes(self) -> int:
        """`SECTOR_BYTES` while direct writes work, else 0."""
        return SECTOR_BYTES if self._direct else 0

    def write(self, position: int, data: bytes) -> None:
        """Write all of `data`: directly if it is a few whole sectors within the file, else buffered."""
        size = len(data)
        if (
            self._direct
            and size <= DIRECT_BYTES_MAX
            and position + size <= self._size
            and not (position | size) % SECTOR_BYTES
        ):
            written = self._write_direct(position, data)
            if written == size:
                return
            position, data = position + written, data[written:]
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, position)
            position += written
            self._size = max(self._size, position)
            view = view[written:]

    def _write_direct(self, position: int, data: bytes) -> int:
        """Write directly; returns the number of bytes written, 0 if the file system does not allow it."""
        assert self._buffer is not None
        self._buffer[: len(data)] = data
        try:
            with memoryview(self._buffer) as buffer, buffer[: len(data)] as part:
                return os.pwrite(self._direct_fd, part, position)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        self._direct, self.refuses_direct = False, True
        return 0

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

    def end_writing(self) -> None:
        """Close the descriptor for direct writes."""
        if self._direct_fd >= 0:
            os.close(self._direct_fd)
            self._direct_fd, self._direct, self._buffer = -1, False, None

    def size(self) -> int:
        """Bytes in the file, from fstat: a writer may grow a file that we read."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the descriptors once."""
        self.end_writing()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """Close a file that was dropped without `close`."""
        self.close()


class DiskFiles:
    """`Files` on the real file system."""

    def open(self, path: Path, *, create: bool = False, direct: bool = False) -> DiskFile:
        """Open for reading and writing, creating with `FILE_MODE`."""
        fd = open_descriptor(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0))
        direct_fd, direct_errno = -1, 0
        if direct:
            try:
                direct_fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT)
            except OSError as error:  # then every write goes through the page cache
                direct_errno = error.errno or 0
        file = self._file(fd, direct_fd)
        file.direct_errno = direct_errno
        return file

    def open_readonly(self, path: ReadPath) -> DiskFile:
        """Open for reading only."""
        return self._file(open_descriptor(path, os.O_RDONLY))

    def _file(self, fd: int, direct_fd: int = -1) -> DiskFile:
        return DiskFile(fd, direct_fd)

    def direct_fault(self, directory: Path) -> str | None:
        """Try it with a small file, which is removed again."""
        path = directory / _PROBE_NAME
        before, after = bytes(SECTOR_BYTES), b"\1" * SECTOR_BYTES
        try:
            self.unlink(path)
            with contextlib.closing(self.open(path, create=True, direct=True)) as file:
                if file.direct_errno in NO_SPACE:
                    return f"could not try direct writes ({os.strerror(file.direct_errno)})"
                file.write(0, before + before)
                file.sync()
                whole = file.read(0, 2 * SECTOR_BYTES) == before + before
                file.write(SECTOR_BYTES, after)
                works = whole and file.sector_bytes and file.read(0, 2 * SECTOR_BYTES) == before + after
        except OSError as error:
            return f"could not try direct writes ({error.strerror})"
        finally:
            with contextlib.suppress(OSError):
                self.unlink(path)
        return None if works else NO_DIRECT_WRITES

    def write_whole(self, path: Path, data: bytes) -> None:
        """Write a temporary file, sync, rename, sync the directory."""
        temporary = path.with_name(path.name + ".tmp")
        fd = open_descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            with naming(temporary):
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

    def names(self, directory: ReadPath) -> list[str]:
        """Sorted names in the directory."""
        return sorted(path.name for path in Path(directory).iterdir())

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


@contextlib.contextmanager
def naming(path: ReadPath) -> Iterator[None]:
    """Name a file in the errors of a block that uses its descriptor: such errors name no file of their own.

    Without the name nobody knows which of several disks is full or fails.
    """
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def read_whole(files: ReadFiles, path: ReadPath) -> bytes | None:
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
        with naming(directory):
            os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """Create a directory and its missing parents durably, with `DIRECTORY_MODE`.

    Without the sync of its parent, a power cut could remove a new directory with everything synced in it.
    Raises FormatError for a link that leads nowhere: its disk may not be mounted.
    """
    try:
        directory.mkdir(mode=DIRECTORY_MODE)
    except FileNotFoundError:
        make_directory(directory.parent)
        directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    except FileExistsError:
        if directory.is_symlink() and not directory.exists():
            raise FormatError(f"{directory} is a link that leads nowhere; is its disk mounted?") from None
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


def open_descriptor(path: ReadPath, flags: int) -> int:
    """Open an ordinary file, which a link may lead to; returns its descriptor.

    Raises NotAFileError for anything else: a pipe without a writer would block, a device may have no end, and
    a link to a disk that is not mounted must not pass for a file that was never there. Everything that reads
    files of a data directory opens them here.
    """
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    except FileNotFoundError:
        if Path(path).is_symlink():
            raise NotAFileError(path, "a link that leads nowhere") from None
        raise
    except OSError as error:
        if error.errno in _KINDS:
            raise NotAFileError(path, _KINDS[error.errno]) from None
        raise
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind == stat.S_IFREG:
        return fd
    os.close(fd)
    raise NotAFileError(path, _KINDS.get(kind, "a device"))


def open_binary(path: Path) -> BinaryIO:
    """Open an ordinary file for reading, as above."""
    return open(open_descriptor(path, os.O_RDONLY), "rb")


def open_ordinary(path: Path) -> BinaryIO:
    """Open an ordinary file for reading; NotAFileError for a link, too.

    For files that others may have put there: a link may lead anywhere.
    """
    return open(open_descriptor(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")


def read_ordinary(path: Path, size_max: int) -> bytes:
    """Read all of an ordinary file. Raises NotAFileError as above, and FormatError for a larger file."""
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
