"""Storage for logs and tables: local directories, or any URL that fsspec supports."""

import posixpath
import uuid
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from timerwheel.store.errors import FormatError
from timerwheel.store.files import DiskFiles, ReadFile, ReadFiles, create_file, make_directory

READ_BLOCK_BYTES = 8 << 20


class Place(NamedTuple):
    """A file or directory and its file system."""

    files: ReadFiles
    path: Path


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL or local path, and the path in it. Raises FormatError."""
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise FormatError(f"{url}: {error}") from None
    return fs, str(path)


def normal(url: str) -> str:
    """The normal form of a URL; for a local one, its absolute path."""
    fs, path = file_system(url)
    return str(Path(path).absolute()) if isinstance(fs, LocalFileSystem) else url


def place_of(url: str) -> Place:
    """The place that a URL or a local path names."""
    fs, path = file_system(url)
    if isinstance(fs, LocalFileSystem):
        return Place(DiskFiles(), Path(path))
    return Place(RemoteFiles(fs), Path(path))


def is_local(url: str) -> bool:
    """Whether a URL is in the local file system."""
    return isinstance(file_system(url)[0], LocalFileSystem)


def spark_path(url: str) -> str:
    """The URL for Spark; without a scheme Spark would use the cluster's default file system."""
    return f"file:{Path(url).absolute()}" if is_local(url) and "://" not in url else url


def join(url: str, *names: str) -> str:
    """Joins a URL and names; a chained URL (`zip://a::file:b`) grows in its first part."""
    first, *others = url.split("::")
    return "::".join([posixpath.join(first, *names), *others])


def last_name(url: str) -> str:
    """The last part of a URL's path: `node-7` of `s3://bucket/logs/node-7/`."""
    path = url.split("::", maxsplit=1)[0]
    if "://" in path:
        parts = urlsplit(path)
        path = parts.netloc + parts.path  # of zip://node-7::file the host is a directory
    else:
        path = str(Path(path).absolute())
    return posixpath.basename(path.rstrip("/"))


def expand(pattern: str) -> list[str]:
    """The directories that a pattern (`*`, `?`, `[...]`, `**`) matches; a plain path gives itself."""
    if not fsspec.core.has_magic(pattern) or Path(pattern).exists():
        return [pattern]
    fs, path = file_system(pattern)
    found = sorted(str(name) for name in fs.glob(path))
    if isinstance(fs, LocalFileSystem):
        return [name for name in found if Path(name).is_dir()]
    tail = "".join(f"::{part}" for part in pattern.split("::")[1:])
    return [str(fs.unstrip_protocol(name)) + tail for name in found if fs.isdir(name)]


def make_directories(url: str, path: str) -> None:
    """Create a directory and its missing parents on the file system of this URL."""
    if is_local(url):
        make_directory(Path(path))
    else:
        file_system(url)[0].makedirs(path, exist_ok=True)


def write_atomically(url: str, data: pa.Buffer | bytes) -> None:
    """Write a temporary file and rename it, so that two attempts of a task do not interfere."""
    fs, path = file_system(url)
    beside = f"{path}.{uuid.uuid4().hex}.tmp"
    make_directories(url, posixpath.dirname(path))
    if isinstance(fs, LocalFileSystem):
        with open(create_file(Path(beside)), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(data)
        Path(beside).replace(path)
        return
    with fs.open(beside, "wb") as file:
        file.write(data)
    fs.mv(beside, path)


class RemoteFiles:
    """`ReadFiles` over an fsspec file system."""

    def __init__(self, fs: Any) -> None:  # noqa: ANN401 - fsspec has no types
        self._fs = fs

    def open_readonly(self, path: Path) -> ReadFile:
        """Open for reading in blocks. Raises FileNotFoundError."""
        return RemoteFile(self._fs.open(str(path), "rb", block_size=READ_BLOCK_BYTES))

    def names(self, directory: Path) -> list[str]:
        """Sorted names in a directory."""
        return sorted(
            posixpath.basename(str(name).rstrip("/")) for name in self._fs.ls(str(directory), detail=False)
        )


class RemoteFile:
    """`ReadFile` over a buffered fsspec file."""

    def __init__(self, file: Any) -> None:  # noqa: ANN401 - fsspec has no types
        self._file = file

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`."""
        self._file.seek(position)
        return bytes(self._file.read(size))

    def size(self) -> int:
        """Bytes in the file when it was opened."""
        return int(self._file.seek(0, 2))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
