"""What a process asked of the file system, by strace, and a model of what a power cut would have left of it.

`strace -f -y` says each call with the paths of its descriptors. The model keeps, for each file, the writes
that no sync has covered, and for each directory the names that were made in it and not synced. A sync covers
what was over when it began. Nothing else is assumed: no order, no journal.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

HOW_TO_INSTALL = "strace is missing or may not trace here: apt-get install strace"
CALLS = (
    "openat,open,creat,write,pwrite64,writev,pwritev,sendto,sendmsg,fsync,fdatasync,ftruncate,fallocate,"
    "rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,symlink,symlinkat"
)
STRING_BYTES = 256
_WHOLE = re.compile(r"(?P<name>\w+)\((?P<rest>.*)\) += (?P<result>-?\d+|\?)")
_UNFINISHED = re.compile(r"(?P<name>\w+)\((?P<rest>.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)\) += (?P<result>-?\d+|\?)")
_PLACE = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<at>[^>]*)>, )?"(?P<path>(?:[^"\\]|\\.)*)"')
_DESCRIPTOR = re.compile(r"\d+<(?P<path>[^>]*)>")


@cache
def can_trace() -> bool:
    """Whether strace is there and may trace its children."""
    if shutil.which("strace") is None:
        return False
    return (
        subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode
        == 0
    )


def traced(output: Path, command: Sequence[str]) -> list[str]:
    """The command under strace. `-D` leaves its process id and its signals to itself."""
    options = ["-D", "-f", "-y", "--seccomp-bpf", "-s", str(STRING_BYTES), "-e", f"trace={CALLS}"]
    return ["strace", *options, "-o", str(output), *command]


class Call(NamedTuple):
    """One system call that succeeded: the lines on which it began and ended."""

    name: str
    arguments: str
    result: int
    begin: int
    end: int

    @property
    def descriptor(self) -> str:
        """The path of the descriptor that it was given first."""
        found = _DESCRIPTOR.match(self.arguments)
        return found["path"] if found else ""

    @property
    def places(self) -> list[str]:
        """The paths that it was given as texts."""
        return [
            str(PurePosixPath(found["at"] or "/", found["path"])) for found in _PLACE.finditer(self.arguments)
        ]


def calls_of(lines: Iterator[str] | Sequence[str]) -> Iterator[Call]:
    """The calls in a trace, in the order in which they ended."""
    begun: dict[str, tuple[str, str, int]] = {}
    for number, line in enumerate(lines):
        process, _, text = line.rstrip("\n").partition(" ")
        text = text.strip()
        if found := _UNFINISHED.match(text):
            begun[process] = (found["name"], found["rest"], number)
            continue
        if found := _RESUMED.match(text):
            name, rest, begin = begun.pop(process)
            arguments = rest + found["rest"]
        elif found := _WHOLE.match(text):
            name, arguments, begin = found["name"], found["rest"], number
        else:
            continue
        if found["result"] != "?" and int(found["result"]) >= 0:
            yield Call(name, arguments, int(found["result"]), begin, number)


class Disk:
    """What is on the disk below a directory for sure, call by call, and the promises that were broken.

    1. An answer (`HTTP/1.1 2..`) begins when no segment has a write or a name that was not synced.
    2. What is renamed was synced before, a directory with all that is in it.
    3. A segment is created when the ones before it have no write that was not synced.
    4. A segment is removed when every other name in its directory was synced, the manifest above all.
    """

    def __init__(self, root: Path, *, ignored: Sequence[str] = ()) -> None:
        self.root = str(root)
        self.ignored = {str(root / name) for name in ignored}
        self.dirty: dict[str, list[int]] = {}  # where each write ended that no sync covers
        self.names: dict[str, int] = {}  # paths whose entry in their directory was not synced
        self.there = {str(path) for path in root.rglob("*")} | {str(root)}
        self.broken: list[str] = []
        self.answers = self.segments = self.removed = 0
        self.renamed: list[str] = []

    def run(self, lines: Sequence[str]) -> "Disk":
        """Go through a trace."""
        calls = list(calls_of(lines))
        moments = [(call.begin, 0, call) for call in calls] + [(call.end, 1, call) for call in calls]
        for _, phase, call in sorted(moments, key=lambda moment: moment[:2]):
            handle = getattr(
                self, f"_{'after' if phase else 'before'}_{_KINDS.get(call.name, 'other')}", None
            )
            if handle is not None:
                handle(call)
        return self

    def unsynced(self) -> list[str]:
        """What a power cut might take now."""
        return sorted({*(path for path, writes in self.dirty.items() if writes), *self.names})

    def _is_mine(self, path: str) -> bool:
        below = path == self.root or path.startswith(self.root + "/") or self.root.startswith(path + "/")
        return below and not any(path == one or path.startswith(one + "/") for one in self.ignored)

    def _demand(self, what: str, paths: Iterator[str]) -> None:
        if found := sorted(paths):
            self.broken.append(f"{what} before a sync of {', '.join(found)}")

    # -- writes and syncs

    def _before_write(self, call: Call) -> None:
        if not call.descriptor.startswith("/") and '"HTTP/1.1 2' in call.arguments:
            self.answers += 1
            self._demand("an answer", (p for p in self.unsynced() if p.endswith("log") or p in self.root))

    def _after_write(self, call: Call) -> None:
        path = call.descriptor.removesuffix(" (deleted)")
        if path.startswith("/") and self._is_mine(path):
            self.dirty.setdefault(path, []).append(call.end)

    def _after_sync(self, call: Call) -> None:
        path = call.descriptor
        self.dirty[path] = [end for end in self.dirty.get(path, []) if end >= call.begin]
        for name, end in list(self.names.items()):
            if str(PurePosixPath(name).parent) == path and end < call.begin:
                del self.names[name]

    # -- names

    def _created(self, path: str, end: int) -> None:
        if self._is_mine(path):
            self.there.add(path)
            self.names[path] = end

    def _before_open(self, call: Call) -> None:
        path = call.places[0]
        if "O_CREAT" in call.arguments and path.endswith(".log") and path not in self.there:
            self.segments += 1
            others = (p for p in self.unsynced() if p.endswith(".log") and p in self.dirty and self.dirty[p])
            self._demand(f"segment {path} was created", others)

    def _after_open(self, call: Call) -> None:
        path = call.places[0]
        if "O_CREAT" in call.arguments and path not in self.there:
            self._created(path, call.end)
        elif "O_TRUNC" in call.arguments:
            self._after_write(call._replace(arguments=f"3<{path}>"))

    def _after_make(self, call: Call) -> None:
        self._created(call.places[-1], call.end)

    def _before_rename(self, call: Call) -> None:
        source, target = call.places
        if not self._is_mine(source):
            return
        self.renamed.append(target)
        within = (
            p for p in self.unsynced() if p.startswith(source + "/") or (p == source and self.dirty.get(p))
        )
        self._demand(f"{source} became {target}", within)

    def _after_rename(self, call: Call) -> None:
        source, target = call.places
        if not self._is_mine(source):
            return
        exchange = "RENAME_EXCHANGE" in call.arguments
        moves = {source: target} | ({target: source} if exchange else {})
        for table in (self.dirty, self.names):
            if not exchange:
                for path in [p for p in table if p == target or p.startswith(target + "/")]:
                    del table[path]
            moved = {_moved(path, moves): value for path, value in table.items()}
            table.clear()
            table.update(moved)
        self.there = {_moved(path, moves) for path in self.there}
        self.names.pop(source, None)
        self.names.pop(target, None)
        for path in moves.values():
            self._created(path, call.end)

    def _before_remove(self, call: Call) -> None:
        path = call.places[0]
        if path.endswith(".log") and self._is_mine(path):
            self.removed += 1
            directory = str(PurePosixPath(path).parent)
            others = (p for p in self.unsynced() if str(PurePosixPath(p).parent) == directory and p != path)
            self._demand(f"{path} was removed", (p for p in others if p.endswith(("start", ".log"))))

    def _after_remove(self, call: Call) -> None:
        path = call.places[0]
        for table in (self.dirty, self.names):
            for one in [p for p in table if p == path or p.startswith(path + "/")]:
                del table[one]
        self.there.discard(path)


def _moved(path: str, moves: dict[str, str]) -> str:
    for source, target in moves.items():
        if path == source or path.startswith(source + "/"):
            return target + path[len(source) :]
    return path


_KINDS = {
    **dict.fromkeys(("write", "pwrite64", "writev", "pwritev", "sendto", "sendmsg"), "write"),
    **dict.fromkeys(("ftruncate", "fallocate"), "write"),
    **dict.fromkeys(("fsync", "fdatasync"), "sync"),
    **dict.fromkeys(("open", "openat", "creat"), "open"),
    **dict.fromkeys(("mkdir", "mkdirat", "link", "linkat", "symlink", "symlinkat"), "make"),
    **dict.fromkeys(("rename", "renameat", "renameat2"), "rename"),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), "remove"),
}
