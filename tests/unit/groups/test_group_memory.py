"""What a message that a group holds takes of memory: the figures of doc/guarantees.md, in bytes."""

import gc
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from timerwheel.groups.choosing import Lanes
from timerwheel.groups.leases import Lease, Leases
from timerwheel.state.groups import GroupState

COUNT = 5_000
FAR = 1 << 40  # so that no number is one of Python's small ones
GUARANTEES = Path(__file__).parents[3] / "doc" / "guarantees.md"


def leases() -> object:
    found = Leases()
    for n in range(COUNT):
        found.add(Lease(FAR + n, 1, FAR, FAR + n, FAR + n, receipt=f"{n:060x}"))
    return found


def items() -> object:
    found = GroupState(3, "orders", "g")
    for n in range(COUNT):
        found.retry(0, FAR + 2 * n, 1, FAR + 88 * n, FAR + n, ended=False)
    return found


def lanes() -> object:
    found = Lanes()
    for n in range(COUNT):
        found.join(FAR + n, FAR + 2 * n)
    return found


def bytes_of_one(make: Callable[[], object]) -> float:
    gc.collect()
    tracemalloc.start()
    made = make()
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert made is not None
    return size / COUNT


@pytest.mark.parametrize(("make", "named"), [(leases, "leased"), (items, "waiting"), (lanes, "key")])
def test_a_message_that_a_group_holds_takes_no_more_than_the_readme_says(make, named):
    text = " ".join(GUARANTEES.read_text().split())
    [limits] = re.findall(r"up to (\d+) bytes while leased, (\d+) while waiting, and (\d+) more", text)
    limit = int(limits[("leased", "waiting", "key").index(named)])
    assert 0.5 * limit < bytes_of_one(make) <= limit
