"""The browser of the tests of the console, and which of them failed."""

from collections.abc import Generator, Iterator

import pytest
from playwright.sync_api import Browser

from tests.harness.browser import FAILED, browsing


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note a failure of a test or of its fixtures."""
    report = yield
    item.stash[FAILED] = report.failed or item.stash.get(FAILED, False)
    return report


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for a module: as long as it is there, no other event loop can run in this process."""
    with browsing() as found:
        yield found
