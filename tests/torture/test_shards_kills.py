"""SIGKILL of shards under load: TIMERWHEEL_TORTURE_KILLS kills, 40 unless told."""

import os

import pytest

from tests.torture.killing import Plan, seed_given
from tests.torture.sharded import ShardsLoop

KILLS = int(os.environ.get("TIMERWHEEL_TORTURE_KILLS") or 40)


@pytest.mark.torture
async def test_after_kills_of_shards_under_load_the_books_are_right(tmp_path):
    plan = Plan(seed_given(), kills=KILLS, flags={"--flush": "sync"})
    await ShardsLoop(plan, tmp_path, noisy=True).run()
