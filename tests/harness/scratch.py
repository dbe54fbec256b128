"""Where tests write whose log is in memory anyway: a file system in memory, if there is one with room.

Such tests have no use for a disk: `FaultyFiles` plays it. The index beside it is a real file, and each of its
many commits would wait for the disk of the machine that runs the tests.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM_BYTES = 1 << 30


def has_room(size_bytes: int) -> bool:
    """Whether there is a file system in memory that takes this much."""
    return MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= size_bytes


def scratch_root() -> str | None:
    """The directory for `tempfile` to use; None stands for its usual one."""
    return str(MEMORY) if has_room(ROOM_BYTES) else None


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty directory, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="timerwheel-", dir=scratch_root()) as name:
        yield Path(name)
