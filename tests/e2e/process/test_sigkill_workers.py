"""SIGKILL of the service and of workers, a few times; the long loop is in tests/torture."""

from tests.torture.killing import seed_given
from tests.torture.workers import WorkerLoop, WorkerPlan


async def test_after_three_kills_no_message_is_lost_and_none_that_was_acknowledged_comes_again(tmp_path):
    await WorkerLoop(WorkerPlan(seed_given(), kills=3, share=60, up_s_max=0.6), tmp_path, forked=True).run()
