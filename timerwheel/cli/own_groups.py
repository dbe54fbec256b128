"""Groups that a command created for itself, noted on this machine, so that a killed one leaves none behind.

Each group has a file in the user's state directory, locked for as long as its command runs. The kernel frees
the lock with the process: a file that nobody holds belongs to a command that is dead. Its group is deleted by
the next command that calls the same service.

1. The file is there before the group, and goes after it: it stays if the group could not be deleted.
2. A group is deleted only under the lock of its file, so never one that a living command uses.
3. A file that is removed while its command has not locked it yet is made again.
4. Nothing here can fail a command: without a state directory a killed one leaves its group, as a crash of the
   machine does.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

_FOLDER = "timerwheel/listen"
_SUFFIX = ".json"
NOTES_MAX = 100
"""Most notes that one start looks at."""


class OwnGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group, and the service that has it."""

    url: str
    topic: str
    group: str


def state_directory() -> Path:
    """Where programs of this user keep what should outlive them."""
    given = os.environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(given) if given.startswith("/") else Path.home() / ".local/state") / _FOLDER
    except RuntimeError:  # the user has no home, as in a container: where no directory can be
        return Path(os.devnull) / _FOLDER


@contextlib.contextmanager
def noted(own: OwnGroup, folder: Path) -> Iterator[Path | None]:
    """Note a group; yields the note, if there can be one: the block removes it once the group is deleted."""
    path = folder / f"{own.group}{_SUFFIX}"
    fd = -1
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while fd < 0:
            fd = _locked(path)
        os.write(fd, msgspec.json.encode(own))
    try:
        yield path if fd >= 0 else None
    finally:
        if fd >= 0:
            os.close(fd)


def _locked(path: Path) -> int:
    """Make a file and lock it; returns -1 if another command found it before that, and removed it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    if os.fstat(fd).st_nlink:
        return fd
    os.close(fd)
    return -1


def of_dead_commands(url: str, folder: Path) -> Iterator[tuple[OwnGroup, Path]]:
    """Yield the groups of dead commands at this service, each with its note, locked for the step."""
    for path in sorted(folder.glob(f"*{_SUFFIX}"))[:NOTES_MAX]:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            own = _read(fd)
            if own is None:
                path.unlink(missing_ok=True)
            elif own.url == url:
                yield own, path
        except OSError:
            continue
        finally:
            os.close(fd)


def _read(fd: int) -> OwnGroup | None:
    """Return the note; None if it is not whole: its command was killed before it created the group."""
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(os.read(fd, 4096), type=OwnGroup)
    return None
