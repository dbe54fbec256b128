"""The crashes of a module's run. With deduplication keys there are two: kept one by one, and in runs."""

import asyncio

import pytest

from tests.harness.crashes import crashes_of
from tests.harness.key_runs import WAYS_TO_KEEP_KEYS, keep_keys
from tests.harness.scratch import scratch

OF_KEYS = ("test_crash_carried_keys", "test_crash_replace")


@pytest.fixture(scope="module")
def crashes(request):
    """A crash at every step of the `run_once` of the module."""
    with pytest.MonkeyPatch.context() as patch, scratch() as root:
        keep_keys(getattr(request, "param", "single"), patch)
        yield asyncio.run(crashes_of(request.module.run_once, root))


def pytest_generate_tests(metafunc):
    if metafunc.module.__name__.rpartition(".")[2] in OF_KEYS and "crashes" in metafunc.fixturenames:
        metafunc.parametrize("crashes", WAYS_TO_KEEP_KEYS, indirect=True, scope="module")
