"""Storage for logs and tables: local directories, or any URL that fsspec supports.

A URL stays text from the command line to fsspec. An error of a back end becomes a StorageError of one line,
except that a missing file is a FileNotFoundError on every file system.

Consoles of object stores create a folder as an empty object whose key ends in `/`. Such a marker is not a
file: no listing here has it.
"""

import contextlib
import io
import itertools
import posixpath
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from timerwheel.errors import TimerwheelError
from timerwheel.store.errors import StoreError
from timerwheel.store.files import DiskFiles, ReadFile, ReadFiles, ReadPath, create_file, make_directory

READ_BLOCK_BYTES = 8 << 20
REASON_CHARS_MAX = 300
# An object appears there when its upload is complete, and directories need not be made: making one would make
# a bucket with a mistyped name.
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "obs"}
_WEB = ("http://", "https://")
_PASSWORD = re.compile(r"(?<!abfs:)(?<!abfss:)//[^/@]*@")  # Azure has the container before the @
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")  # made up by a back end; the text after it says more
_NO_BUCKET = "NoSuchBucket"
_NO_BUCKET_TEXT = "bucket does not exist"
# Codes of S3 for a request that went to, or was signed for, another region than that of the bucket.
_REGION_CODES = {
    "PermanentRedirect",
    "TemporaryRedirect",
    "301",
    "307",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
}
_REGION_HEADER = "x-amz-bucket-region"
# What to do about an error, by words in the names of its classes.
_ADVICE = (
    (("Credentials", "Permission", "Token", "Auth"), "check the credentials and what they allow"),
    (("Connect", "Timeout", "Endpoint", "DNS"), "check the address, and that this machine reaches it"),
)


class StorageError(StoreError):
    """A file system refused or failed; the message has the URL and what to do."""

    code = "storage"


class Place(NamedTuple):
    """A file or directory and its file system; `path` is the URL if it is remote."""

    files: ReadFiles
    path: ReadPath

    def file(self, name: str) -> ReadPath:
        """The path of a file in this directory."""
        return self.path / name if isinstance(self.path, Path) else f"{self.path}/{name}"


@contextlib.contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turns what an fsspec back end raises in the block into a StorageError of one line.

    FileNotFoundError, FileExistsError and NotADirectoryError pass: callers expect them. So do errors of a
    local path, which need no translation. A bucket that does not exist is a mistake, not a missing file.
    """
    try:
        yield
    except FileNotFoundError as error:
        if not _lacks_bucket(error):
            raise
        advice = "check the name of the bucket, which a job never creates"
        raise StorageError(f"{shown(url)}: {_reason(error)}; {advice}") from error
    except (FileExistsError, NotADirectoryError, StoreError, TimerwheelError):
        raise
    except Exception as error:  # each back end has its own exceptions, without a common base
        if isinstance(error, OSError) and not is_url(url):
            raise
        raise StorageError(f"{shown(url)}: {_reason(error)}; {_advice(error)}") from error


def _reason(error: Exception) -> str:
    text = _ERRNO.sub("", " ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= REASON_CHARS_MAX else text[:REASON_CHARS_MAX] + "..."


def _lacks_bucket(error: Exception) -> bool:
    return _answer(error)[0] == _NO_BUCKET or _NO_BUCKET_TEXT in str(error)


def _answer(error: BaseException) -> tuple[str, str]:
    """The code with which S3 refused, and the region that it named; each may be empty."""
    found: Any = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    if not isinstance(found, dict):
        return "", ""
    about = found.get("Error", {})
    headers = found.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(about.get("Code", "")), str(about.get("Region") or headers.get(_REGION_HEADER, ""))


def _advice(error: Exception) -> str:
    code, region = _answer(error)
    if code in _REGION_CODES:
        return f"the bucket is in another region: set AWS_DEFAULT_REGION to {region or 'that of the bucket'}"
    if code == "400":  # the answer to a question for the headers alone has no reason
        return "check the credentials, and that AWS_DEFAULT_REGION is the region of the bucket"
    if "range requests" in str(error):
        return "choose a web server that answers them, such as nginx or Caddy, or copy the files"
    if getattr(error, "status", None) in (401, 403):
        return _ADVICE[0][1]
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    for words, advice in _ADVICE:
        if any(word in names for word in words):
            return advice
    return "check the URL"


def shown(url: str) -> str:
    """The URL without a password, for messages and reports."""
    return _PASSWORD.sub("//", url)


def is_url(text: str) -> bool:
    """Whether this is a URL, maybe a chained one, and not a local path."""
    return "://" in text or "::" in text


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL or local path, and the path in it.

    Raises StorageError, also if the package for this kind of URL is missing.
    """
    try:
        with storage_errors(url):
            fs, path = fsspec.core.url_to_fs(url)
    except StorageError as error:
        if isinstance(error.__cause__, ImportError):
            raise StorageError(
                f"{shown(url)}: {_reason(error.__cause__)}, here and where the executors of Spark run"
            ) from None
        if isinstance(error.__cause__, ValueError):
            raise StorageError(
                f"{shown(url)}: {_reason(error.__cause__)}; give a path, or a URL that fsspec supports"
            ) from None
        raise
    return fs, str(path)


