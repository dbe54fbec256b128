"""Each test of deduplication keys runs twice: with keys stored one by one, and with runs of them."""

import pytest

from tests.harness.key_runs import WAYS_TO_KEEP_KEYS, keep_keys


@pytest.fixture(autouse=True)
def keys_kept(request, monkeypatch):
    """How keys are kept; tests of other things run once."""
    keep_keys(getattr(request, "param", "single"), monkeypatch)


def pytest_generate_tests(metafunc):
    if not metafunc.module.__name__.rpartition(".")[2].startswith("test_dedup"):
        return
    counts = "index_keys" in metafunc.function.__code__.co_names  # the rows of keys that are single
    metafunc.parametrize("keys_kept", ["single"] if counts else WAYS_TO_KEEP_KEYS, indirect=True)
