"""Every scenario of the clients, with both Python clients, against a service in a process of its own."""

from collections.abc import Iterator

import pytest

from tests.harness.processes import serving
from tests.harness.scenarios import CALLS, run, scenarios
from timerwheel import Client, SyncClient


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("scenarios") / "data", "--redelivery-delay", "1ms") as service:
        yield service.url


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario["name"])
async def test_the_asynchronous_client_does_what_the_scenario_says(url, scenario, request):
    async with Client(url) as client:
        await run(client, scenario, f"async-{request.node.callspec.indices['scenario']}")


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario["name"])
async def test_the_synchronous_client_does_what_the_scenario_says(url, scenario, request):
    with SyncClient(url) as client:
        await run(client, scenario, f"sync-{request.node.callspec.indices['scenario']}")


def test_every_call_is_in_a_scenario():
    assert {step["call"] for scenario in scenarios() for step in scenario["steps"]} == CALLS.keys()
