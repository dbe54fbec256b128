"""Replaces the index by a new one in one step.

    index.new   being built; nobody reads it
    index       what the service uses
    index.aside the one that was used before

The two directories change places in one system call (renameat2 with RENAME_EXCHANGE), so at every moment
there is a whole index under the name that the service opens. On a file system that cannot do this, two
renames are used; a crash between them leaves no index, and the next start rebuilds it from the log.
"""

import ctypes
import errno
import os
from pathlib import Path

from timerwheel.store.files import DiskFiles, open_binary, remove

STAGING_NAME = "rebuild.tmp"  # what a rebuild keeps beside the index while it runs
NEW_SUFFIX = ".new"
ASIDE_SUFFIX = ".aside"

_AT_FDCWD = -100
RENAME_EXCHANGE = 2
_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def new_path(index: Path) -> Path:
    """Return where a new index is built."""
    return index.with_name(index.name + NEW_SUFFIX)


def aside_path(index: Path) -> Path:
    """Return where the previous index is kept."""
    return index.with_name(index.name + ASIDE_SUFFIX)


def swap_in(index: Path) -> Path | None:
    """Replace `index` by the one at `new_path`; returns where the old one is kept, None if there was none.

    One old index is kept, the newest. The caller holds the lock of the data directory.
    """
    new, aside = new_path(index), aside_path(index)
    _make_durable(new)
    if not index.exists():
        new.rename(index)
        DiskFiles().sync_dir(index.parent)
        return None
    exchanged = exchange(new, index)
    remove(aside)
    if exchanged:
        new.rename(aside)
    else:
        index.rename(aside)
        new.rename(index)
    DiskFiles().sync_dir(index.parent)
    return aside


def _make_durable(directory: Path) -> None:
    """Sync the files: LMDB leaves its last meta page to the system, and the directory is new."""
    for path in directory.iterdir():
        with open_binary(path) as file:
            os.fsync(file.fileno())
    DiskFiles().sync_dir(directory)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two directories; returns False if the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    done = renameat2(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(RENAME_EXCHANGE)
    )
    if done == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))
