"""SIGKILL under load for as long as one likes: TIMERWHEEL_TORTURE_KILLS kills, 100 unless told."""

import os

import pytest

from tests.torture.killing import Loop, Plan, seed_given

KILLS = int(os.environ.get("TIMERWHEEL_TORTURE_KILLS") or 100)


@pytest.mark.torture
async def test_after_many_kills_under_load_the_books_are_right(tmp_path):
    await Loop(Plan(seed_given(), kills=KILLS), tmp_path).run()
