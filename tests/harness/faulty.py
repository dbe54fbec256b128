"""A file layer in memory that can crash at any step and then shows what a disk might have kept.

It tracks, for every file, what was made durable by a sync and what was only written, and for the directory
which entries were made durable. `crash_at` counts every write, sync, truncate, create, unlink, rename and
directory sync. `after_crash(rng)` is a new layer with what survived: synced bytes always, unsynced ones
dropped, kept, cut anywhere, or in some sectors only; unsynced creations and removals either way.
`after_kill()` is what the next process finds when only the last one ended: all of it, still not synced.

Every write takes space, into bytes that exist as well, as on a file system that copies on write. A direct
write changes the disk at once, sector by sector, but is durable only once it is synced.
"""

import errno
import random
from pathlib import Path

import numpy as np

from timerwheel.store.files import DIRECT_BYTES_MAX, NO_DIRECT_WRITES
from timerwheel.store.files import SECTOR_BYTES as SECTOR

PAGE = 4096


class SimulatedCrashError(Exception):
    """The machine stopped here."""


class _Node:
    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""


class FaultyFiles:
    """`timerwheel.store.files.Files` without a disk."""

    def __init__(self, crash_at: int | None = None) -> None:
        self.crash_at = crash_at
        self.steps = 0
        self.dead = False
        self.descriptors = 1  # none left: an existing file cannot be opened
        self.space_bytes = 1 << 40
        self.fail_sync = False
        self.direct = True  # whether the file system takes direct writes
        self.refuses_direct = False  # from now on, of files that are open too
        self.unreadable: list[tuple[str, int]] = []  # (file name, position): their pages cannot be read
        self.names_now: dict[str, _Node] = {}
        self.names_durable: dict[str, _Node] = {}
        self.trace: list[str] = []
        self.fates: set[str] = set()  # what the crash before made of unsynced bytes and entries

    # -- steps

    def step(self, what: str) -> bool:
        """Count a step; True if the crash happens in the middle of it."""
        if self.dead:
            raise SimulatedCrashError(what)
        self.steps += 1
        self.trace.append(what)
        if self.crash_at is not None and self.steps >= self.crash_at:
            self.dead = True
            return True
        return False

    def _maybe_crash(self, what: str) -> None:
        if self.step(what):
            raise SimulatedCrashError(what)

    # -- Files

    def open(self, path: Path, *, create: bool = False, direct: bool = False) -> "FaultyFile":
        if create:
            if str(path) in self.names_now:
                raise FileExistsError(path)
            if self.space_bytes <= 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            crash = self.step(f"create {path.name}")
            self.names_now[str(path)] = _Node()
            if crash:
                raise SimulatedCrashError("create")
        return FaultyFile(self, self._node(path), path.name, SECTOR if direct and self.direct else 0)

    def direct_fault(self, _directory: Path) -> str | None:
        return None if self.direct else NO_DIRECT_WRITES

    def open_readonly(self, path: Path) -> "FaultyFile":
        return FaultyFile(self, self._node(path), path.name)

    def _node(self, path: Path) -> _Node:
        if self.dead:
            raise SimulatedCrashError("open")
        if self.descriptors <= 0:
            raise OSError(errno.EMFILE, "Too many open files")
        node = self.names_now.get(str(path))
        if node is None:
            raise FileNotFoundError(path)
        return node

    def write_whole(self, path: Path, data: bytes) -> None:
        """The four steps of the real one: write beside, sync, rename, sync the directory."""
        self._maybe_crash(f"write {path.name}.tmp")
        if len(data) > self.space_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._maybe_crash(f"sync {path.name}.tmp")
        node = _Node()
        node.data += data
        node.durable = data
        crash = self.step(f"rename {path.name}")
        self.names_now[str(path)] = node
        if crash:
            raise SimulatedCrashError("rename")
        self.sync_dir(path.parent)

    def unlink(self, path: Path) -> None:
        crash = self.step(f"unlink {path.name}")
        self.names_now.pop(str(path), None)
        if crash:
            raise SimulatedCrashError("unlink")

    def names(self, directory: Path) -> list[str]:
        within = f"{directory}/"
        names = (name.removeprefix(within) for name in self.names_now if name.startswith(within))
        return sorted(name for name in names if "/" not in name)

    def make_dir(self, directory: Path) -> None:
        pass

    def sync_dir(self, directory: Path) -> None:
        self._maybe_crash(f"sync directory {directory.name}")
        self.names_durable = dict(self.names_now)

    def free_bytes(self, _directory: Path) -> int:
        return self.space_bytes

    # -- afterwards

    def contents(self) -> dict[str, bytes]:
        """What every file holds."""
        return {name: bytes(node.data) for name, node in self.names_now.items()}

    def replace(self, path: Path, data: bytes | None) -> None:
        """Give a file other contents, durably, as a failing disk does; None removes it."""
        if data is None:
            for names in (self.names_now, self.names_durable):
                names.pop(str(path), None)
            return
        node = self.names_now[str(path)]
        node.data[:] = data
        node.durable = bytes(data)

    def after_kill(self) -> "FaultyFiles":
        """The same files for the next process: the system has kept every write, and synced none of them."""
        survivor = FaultyFiles()
        copies: dict[int, _Node] = {}
        for names, kept in (
            (self.names_now, survivor.names_now),
            (self.names_durable, survivor.names_durable),
        ):
            for name, node in names.items():
                if id(node) not in copies:
                    copies[id(node)] = copied = _Node()
                    copied.data = bytearray(node.data)
                    copied.durable = node.durable
                kept[name] = copies[id(node)]
        return survivor

    def forget_unsynced(self) -> None:
        """From now on, be what a power cut leaves of a disk that has what was synced, and nothing else."""
        self.names_now = dict(self.names_durable)
        for node in self.names_now.values():
            node.data = bytearray(node.durable)

    def after_crash(self, rng: random.Random) -> "FaultyFiles":
        """What the next start finds."""
        survivor = FaultyFiles()
        chosen: dict[str, _Node] = {}
        for name in sorted(self.names_durable.keys() | self.names_now.keys()):  # so a seed is a fate
            old, new = self.names_durable.get(name), self.names_now.get(name)
            kept = old if old is new else rng.choice((old, new))
            if old is not new:
                survivor.fates.add("entry new" if kept is new else "entry old")
            if kept is not None:
                chosen[name] = kept
        for name, node in chosen.items():
            left = _Node()
            fate, data = _torn(node, rng)
            survivor.fates.add(fate)
            left.data = bytearray(data)
            left.durable = bytes(left.data)
            survivor.names_now[name] = left
        survivor.names_durable = dict(survivor.names_now)
        return survivor


