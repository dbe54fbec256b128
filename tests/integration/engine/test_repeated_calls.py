"""Calls that are repeated in each turn of the event loop while the first one runs: one effect, one truth."""

from functools import partial

import pytest

from tests.harness.consumers import ack, put, receive, send
from tests.harness.drive import settle
from tests.harness.turns import met_in_each_turn
from timerwheel.errors import AlreadyRecalledError, NoOpenTransactionError
from timerwheel.model.messages import Outgoing, State

WAITING = {"TIMER_DELAY_MS": "60000"}
ENDED = [(False, "receipt_ended")]


async def test_a_recall_succeeds_once_and_the_others_hear_of_it(world):
    await world.open()
    [message_id] = await world.send_ids(60_000)
    recall = partial(world.engine.recalls.recall, message_id)
    first, others = await met_in_each_turn(recall, recall)
    assert first.state is State.RECALLED
    assert set(others) == {AlreadyRecalledError}


async def test_a_message_is_found_at_every_moment_of_its_recall_and_of_its_delivery(world):
    await world.open()

    async def fire(_message_id):
        world.clock.advance(10_000)
        await settle(world.engine)

    for first, end in ((world.engine.recalls.recall, State.RECALLED), (fire, State.DELIVERED)):
        [message_id] = await world.send_ids(10_000)
        get = partial(world.engine.messages.get, message_id)
        _, others = await met_in_each_turn(partial(first, message_id), get)
        states = [one.state for one in others]
        assert states[-1] is end
        assert set(states) <= {State.SCHEDULED, end}
        assert states == sorted(states, key=end.__eq__)


async def test_a_key_names_one_message_however_often_it_is_sent(world):
    await world.open()

    def again():
        return world.engine.sender.send([Outgoing("orders", b"x", WAITING, dedup_key="k")])

    [first], others = await met_in_each_turn(again, again)
    assert {receipt.id for [receipt] in others} == {first.id}
    assert await world.pending_ids() == [first.id]


async def test_a_transaction_ends_once(world):
    await world.open()
    transactions = world.engine.transactions
    for verb, state, told in (
        (transactions.commit, State.SCHEDULED, {NoOpenTransactionError}),
        (transactions.rollback, State.RECALLED, {AlreadyRecalledError}),
    ):
        begun = await transactions.begin(Outgoing("orders", b"x", WAITING))
        end = partial(verb, begun.id)
        first, others = await met_in_each_turn(end, end)
        assert first.state is state
        assert set(others) == told
        begun = await transactions.begin(Outgoing("orders", b"x", WAITING))
        commit = partial(transactions.commit, begun.id)
        _, others = await met_in_each_turn(partial(verb, begun.id), commit)
        assert set(others) <= {NoOpenTransactionError, AlreadyRecalledError}
        assert (await world.engine.messages.get(begun.id)).state is state


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
async def test_an_acknowledgement_may_be_repeated_and_ends_the_receipt_for_all_else(world, verb):
    await world.open()
    await put(world)
    await send(world, *"abcd")

    async def other(lease):
        rest = [60_000] if verb == "extend" else []
        results = await getattr(world.engine.groups, verb)("orders", "g", [lease.receipt], *rest)
        return [(one.ok, one.code) for one in results]

    for lease in await receive(world):
        first, others = await met_in_each_turn(partial(ack, world, lease), partial(other, lease))
        assert first == [True]
        assert all(one == ([(True, None)] if verb == "ack" else ENDED) for one in others)


async def test_a_message_that_is_given_back_is_given_back_once(world):
    await world.open()
    await put(world)
    await send(world, "a")
    [lease] = await receive(world)

    async def nack():
        results = await world.engine.groups.nack("orders", "g", [lease.receipt])
        return [(one.ok, one.code) for one in results]

    first, others = await met_in_each_turn(nack, nack)
    assert first == [(True, None)]
    assert all(one == ENDED for one in others)
