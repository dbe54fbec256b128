"""Consumers of an engine: what tests do with a group."""

from typing import Any

from tests.harness.cold import make_cold
from tests.harness.gated_threads import GatedThreads
from timerwheel.groups.config import Exponential, GroupConfig, GroupTerms
from timerwheel.model.messages import Delivery, Outgoing

QUICK = Exponential(initial_ms=1_000, factor=2.0, max_ms=60_000)


async def put(world, topic="orders", group="g", **config: Any) -> None:
    values = {"backoff": QUICK, "invisible_ms": 5_000, **config}
    await world.engine.groups.put(topic, group, GroupConfig(**values))


async def send(world, *bodies: str, topic="orders", **properties: str) -> None:
    await world.engine.sender.send([Outgoing(topic, body.encode(), dict(properties)) for body in bodies])


async def receive(
    world, count=100, topic="orders", group="g", tags=None, start=None, **options: Any
) -> list[Delivery]:
    terms = GroupTerms(tags, start, create=True)
    return await world.engine.groups.receive(topic, group, terms, count_max=count, **options)


async def ack(world, *deliveries: Delivery, group="g") -> list[bool]:
    results = await world.engine.groups.ack("orders", group, [d.receipt for d in deliveries])
    return [result.ok for result in results]


def bodies(deliveries: list[Delivery]) -> list[str]:
    return [delivery.message.body.decode() for delivery in deliveries]


def items(world, group="g"):
    return world.engine.core.state.groups.by_name[f"orders/{group}"].items


async def send_many(world, count: int) -> list[str]:
    names = [f"m{number:04}" for number in range(count)]
    for at in range(0, count, 50):
        await send(world, *names[at : at + 50])
    return names


def gated(world) -> GatedThreads:
    """The threads of the world's engine, which has to read messages from the disk from now on."""
    make_cold(world.engine)
    return world.threads
