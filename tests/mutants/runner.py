"""Puts each mutant into a copy of the tree, runs its tests there, and says what became of it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tests.mutants.mutant import Mutant

FAILED_TESTS = 1  # pytest's exit codes
PASSED = 0
TAIL_LINES = 8
BASELINE_LINES = 40
NOT_COPIED = shutil.ignore_patterns(
    *(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info", "data", "build", "dist")
)


class Outcome(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"  # a test failed: as it should be
    ACCEPTED = "accepted"  # it survived, and the list says why it may
    SURVIVED = "survived"
    HANG = "hang"  # no test failed in the time given: nobody would see which claim is broken
    UNEXPECTED = "unexpected"  # killed, though the list accepts it
    BROKEN = "broken"  # pytest could not run the tests


GOOD = (Outcome.KILLED, Outcome.ACCEPTED)


class PatchError(Exception):
    """A mutant's text is not in its file once."""


class Verdict(NamedTuple):
    """A mutant, its outcome, and the last lines of its tests."""

    mutant: Mutant
    outcome: Outcome
    tail: str


def patched(text: str, mutant: Mutant) -> str:
    """The text of the file with the fault in it; PatchError if it does not fit."""
    count = text.count(mutant.old)
    if count != 1:
        raise PatchError(f"{mutant.name}: its text occurs {count} times in {mutant.file}, not once")
    return text.replace(mutant.old, mutant.new)


def check(root: Path, mutants: Sequence[Mutant]) -> list[str]:
    """What is wrong with a list of mutants: names, texts that do not fit, tests that are not there."""
    wrong = []
    names = [mutant.name for mutant in mutants]
    wrong += [f"{name}: the name occurs twice" for name in sorted({n for n in names if names.count(n) > 1})]
    for mutant in mutants:
        try:
            compile(patched((root / mutant.file).read_text(), mutant), mutant.file, "exec")
        except (OSError, PatchError) as error:
            wrong.append(str(error))
        except SyntaxError as error:
            wrong.append(f"{mutant.name}: the mutant is no Python: {error}")
        if mutant.old == mutant.new:
            wrong.append(f"{mutant.name}: it changes nothing")
        if not mutant.tests:
            wrong.append(f"{mutant.name}: it has no tests")
        for test in mutant.tests:
            path, _, name = test.partition("::")
            found = root / path
            function = name.rpartition("::")[2].partition("[")[0]
            if not found.exists() or (function and f"def {function}(" not in found.read_text()):
                wrong.append(f"{mutant.name}: there is no test {test}")
    return wrong


@contextmanager
def copy_of(root: Path, scratch: Path) -> Iterator[Path]:
    """A copy of the tree that may be spoilt."""
    place = scratch / "tree"
    shutil.copytree(root, place, ignore=NOT_COPIED, symlinks=True)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


class Runner:
    """Runs mutants one after the other in one copy of the tree."""

    def __init__(self, tree: Path, timeout_s: float) -> None:
        self._tree = tree
        self._timeout_s = timeout_s
        self._writes = 0

    def baseline(self, mutants: Sequence[Mutant]) -> tuple[bool, str]:
        """Run the tests of all mutants without any; a test that fails now would kill everything."""
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        code, named = self._pytest(tests, None)
        return code == PASSED, "\n".join(named.splitlines()[-BASELINE_LINES:])

    def run(
        self, mutants: Sequence[Mutant], tell: Callable[[Verdict], None] = lambda _: None
    ) -> list[Verdict]:
        """The verdict of each mutant."""
        verdicts = []
        for mutant in mutants:
            verdict = self._run(mutant)
            tell(verdict)
            verdicts.append(verdict)
        return verdicts

    def _run(self, mutant: Mutant) -> Verdict:
        file = self._tree / mutant.file
        before = file.read_text()
        self._write(file, patched(before, mutant))
        try:
            code, named = self._pytest(["-x", *mutant.tests], self._timeout_s)
        finally:
            self._write(file, before)
        outcome = _outcome(code, accepted=bool(mutant.accepted))
        return Verdict(mutant, outcome, "\n".join(named.splitlines()[-TAIL_LINES:]))

    def _write(self, file: Path, text: str) -> None:
        """Each writing gets a time of its own: by time and size Python knows whether a .pyc is good."""
        file.write_text(text)
        self._writes += 1
        os.utime(file, (self._writes, self._writes))

    def _pytest(self, arguments: Sequence[str], timeout_s: float | None) -> tuple[int | None, str]:
        """Pytest's exit code, None after the timeout, and what it named."""
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(self._tree)}
        with subprocess.Popen(
            command,
            cwd=self._tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                named, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return None, ""
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return process.returncode, named


def _outcome(code: int | None, *, accepted: bool) -> Outcome:
    if code is None:
        return Outcome.HANG
    if code == FAILED_TESTS:
        return Outcome.UNEXPECTED if accepted else Outcome.KILLED
    if code == PASSED:
        return Outcome.ACCEPTED if accepted else Outcome.SURVIVED
    return Outcome.BROKEN
