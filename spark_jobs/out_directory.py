"""The output directory of a job: new or empty before, afterwards complete or untouched."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.storage import file_system, is_local, make_directories


def check_unused(url: str) -> None:
    """Raises JobError if the directory is not empty, or is a file."""
    fs, path = file_system(url)
    if fs.isfile(path) or (fs.isdir(path) and fs.ls(path, detail=False)):
        raise JobError(f"{url} already exists and is not an empty directory; choose another with --out")


@contextmanager
def out_directory(url: str, *parts: str) -> Iterator[str]:
    """Creates a directory with these subdirectories; yields its URL, absolute if it is local.

    If the block fails, its contents are removed, so that a partial result is never mistaken for a
    complete one. Raises JobError if it is not empty.
    """
    check_unused(url)
    fs, path = file_system(url)
    was_there = fs.isdir(path)
    try:
        for part in ("", *parts):
            make_directories(url, f"{path}/{part}".rstrip("/"))
        yield str(Path(path).absolute()) if is_local(url) else url
    except BaseException:
        if fs.isdir(path):
            for name in fs.ls(path, detail=False) if was_there else [path]:
                fs.rm(name, recursive=True)
        raise
