"""The pytest plugin: fixtures that load the service only when a test asks for one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from timerwheel.client.sync_client import SyncClient
    from timerwheel.testing.service import LocalService


@pytest.fixture
def timerwheel_service() -> "Iterator[LocalService]":
    """A real service for this test, with its own data and a clock that the test moves: `advance("30m")`."""
    from timerwheel.testing.service import LocalService  # noqa: PLC0415 - only where it is used

    with LocalService() as service:
        yield service


@pytest.fixture
def timerwheel_client(timerwheel_service: "LocalService") -> "Iterator[SyncClient]":
    """A client of `timerwheel_service`; an asynchronous test makes a `Client(timerwheel_service.url)`."""
    with timerwheel_service.client() as client:
        yield client
