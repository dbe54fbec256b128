"""The crashes of a module's run."""

import asyncio

import pytest

from tests.harness.crashes import crashes_of
from tests.harness.scratch import scratch


@pytest.fixture(scope="module")
def crashes(request):
    """A crash at every step of the `run_once` of the module."""
    with scratch() as root:
        yield asyncio.run(crashes_of(request.module.run_once, root))
