"""The browser of the tests of the console."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.harness.browser import browsing


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for a module: as long as it is there, no other event loop can run in this process."""
    with browsing() as found:
        yield found
