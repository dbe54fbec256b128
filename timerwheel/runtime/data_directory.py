"""The contents of a data directory: its permissions, and the cleanup after a failed restore.

The service creates every file with the modes of `timerwheel.store.files`. Files from an earlier version, a
copy or an archive may be open to others, so each start restricts them.
"""

import contextlib
import logging
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from timerwheel.index.swap import aside_path, new_path
from timerwheel.state.log_manifest import LOG_DIRECTORY, LOST_AND_FOUND, UNFINISHED_LOG
from timerwheel.store.files import Narrowed, narrow, remove
from timerwheel.store.lock import DirectoryLock

OWN = ("log", "index", "lock", "tokens.json", "archived", "rebuild")
"""Names of the service's files; its other names begin with these, such as `index.aside`."""

MANIFEST_FILE = "backup.json"
"""A log directory with this file is a backup."""

logger = logging.getLogger("timerwheel")


def is_backup(place: Path) -> bool:
    """Whether a directory is a backup, finished or not, which no service may use as a data directory."""
    log = place / LOG_DIRECTORY
    return (log / MANIFEST_FILE).exists() or new_path(log).exists() or aside_path(log).exists()


def close_to_others(data: Path) -> Narrowed:
    """Remove the permissions of other users from the files of a data directory, and log the change.

    The directory itself is restricted only if it holds nothing else: it may be somebody's home.
    """
    there = [path for path in data.iterdir() if path.name != LOST_AND_FOUND]
    own = [path for path in there if _is_own(path.name)]
    linked = [path for path in own if path.is_symlink()]
    found = narrow([data, *linked] if len(own) == len(there) else own)
    if found.changed:
        logger.warning(
            "other users could access %d files and directories in %s; changed their permissions",
            found.changed,
            data,
        )
    if found.refused:
        logger.warning(
            "other users can access %d files and directories in %s that belong to another user "
            "(%s); run chmod -R g-w,o-rwx %s as that user",
            len(found.refused),
            data,
            found.refused[0],
            shlex.quote(str(data)),
        )
    return found


def _is_own(name: str) -> bool:
    return any(name == own or name.startswith((f"{own}.", f"{own}-")) for own in OWN)


@contextlib.contextmanager
def restored_directory(data: Path, beside: Sequence[str], *, now_text: str) -> Iterator[None]:
    """Hold the lock of a directory while the block restores its log and the files `beside` it.

    If the block fails, this removes the unfinished log and everything that did not exist before, the
    directory itself included. Raises LockedError.
    """
    new = [place for place in (data, *data.absolute().parents) if not place.exists()]
    made = {*beside, *(f"{name}.tmp" for name in beside)}
    if not (data / "lock").exists():
        made.add("lock")
    try:
        with DirectoryLock(data, purpose="timerwheel restore", now_text=now_text):
            # Not before it is locked: another restore may have finished since.
            before = {path.name for path in data.iterdir()} - {"lock"}
            try:
                yield
            except BaseException:
                for name in (UNFINISHED_LOG, *sorted(made - before)):
                    remove(data / name)
                raise
    except BaseException:
        for place in new:
            with contextlib.suppress(OSError):  # something else may be there by now
                place.rmdir()
        raise
