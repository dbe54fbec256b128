"""The output directory of a job: new or empty before, afterwards complete or untouched."""

from collections.abc import Iterator
from contextlib import contextmanager

from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.storage import exists, join, make_directories, names_in, normal, remove


def check_unused(url: str) -> None:
    """Raises JobError if the directory is not empty, or is a file."""
    try:
        used = bool(names_in(url))
    except NotADirectoryError:
        used = True
    if used:
        raise JobError(f"{url} already exists and is not an empty directory; choose another with --out")


@contextmanager
def out_directory(url: str, *parts: str) -> Iterator[str]:
    """Creates a directory with these subdirectories; yields its URL, absolute if it is local.

    If the block fails, its contents are removed, so that a partial result is never mistaken for a
    complete one. Raises JobError if it is not empty.
    """
    check_unused(url)
    url = normal(url)
    was_there = exists(url)
    try:
        for place in (url, *(join(url, part) for part in parts)):
            make_directories(place)
        yield url
    except BaseException:
        for place in [join(url, name) for name in names_in(url)] if was_there else [url]:
            remove(place)
        raise
