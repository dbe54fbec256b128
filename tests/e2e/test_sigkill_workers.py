"""SIGKILL of processes that consume from groups, a few times; the long loop is in tests/torture."""

from tests.torture.killing import seed_given
from tests.torture.workers import WorkerKills


async def test_after_three_kills_no_message_is_lost_and_none_that_was_acknowledged_comes_again(tmp_path):
    await WorkerKills(tmp_path, seed_given(), kills=3).run()
