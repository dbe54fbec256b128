"""A receiver and an engine that pushes to it."""

import pytest

from tests.harness.held import open_held
from tests.harness.receiver import Receiver
from tests.harness.tasking import Tasking


@pytest.fixture
async def receiver():
    async with Receiver(addresses=60) as receiver:
        yield receiver


@pytest.fixture
async def site(world, receiver):
    await open_held(world)
    site = Tasking(world, receiver)
    await site.start()
    yield site
    receiver.release()
    await site.push.close()
