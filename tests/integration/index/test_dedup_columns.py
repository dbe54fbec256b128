"""Keys of sends in columns: the next send under them finds them, whatever came in between."""

import msgspec
import pytest

from tests.harness.columns import send_in_columns
from tests.integration.index.test_dedup import HOUR_MS, STARTS, start_again
from timerwheel.errors import RefusedError
from timerwheel.model.messages import Outgoing

ROWS = 40


def bulk(first: int, count: int = ROWS) -> list[Outgoing]:
    return [
        Outgoing("orders", b"row %d" % number, {"TAGS": "t"}, str(number), after_ms=HOUR_MS)
        for number in range(first, first + count)
    ]


@pytest.mark.parametrize("start", STARTS)
async def test_rows_that_are_sent_again_are_stored_once_and_new_ones_beside_them_are_stored(world, start):
    await world.open()
    first = await send_in_columns(world.engine, bulk(0))
    others = await send_in_columns(
        world.engine, [*bulk(100), Outgoing("orders", b"no key", after_ms=HOUR_MS)]
    )
    await start_again(world, start)
    again = await send_in_columns(world.engine, bulk(0))
    assert [one.id for one in again] == [one.id for one in first]
    assert all(one.duplicate for one in again)
    mixed = await send_in_columns(world.engine, bulk(20))
    assert [one.duplicate for one in mixed] == [True] * 20 + [False] * 20
    [single] = await world.engine.sender.send(
        [
            msgspec.structs.replace(
                bulk(45)[0], properties={"TAGS": "t", "TIMER_DELAY_MS": str(HOUR_MS)}, after_ms=None
            )
        ]
    )
    assert (single.id, single.duplicate) == (mixed[25].id, True)
    assert len(await world.pending_ids()) == ROWS + len(others) + 20


@pytest.mark.parametrize("start", STARTS)
async def test_a_key_of_a_row_takes_no_other_message_and_names_the_row(world, start):
    await world.open()
    receipts = await send_in_columns(world.engine, bulk(0))
    await start_again(world, start)
    engine = world.engine
    assert await engine.keys.id_of("orders", "7") == receipts[7].id
    changed = bulk(0)
    changed[3] = msgspec.structs.replace(changed[3], body=b"other")
    with pytest.raises(RefusedError) as refused:
        await send_in_columns(engine, changed)
    assert [(fault.index, fault.code) for fault in refused.value.faults] == [(3, "key_reused")]
    await engine.recalls.recall_key("orders", "7")
    replaced = msgspec.structs.replace(bulk(7, 1)[0], body=b"instead")
    [second] = await send_in_columns(engine, [replaced])
    await start_again(world, start)
    assert await world.engine.keys.id_of("orders", "7") == second.id
