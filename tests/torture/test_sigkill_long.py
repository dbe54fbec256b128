"""SIGKILL under load for as long as one likes: TIMERWHEEL_TORTURE_KILLS kills, 100 unless told."""

import os

import pytest

from tests.harness.forgetful_disk import ForgetfulDisk, why_missing
from tests.torture.killing import Loop, Plan, seed_given

KILLS = int(os.environ.get("TIMERWHEEL_TORTURE_KILLS") or 100)
NO_DISK = why_missing()


@pytest.mark.torture
async def test_after_many_kills_under_load_the_books_are_right(tmp_path):
    await Loop(Plan(seed_given(), kills=KILLS), tmp_path).run()


@pytest.mark.torture
@pytest.mark.skipif(NO_DISK is not None, reason=str(NO_DISK))
async def test_after_many_power_cuts_that_drop_all_unsynced_bytes_and_names_the_books_are_right(tmp_path):
    (tmp_path / "data").mkdir(mode=0o700)
    with ForgetfulDisk(tmp_path / "data" / "log", tmp_path / "platter") as disk:
        plan = Plan(seed_given(), kills=KILLS, flags={"--flush": "sync"})
        await Loop(plan, tmp_path, after_kill=disk.power_cut).run()
