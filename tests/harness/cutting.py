"""Ends a piece of work at any of its file operations, as a killed process ends: nothing after it is done.

Python tells every opening, renaming, linking and removing before it does it (`sys.audit`). What was written
is kept, so this shows what a kill leaves and not what a power cut leaves.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_PATHS = {"open": 1, "os.rename": 2, "os.link": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1}
_EXCHANGE = "ctypes.dlopen"  # the one that Python does not know: two directories change places


class CutError(BaseException):
    """The process ends here. Not an `Exception`, so that no handler goes on after it."""


class _Cutter:
    def __init__(self) -> None:
        self.root: str | None = None
        self.steps = 0
        self.cut_at = 0

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.root is None or not self._counts(event, arguments):
            return
        self.steps += 1
        if self.steps >= self.cut_at > 0:
            raise CutError(f"{event} {arguments}")

    def _counts(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == _EXCHANGE:
            return True
        paths = arguments[: _PATHS.get(event, 0)]
        named = (os.fspath(path) for path in paths if isinstance(path, str | os.PathLike))
        return any(str(name).startswith(str(self.root)) for name in named)


_cutter = _Cutter()
_heard: list[bool] = []


@contextmanager
def _listening(root: Path, cut_at: int) -> Iterator[None]:
    if not _heard:
        _heard.append(True)
        sys.addaudithook(_cutter.hear)  # for good: there is no way to take it back
    _cutter.root, _cutter.steps, _cutter.cut_at = str(root), 0, cut_at
    try:
        yield
    finally:
        _cutter.root = None


def steps_of(work: Callable[[], object], root: Path) -> int:
    """How many operations below `root` the work takes; it is done to its end."""
    with _listening(root, 0):
        work()
    return _cutter.steps


def cut(work: Callable[[], object], root: Path, step: int) -> None:
    """Do the work up to this operation below `root`, counted from 1, and no further."""
    with _listening(root, step), suppress(CutError):
        work()
        raise AssertionError("the work came to its end")
