"""`python -m tests.mutants [WORD]...`: run the mutants whose name or file has one of these words, or all.

Exit code 1 if one survived that is not accepted, hung, or could not be run.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.mutants.all_mutants import ALL
from tests.mutants.mutant import Mutant
from tests.mutants.runner import GOOD, Outcome, Runner, Verdict, check, copy_of

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240.0


def main() -> int:
    """Run them and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="parts of names or files; none means all")
    parser.add_argument("--list", action="store_true", help="list them and run nothing")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, help="seconds for each, then it is a hang"
    )
    given = parser.parse_args()
    chosen = [
        one for one in ALL if not given.words or any(w in one.name or w in one.file for w in given.words)
    ]
    if given.list:
        for one in chosen:
            print(f"{one.name}: {one.file}: {one.claim}{' (accepted)' if one.accepted else ''}")
        return 0
    if wrong := check(ROOT, ALL):
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="timerwheel-mutants-") as scratch:
        return _run(chosen, Path(scratch), given.timeout)


def _run(chosen: list[Mutant], scratch: Path, timeout_s: float) -> int:
    with copy_of(ROOT, scratch) as tree:
        runner = Runner(tree, timeout_s)
        print(f"running the tests of {len(chosen)} mutants without any of them", flush=True)
        sound, named = runner.baseline(chosen)
        if not sound:
            print(named, "\nwithout a mutant, these tests fail already", file=sys.stderr)
            return 1
        verdicts = runner.run(chosen, _tell)
    counts = Counter(verdict.outcome for verdict in verdicts)
    shown = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    judged = len(verdicts) - counts[Outcome.ACCEPTED]
    killed = counts[Outcome.KILLED]
    print(f"{shown}; score {killed} of {judged}" + (f", {100 * killed // judged} %" if judged else ""))
    return int(any(verdict.outcome not in GOOD for verdict in verdicts))


def _tell(verdict: Verdict) -> None:
    mutant = verdict.mutant
    print(f"{verdict.outcome:<10}{mutant.name}: {mutant.claim}", flush=True)
    if verdict.outcome == Outcome.ACCEPTED:
        print(f"{'':<10}accepted: {mutant.accepted}", flush=True)
    if verdict.outcome == Outcome.BROKEN:
        print(verdict.tail, flush=True)


if __name__ == "__main__":
    sys.exit(main())
