"""One-call tasks of the real process, which SIGKILL ends several times while it calls."""

import pytest

from tests.torture import task_life


@pytest.mark.torture
async def test_killed_again_and_again_every_task_is_called_and_none_after_its_success(tmp_path):
    await task_life.live(tmp_path / "data", kills=4, tasks=60)