def url_of(fs: Any, path: str) -> str:  # noqa: ANN401 - fsspec has no types
    """The URL of a path of a file system, for messages."""
    return str(fs.unstrip_protocol(path))


def normal(url: str) -> str:
    """The normal form of a URL; for a local one, its absolute path."""
    fs, path = file_system(url)
    return str(Path(path).absolute()) if isinstance(fs, LocalFileSystem) else url


def place_of(url: str) -> Place:
    """The place that a URL or a local path names."""
    fs, path = file_system(url)
    if isinstance(fs, LocalFileSystem):
        return Place(DiskFiles(), Path(path))
    return Place(RemoteFiles(fs), str(fs.unstrip_protocol(path)).rstrip("/"))


def is_local(url: str) -> bool:
    """Whether a URL is in the local file system."""
    return isinstance(file_system(url)[0], LocalFileSystem)


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
    if not has_magic(pattern) or (not is_url(pattern) and Path(pattern).exists()):
        return [pattern]
    fs, path = file_system(pattern)
    with storage_errors(pattern):
        found = sorted(str(name) for name in fs.glob(path))
        if not found:
            check_bucket(fs, path)
        if isinstance(fs, LocalFileSystem):
            return [name for name in found if Path(name).is_dir()]
        tail = "".join(f"::{part}" for part in pattern.split("::")[1:])
        return [str(fs.unstrip_protocol(name)).rstrip("/") + tail for name in found if fs.isdir(name)]


def check_bucket(fs: Any, path: str) -> None:  # noqa: ANN401 - fsspec has no types
    """Raise the error of an object store for a path or pattern where nothing was found, if it has one.

    Some file systems answer a question for something in a bucket that does not exist with nothing at all.
    """
    if not _is_object_store(fs):
        return
    plain = itertools.takewhile(lambda part: not fsspec.core.has_magic(part), path.split("/"))
    try:
        fs.ls("/".join(plain), detail=False)
    except FileNotFoundError as error:
        if _lacks_bucket(error):
            raise


def has_magic(pattern: str) -> bool:
    """Whether a path or URL is a pattern."""
    # On the web a question mark begins the query.
    return bool(fsspec.core.has_magic(pattern.replace("?", "") if pattern.startswith(_WEB) else pattern))


def names_in(url: str) -> list[str]:
    """Sorted names in a directory, none if it does not exist. Raises NotADirectoryError for a file."""
    fs, path = file_system(url)
    with storage_errors(url):
        fs.invalidate_cache()
        if fs.isfile(path):
            raise NotADirectoryError(url)
        if not fs.isdir(path):
            return []
        return listed(fs, path)


def files_below(url: str) -> list[str]:
    """The paths of all files below a directory, relative to it; none if it does not exist."""
    fs, path = file_system(url)
    with storage_errors(url):
        fs.invalidate_cache()
        found = found_below(fs, path)
    root = path.rstrip("/") + "/"
    return sorted(name[len(root) :] for name in found if name.startswith(root))


def listed(fs: Any, path: str) -> list[str]:  # noqa: ANN401 - fsspec has no types
    """The sorted names in a directory, without its own marker. Raises FileNotFoundError."""
    own = path.rstrip("/")
    found = (str(name).rstrip("/") for name in fs.ls(path, detail=False))
    return sorted({posixpath.basename(name) for name in found if name != own})


def found_below(fs: Any, path: str) -> dict[str, int | None]:  # noqa: ANN401 - fsspec has no types
    """The paths of all files below a directory, without markers, with their sizes where these are known."""
    below = fs.find(path, detail=True).items()
    return {str(name): info.get("size") for name, info in below if not str(name).endswith("/")}


def exists(url: str) -> bool:
    """Whether there is a file or directory."""
    fs, path = file_system(url)
    with storage_errors(url):
        fs.invalidate_cache()
        return bool(fs.exists(path))


def make_directories(url: str) -> None:
    """Create a directory and its missing parents, where the file system has directories."""
    fs, path = file_system(url)
    if isinstance(fs, LocalFileSystem):
        make_directory(Path(path))
    elif not _is_object_store(fs):
        with storage_errors(url):
            fs.makedirs(path, exist_ok=True)


def remove(url: str) -> None:
    """Remove a file, or a directory with everything in it; nothing happens if it does not exist."""
    fs, path = file_system(url)
    with storage_errors(url), contextlib.suppress(FileNotFoundError):
        fs.invalidate_cache()  # others may have written there since it was listed
        if fs.exists(path):
            fs.rm(path, recursive=True)


def read_bytes(url: str) -> bytes:
    """The contents of a file. Raises FileNotFoundError."""
    fs, path = file_system(url)
    with storage_errors(url):
        fs.invalidate_cache()
        return bytes(fs.cat_file(path))


