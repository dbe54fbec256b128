"""A connection of a client to a service, without a socket."""

import pytest

from tests.harness.remoting import Peer, remoting_of


@pytest.fixture
def limits():
    """Settings of the service that a module needs otherwise."""
    return {}


@pytest.fixture
async def remoting(world, limits):
    return remoting_of(await world.open(**limits))


@pytest.fixture
async def peer(remoting):
    return Peer(remoting)
