"""A hundred thousand recalls within 5 ms of firing: TIMERWHEEL_TORTURE_RACES messages if given."""

import os
import shutil
from pathlib import Path

import pytest

from tests.harness.racing import Race
from tests.torture.killing import seed_given

RACES = int(os.environ.get("TIMERWHEEL_TORTURE_RACES") or 100_000)


@pytest.mark.torture
async def test_every_answer_to_a_recall_within_5_ms_of_firing_is_true(tmp_path: Path) -> None:
    race = Race(tmp_path / "data", seed_given())
    await race.run(RACES)
    print(race.summary())
    await race.check()
    await race.reopen()
    await race.check()
    await race.engine.close()
    shutil.rmtree(tmp_path / "data" / "index")
    await race.reopen()
    await race.check()
    await race.engine.close()
