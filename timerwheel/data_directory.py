"""What lies in a data directory, and that nobody else reads it.

Every file that the service makes has the modes of `store.files`. What is there already may be open to others:
made by an earlier version, copied, or unpacked. So each start narrows it.
"""

import logging
from pathlib import Path

from store.files import Narrowed, narrow
from timerwheel.log_start import LOST_AND_FOUND

OWN = ("log", "index", "lock", "tokens.json", "archived", "rebuild")
"""What the service keeps there; its other names begin with these, as `index.aside` does."""

logger = logging.getLogger("timerwheel")


def close_to_others(data: Path) -> Narrowed:
    """Take from others what they may do with the files of a data directory, and log what was done.

    The directory itself is narrowed only if it holds nothing else: it may be somebody's home.
    """
    there = [path for path in data.iterdir() if path.name != LOST_AND_FOUND]
    own = [path for path in there if _is_own(path.name)]
    linked = [path for path in own if path.is_symlink()]
    found = narrow([data, *linked] if len(own) == len(there) else own)
    if found.changed:
        logger.warning(
            "others could read or write %d files and directories in %s; they are closed now",
            found.changed,
            data,
        )
    if found.refused:
        logger.warning(
            "others may read or write %d files and directories in %s that belong to another user (%s); "
            "run chmod -R g-w,o-rwx %s as that user",
            len(found.refused),
            data,
            found.refused[0],
            data,
        )
    return found


def _is_own(name: str) -> bool:
    return any(name == own or name.startswith((f"{own}.", f"{own}-")) for own in OWN)
