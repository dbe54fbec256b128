"""What an event of one message costs, however many messages its group holds: counted, not timed."""

from tests.harness.consumers import ack, put, receive, send, send_many
from tests.harness.counted_dict import CountedDict
from tests.harness.drive import settle
from timerwheel.groups.choosing import STALE_SPARED

HELD = 500
HOUR_MS = 3_600_000


async def held(world):
    """A group with many messages that wait for a retry; returns its state."""
    await world.open()
    await put(world)
    await send_many(world, HELD)
    receipts = [one.receipt for one in await receive(world, HELD)]
    await world.engine.groups.nack("orders", "g", receipts, HOUR_MS, None)
    state = world.engine.core.state.groups.by_name["orders/g"]
    state.items = CountedDict(state.items)
    return state


async def test_the_end_of_an_attempt_looks_at_no_other_message_that_the_group_holds(world):
    state = await held(world)
    await send(world, "one")
    assert len(await receive(world)) == 1
    state.items.seen = 0
    await world.advance(5_000)
    await settle(world.engine)
    assert len(state.items) == HELD + 1  # it waits for its retry
    assert state.items.seen == 0


async def test_messages_with_more_attempts_than_their_group_grants_are_forgotten_when_they_are_done(world):
    await world.open()
    await put(world, max_attempts=1)
    chooser = world.engine.groups.runtimes["orders/g"].leasing.chooser
    state = world.engine.core.state.groups.by_name["orders/g"]
    state.items = CountedDict(state.items)
    for _ in range(3 * STALE_SPARED):
        await send(world, "two", TIMER_MAX_ATTEMPTS="2")
        await world.engine.groups.nack("orders", "g", [(await receive(world))[0].receipt], 0, "no")
        await world.advance(1_000)
        [again] = await receive(world)
        assert again.attempt == 2
        assert len(chooser.spared) < 2 * STALE_SPARED
        await ack(world, again)
    assert not state.items
