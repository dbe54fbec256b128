"""SIGKILL of the service and of workers: TIMERWHEEL_TORTURE_KILLS kills, 50 unless told."""

import os

import pytest

from tests.torture.killing import seed_given
from tests.torture.workers import WorkerLoop, WorkerPlan

KILLS = int(os.environ.get("TIMERWHEEL_TORTURE_KILLS") or 50)


@pytest.mark.torture
async def test_after_many_kills_no_message_is_lost_and_none_that_was_acknowledged_comes_again(tmp_path):
    await WorkerLoop(WorkerPlan(seed_given(), KILLS), tmp_path).run()
