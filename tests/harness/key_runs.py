"""Deduplication keys in runs however few they are, with runs of some parts that are merged soon."""

import pytest

from timerwheel.index import key_runs

WAYS_TO_KEEP_KEYS = ("single", "runs")


def keep_keys(how: str, patch: pytest.MonkeyPatch) -> None:
    """Have keys kept in one of these ways for as long as the patch lasts."""
    if how == "runs":
        for name, value in (("RUN_KEYS_MIN", 1), ("PART_ROWS", 2), ("MERGE_ROWS", 1), ("FANOUT", 2)):
            patch.setattr(key_runs, name, value)
