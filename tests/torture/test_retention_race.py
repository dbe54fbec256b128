"""Retention against counting: threads of the real service, segments of 4 KiB that live for a second, kills.

TIMERWHEEL_TORTURE_RETENTION_S seconds, an hour unless told.
"""

import os

import pytest

from tests.torture.killing import Loop, Plan, seed_given

LASTS_S = float(os.environ.get("TIMERWHEEL_TORTURE_RETENTION_S") or 3_600)
SMALL = {"--segment-size": "4KiB", "--retention": "1s", "--retention-interval": "10ms"}


@pytest.mark.torture
async def test_retention_that_races_with_counting_leaves_the_books_right(tmp_path):
    await Loop(Plan(seed_given(), kills=5, lasts_s=LASTS_S, flags=SMALL), tmp_path).run()
