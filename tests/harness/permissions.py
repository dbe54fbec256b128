"""Who may read what: files and directories that are open to more users than they should be."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def wide_in(*places: Path, file_mode: int = 0o640, directory_mode: int = 0o750) -> list[str]:
    """Each place, and all in it, whose mode grants more: its path and mode."""
    found = []
    for place in places:
        assert place.exists(), place
        for path in (place, *sorted(place.rglob("*"))):
            granted = directory_mode if path.is_dir() else file_mode
            mode = stat.S_IMODE(path.lstat().st_mode)
            if mode & ~granted and not path.is_symlink():
                found.append(f"{path}: {mode:o}")
    return found


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """This process's umask for a block."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
