"""A world for each test."""

import pytest

from tests.harness.world import World


@pytest.fixture
async def world(tmp_path):
    world = World(tmp_path / "data")
    yield world
    if hasattr(world, "engine"):
        await world.engine.close()


@pytest.fixture
async def engine(world):
    return await world.open()
