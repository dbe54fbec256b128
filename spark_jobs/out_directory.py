"""The output directory of a job: new or empty before, afterwards complete or untouched.

While a job writes there, the directory has the file `_unfinished`, which names the job. Only the job that
created it writes to the directory, or removes anything from it. A killed job leaves it.

Creating it is exclusive in local file systems, S3, GCS and Azure. Where a store ignores the condition, two
jobs may create it in the same moment. Then it names the later one, and the other fails without removing
anything.
"""

import contextlib
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from timerwheel.clock import SystemClock
from timerwheel.model.durations import format_ms
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.preflight import PROBE_PREFIX
from timerwheel.spark_jobs.run_lock import Owner, owner_of
from timerwheel.spark_jobs.storage import (
    exists,
    file_system,
    is_local,
    join,
    make_directories,
    names_in,
    normal,
    put_new,
    remove,
    shown,
    storage_errors,
)

UNFINISHED = "_unfinished"


def check_unused(url: str) -> None:
    """Raises JobError if the directory is not empty, or is a file."""
    try:
        names = _names(url)
    except NotADirectoryError:
        names = [url]
    if UNFINISHED in names:
        raise _taken(url)
    if names:
        raise _used(url)


@contextmanager
def out_directory(url: str, *parts: str) -> Iterator[str]:
    """Creates a directory with these subdirectories; yields its URL, absolute if it is local.

    If the block fails, its contents are removed, so that a partial result is never mistaken for a
    complete one. Raises JobError if the directory is not empty, or another job writes to it.
    """
    check_unused(url)
    url = normal(url)
    was_there = exists(url)
    own = Owner(uuid.uuid4().hex, socket.gethostname(), os.getpid(), format_ms(SystemClock().now_ms()))
    is_ours = False
    try:
        _claim(url, own)
        is_ours = True
        for part in parts:
            make_directories(join(url, part))
        yield url
        _finish(url, own)
    except BaseException:
        if _owner(url) == own:
            _leave(url, names_in(url) if is_ours else [], was_there=was_there)
        raise


def _claim(url: str, own: Owner) -> None:
    """Create the mark. Raises JobError if another job has done so, or has finished in the directory."""
    make_directories(url)
    mark = join(url, UNFINISHED)
    fs, path = file_system(mark)
    with storage_errors(mark), contextlib.suppress(FileExistsError):
        put_new(fs, path, msgspec.json.encode(own))
    if _owner(url) != own:
        raise _taken(url)
    if _names(url) != [UNFINISHED]:
        raise _used(url)


def _finish(url: str, own: Owner) -> None:
    """Remove the mark. Raises JobError if it is not that of this job any more."""
    if _owner(url) != own:
        raise JobError(f"{shown(url)}: another job has taken this directory; run this one again")
    remove(join(url, UNFINISHED))


def _leave(url: str, written: list[str], *, was_there: bool) -> None:
    """Remove what this job wrote, then its mark, then the directory unless another job has begun there."""
    for name in written:
        if name != UNFINISHED:
            remove(join(url, name))
    remove(join(url, UNFINISHED))
    if not was_there and is_local(url):
        with contextlib.suppress(OSError):
            Path(url).rmdir()


def _names(url: str) -> list[str]:
    return [name for name in names_in(url) if not name.startswith(PROBE_PREFIX)]


def _owner(url: str) -> Owner:
    mark = join(url, UNFINISHED)
    with storage_errors(mark):
        return owner_of(*file_system(mark))


def _used(url: str) -> JobError:
    return JobError(f"{shown(url)} already exists and is not an empty directory; choose another with --out")


def _taken(url: str) -> JobError:
    owner = _owner(url)
    return JobError(
        f"{shown(url)} is in use by process {owner.pid} on {owner.host} since {owner.since}; choose another "
        "with --out, or remove it if that process no longer exists"
    )