def read_head(url: str, size: int) -> bytes:
    """The first bytes of a file. Raises FileNotFoundError."""
    fs, path = file_system(url)
    with storage_errors(url), fs.open(path, "rb", block_size=size) as file:
        return bytes(file.read(size))


@contextlib.contextmanager
def open_binary(url: str) -> Iterator[BinaryIO]:
    """A file for reading at any position, which the block reads. Raises FileNotFoundError."""
    fs, path = file_system(url)
    with storage_errors(url), fs.open(path, "rb") as file:
        yield file


def write_atomically(url: str, data: pa.Buffer | bytes) -> None:
    """Write a file completely or not at all, so that two attempts of a task do not interfere.

    An object store gets one upload; elsewhere a temporary file is renamed.
    """
    fs, path = file_system(url)
    if isinstance(fs, LocalFileSystem):
        make_directory(Path(path).parent)
        beside = Path(_beside(path))
        with _gone_if_it_fails(beside):
            _fill(create_file(beside), path, data)
            beside.replace(path)
        return
    with storage_errors(url):
        put_remote(fs, path, bytes(memoryview(data)))


def put_remote(fs: Any, path: str, data: bytes) -> None:  # noqa: ANN401 - fsspec has no types
    """Write a file of a remote file system so that readers find either all of it or nothing."""
    if _is_object_store(fs):
        fs.pipe_file(path, data)
        return
    make_parents(fs, path)
    beside = _beside(path)
    try:
        with fs.open(beside, "wb") as file:
            file.write(data)
        fs.mv(beside, path)
    except BaseException:
        with contextlib.suppress(Exception):  # of any back end; the first error says what is wrong
            fs.rm_file(beside)
        raise


def put_new(fs: Any, path: str, data: bytes) -> None:  # noqa: ANN401 - fsspec has no types
    """Write a small file that must not exist. Raises FileExistsError and StorageError.

    A local file is created exclusively. S3, GCS and Azure decide it themselves, by a condition of the PUT.
    Other file systems look first.
    """
    if isinstance(fs, LocalFileSystem):
        descriptor = create_file(Path(path))  # if it exists, it is another's
        with _gone_if_it_fails(Path(path)):
            _fill(descriptor, path, data)
        return
    with storage_errors(url_of(fs, path)):
        make_parents(fs, path)
        fs.pipe_file(path, data, mode="create")


def _fill(descriptor: int, path: str, data: pa.Buffer | bytes) -> None:
    with named(path), open(descriptor, "wb") as file:
        file.write(data)


@contextlib.contextmanager
def _gone_if_it_fails(path: Path) -> Iterator[None]:
    """Removes a new file unless the block succeeds: on a full disk it would only take more space."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


@contextlib.contextmanager
def named(path: str | Path) -> Iterator[None]:
    """Adds the path to errors of writing in the block, which say only that there is no space."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def make_parents(fs: Any, path: str) -> None:  # noqa: ANN401 - fsspec has no types
    """Create the directory of a file, unless the store has no directories: s3fs would create a bucket."""
    if not _is_object_store(fs):
        fs.makedirs(posixpath.dirname(path), exist_ok=True)


def _beside(path: str) -> str:
    return f"{path}.{uuid.uuid4().hex}.tmp"


def _is_object_store(fs: Any) -> bool:  # noqa: ANN401 - fsspec has no types
    names = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    return any(name in OBJECT_STORES for name in names)


class RemoteFiles:
    """`ReadFiles` over an fsspec file system; a path is a URL of it."""

    def __init__(self, fs: Any) -> None:  # noqa: ANN401 - fsspec has no types
        self._fs = fs

    def open_readonly(self, path: ReadPath) -> ReadFile:
        """Open for reading in blocks. Raises FileNotFoundError."""
        url = str(path)
        with storage_errors(url):
            file = self._fs.open(self._inner(url), "rb", block_size=READ_BLOCK_BYTES)
            if getattr(file, "size", 0) is None:  # a web server that does not say how long the file is
                with file:
                    file = io.BytesIO(file.read())
            return RemoteFile(file, url, self._fs)

    def names(self, directory: ReadPath) -> list[str]:
        """Sorted names in a directory."""
        url = str(directory)
        with storage_errors(url):
            self._fs.invalidate_cache()  # a log grows between two looks at it
            return listed(self._fs, self._inner(url))

    def _inner(self, url: str) -> str:
        # Not every file system takes the protocol off by itself.
        return str(self._fs._strip_protocol(url))  # noqa: SLF001 - the only way that fsspec has


class RemoteFile:
    """`ReadFile` over a buffered fsspec file. It keeps its file system, which may close files at its end."""

    def __init__(self, file: Any, url: str, fs: Any) -> None:  # noqa: ANN401 - fsspec has no types
        self._file = file
        self._fs = fs
        self._url = url

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`."""
        with storage_errors(self._url):
            self._file.seek(position)
            return bytes(self._file.read(size))

    def size(self) -> int:
        """Bytes in the file when it was opened."""
        return int(self._file.seek(0, 2))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
