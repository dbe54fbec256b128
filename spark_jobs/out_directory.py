"""The directory that a job fills: new or empty before, whole afterwards or as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.storage import file_system, is_local, make_directories


def check_unused(url: str) -> None:
    """Raises JobError if there is something in a directory, or if it is a file."""
    fs, path = file_system(url)
    if fs.isfile(path) or (fs.isdir(path) and fs.ls(path, detail=False)):
        raise JobError(f"{url} is there already and is not an empty directory; give another with --out")


@contextmanager
def out_directory(url: str, *parts: str) -> Iterator[str]:
    """Makes a directory with these directories below it; gives its URL, absolute if it is local.

    If the block fails, everything in it is removed, so that half a result is never taken for a whole one.
    Raises JobError if something is in it already.
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
