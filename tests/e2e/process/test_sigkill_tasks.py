"""SIGKILL of the service while it calls tasks, once; the long loop is in tests/torture."""

from tests.torture import task_life


async def test_after_a_kill_every_task_is_called_and_reported_and_none_after_its_success(tmp_path):
    await task_life.live(tmp_path / "data", kills=1, tasks=20)