class FaultyFile:
    """`timerwheel.store.files.LogFile` on a node."""

    def __init__(self, files: FaultyFiles, node: _Node, name: str, sector_bytes: int = 0) -> None:
        self._files = files
        self._node = node
        self._name = name
        self.sector_bytes = sector_bytes
        self.refuses_direct = False

    def write(self, position: int, data: bytes) -> None:
        if not data:
            return
        files, node = self._files, self._node
        assert position <= len(node.data), "a hole in the log"
        if files.refuses_direct and self.sector_bytes:
            self.sector_bytes, self.refuses_direct = 0, True
        self._check_rewrite(position, data)
        crash = files.step(f"append {len(data)} to {self._name}")
        if len(data) > files.space_bytes:
            part = data[: files.space_bytes // 2]
            node.data[position : position + len(part)] = part
            raise OSError(errno.ENOSPC, "No space left on device")
        files.space_bytes -= len(data)
        node.data[position : position + len(data)] = data
        if crash:
            raise SimulatedCrashError("write")

    def _check_rewrite(self, position: int, data: bytes) -> None:
        """Records go where nothing or zeros are; a direct write, where its sectors have nothing else."""
        low, high = position, position + len(data)
        if self.sector_bytes and len(data) <= DIRECT_BYTES_MAX and not (low | high) % SECTOR:
            low, high = low // SECTOR * SECTOR, -(-high // SECTOR) * SECTOR
        assert not any(self._node.data[low:high]), "a write over records"

    def sync(self) -> None:
        self._files._maybe_crash(f"sync {self._name}")
        if self._files.fail_sync:
            raise OSError(errno.EIO, "Input/output error")
        self._node.durable = bytes(self._node.data)

    def read(self, position: int, size: int) -> bytes:
        if self._files.dead:
            raise SimulatedCrashError("read")
        lost = (at // PAGE * PAGE for name, at in self._files.unreadable if name == self._name)
        if any(position < page + PAGE and page < position + size for page in lost):
            raise OSError(errno.EIO, "Input/output error")
        return bytes(self._node.data[position : position + size])

    def truncate(self, size: int) -> None:
        crash = self._files.step(f"truncate {self._name}")
        del self._node.data[size:]
        if crash:
            raise SimulatedCrashError("truncate")

    def end_writing(self) -> None:
        self.sector_bytes = 0

    def size(self) -> int:
        return len(self._node.data)

    def close(self) -> None:
        pass


def _torn(node: _Node, rng: random.Random) -> tuple[str, bytes]:
    """One of the contents that a disk may show for a file after a crash, and what it is called."""
    durable, now = node.durable, bytes(node.data)
    if durable == now:
        return "synced", durable
    if len(now) < len(durable):  # a cut that was not synced
        return rng.choice((("uncut", durable), ("kept", now)))
    fate = rng.choice(("dropped", "kept", "cut", "sectors"))
    if fate == "dropped":
        return fate, durable
    if fate == "kept":
        return fate, now
    if fate == "cut" and len(durable) < len(now):
        return fate, now[: rng.randint(len(durable), len(now))]
    sectors = -(-len(now) // SECTOR)
    shape = (sectors, SECTOR)
    old, new = (
        np.frombuffer(data.ljust(sectors * SECTOR, b"\0"), np.uint8).reshape(shape) for data in (durable, now)
    )
    torn = new.copy()
    for number in np.flatnonzero((old != new).any(axis=1)).tolist():
        if rng.random() < 0.5:
            torn[number] = old[number]
    return "sectors", torn.tobytes()[: len(now)]
