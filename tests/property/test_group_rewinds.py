"""Rewinds of a group to offsets of some queues, whatever had become of each message before."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.harness.consumers import ack, put, receive
from tests.harness.group_checks import check_groups
from tests.harness.world import World
from timerwheel.model.messages import Outgoing

QUEUES, RECEIVED, MORE = 3, 3, 2
FATES = ("acknowledged", "given back", "in flight", "dead", "redriven")
LONG_MS = 3_600_000


def expected(fates: Mapping[tuple[int, int], str], offsets: Mapping[int, int]) -> Counter[str]:
    """How often each message comes after the rewind."""
    found: Counter[str] = Counter()
    for queue in range(QUEUES):
        for number in range(RECEIVED + MORE):
            fate = fates.get((queue, number), "not received")
            if queue in offsets:
                times = int(number >= offsets[queue])
                times += fate == "redriven" and len(offsets) < QUEUES
            else:
                times = int(fate not in {"acknowledged", "dead"})
            found[f"{queue}:{number}"] += times
    return +found


async def send(world: World, numbers: Sequence[int]) -> None:
    await world.engine.sender.send(
        [
            Outgoing("orders", f"{queue}:{number}".encode(), queue=queue)
            for queue in range(QUEUES)
            for number in numbers
        ]
    )


async def rewound(
    world: World, fates: Mapping[tuple[int, int], str], offsets: dict[int, int], how: str
) -> None:
    await world.open(queues_per_topic=QUEUES)
    await put(world)
    await send(world, range(RECEIVED))
    got = {delivery.message.body.decode(): delivery for delivery in await receive(world)}
    of = {fate: [got[f"{q}:{n}"] for (q, n), one in fates.items() if one == fate] for fate in FATES}
    groups = world.engine.groups
    await ack(world, *of["acknowledged"])
    await groups.nack("orders", "g", [one.receipt for one in of["given back"]], delay_ms=1_000)
    for redrives, fate in ((True, "redriven"), (False, "dead")):
        await groups.give_up("orders", "g", [one.receipt for one in of[fate]], "poison")
        if redrives and of[fate]:
            await groups.dead.redrive("g")
    await send(world, range(RECEIVED, RECEIVED + MORE))
    await groups.rewind("orders", "g", offsets=offsets)
    if how != "goes on":
        await getattr(world, how)()
    check_groups(world.engine)
    came: Counter[str] = Counter()
    for _ in range(3):
        await world.advance(LONG_MS)
        while batch := await receive(world):
            came.update(one.message.body.decode() for one in batch)
            await ack(world, *batch)
    assert came == expected(fates, offsets)
    assert len((await world.engine.groups.dead.page("g")).letters) == len(of["dead"])
    check_groups(world.engine)


@given(
    st.lists(st.sampled_from(FATES), min_size=QUEUES * RECEIVED, max_size=QUEUES * RECEIVED),
    st.dictionaries(st.integers(0, QUEUES - 1), st.integers(0, RECEIVED + MORE), min_size=1),
    st.sampled_from(("goes on", "restart", "crash", "lose_index")),
)
def test_queues_that_a_rewind_names_go_on_there_and_the_others_lose_and_repeat_nothing(fates, offsets, how):
    places = [(queue, number) for queue in range(QUEUES) for number in range(RECEIVED)]

    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            world = World(Path(directory) / "data")
            try:
                await rewound(world, dict(zip(places, fates, strict=True)), offsets, how)
            finally:
                await world.engine.close()

    asyncio.run(run())
