"""Flipped bits in a few hundred places; `make torture` takes thousands, of any file, or each byte."""

import asyncio
import random
from collections import Counter, defaultdict

import pytest

from tests.harness import flips

SEED = 20261122
SAMPLES = {"index/data.mdb": 60, "log/*.log": 40, "log/*.side": 15, "log/start": 20}
SAMPLE = 6  # of each other file


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return asyncio.run(flips.make(tmp_path_factory.mktemp("flips")))


def test_a_flipped_bit_in_any_file_leaves_the_truth_or_a_refusal_that_names_the_place(case, tmp_path):
    chance = random.Random(SEED)
    by_sort = defaultdict(list)
    for flip in flips.flips_of(case.directory, lambda _: chance.randrange(8)):
        by_sort[flips.sort_of(flip)].append(flip)
    chosen = [
        flip for sort, all_ in by_sort.items() for flip in chance.sample(all_, SAMPLES.get(sort, SAMPLE))
    ]
    found = list(flips.outcomes(case, chosen, tmp_path))
    wrong = [(flip, outcome.detail) for flip, outcome in found if outcome.kind == flips.WRONG]
    assert wrong == []
    kinds = Counter(outcome.kind for _, outcome in found)
    # The sample is worth its time only if it meets each way out.
    assert set(kinds) == set(flips.OUTCOMES) - {flips.WRONG}
    assert len(found) == len(chosen)
