"""The crashes of a module's run. With deduplication keys there are two: kept one by one, and in runs.

Long runs of one part of the matrix stop at a sample of their steps, and in `make torture` at all.
"""

import asyncio

import pytest

from tests.harness.crashes import crashes_of
from tests.harness.key_runs import WAYS_TO_KEEP_KEYS, keep_keys
from tests.harness.scratch import scratch

OF_KEYS = ("test_crash_carried_keys", "test_crash_replace")
SAMPLED = ("test_crash_carried_keys", "test_crash_journal", "test_crash_standby", "test_crash_tasks")


@pytest.fixture(scope="module")
def crashes(request):
    """Crashes at the steps of the `run_once` of the module."""
    sampled = name_of(request.module) in SAMPLED
    with pytest.MonkeyPatch.context() as patch, scratch() as root:
        keep_keys(getattr(request, "param", "single"), patch)
        yield asyncio.run(crashes_of(request.module.run_once, root, sampled=sampled))


def name_of(module):
    return module.__name__.rpartition(".")[2]


def pytest_generate_tests(metafunc):
    if name_of(metafunc.module) in OF_KEYS and "crashes" in metafunc.fixturenames:
        metafunc.parametrize("crashes", WAYS_TO_KEEP_KEYS, indirect=True, scope="module")
