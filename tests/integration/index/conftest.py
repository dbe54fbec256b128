"""Each test of deduplication keys runs twice: with keys stored one by one, and with runs of them."""

import pytest

from timerwheel.index import key_runs


@pytest.fixture(autouse=True)
def keys_kept(request, monkeypatch):
    """How keys are kept; tests of other things run once."""
    if getattr(request, "param", "single") == "runs":
        monkeypatch.setattr(key_runs, "RUN_KEYS_MIN", 1)
        monkeypatch.setattr(key_runs, "PART_ROWS", 2)
        monkeypatch.setattr(key_runs, "MERGE_ROWS", 1)
        monkeypatch.setattr(key_runs, "FANOUT", 2)


def pytest_generate_tests(metafunc):
    if not metafunc.module.__name__.rpartition(".")[2].startswith("test_dedup"):
        return
    counts = "index_keys" in metafunc.function.__code__.co_names  # the rows of keys that are single
    metafunc.parametrize("keys_kept", ["single"] if counts else ["single", "runs"], indirect=True)
