"""One bit of a byte of any file, flipped one at a time.

TIMERWHEEL_TORTURE_FLIPS says of how many bytes one is flipped: eight unless told, which takes some minutes on
two cores; with 1, half an hour to an hour, it is each.
"""

import asyncio
import os
import random
import shutil
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.harness import flips
from tests.torture.killing import seed_given

WORKERS = 2
ONE_IN = int(os.environ.get("TIMERWHEEL_TORTURE_FLIPS") or 8)
SHARED_MEMORY = Path("/dev/shm")  # where it is, no disk is worn by a hundred thousand copies


@pytest.mark.torture
def test_a_flipped_bit_in_any_byte_leaves_the_truth_or_a_refusal_that_names_the_place() -> None:
    chance = random.Random(seed_given())
    scratch = Path(tempfile.mkdtemp(prefix="flips-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    wrong = []
    try:
        case = asyncio.run(flips.make(scratch))
        every = list(flips.flips_of(case.directory, lambda _: chance.randrange(8)))
        some = chance.sample(every, len(every) // ONE_IN)
        for number, (flip, outcome) in enumerate(flips.outcomes(case, some, scratch, WORKERS), 1):
            counts[flips.sort_of(flip)][outcome.kind] += 1
            if outcome.kind == flips.WRONG:
                wrong.append((flip, outcome.detail))
            if not number % 10_000:
                print(f"{number:,} of {len(some):,} flips, {len(wrong)} wrong", flush=True)
    finally:
        shutil.rmtree(scratch)
    print(flips.table(counts))
    assert wrong == []
