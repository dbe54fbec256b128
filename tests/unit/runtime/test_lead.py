"""Whether a process still leads: by the election, or else by the journal."""

import asyncio

import pytest

from timerwheel.errors import NotReadyError
from timerwheel.runtime.lead import ASK_MS_MAX, Lead, alone
from timerwheel.store.errors import JournalFencedError
from timerwheel.testing.manual_clock import ManualClock


class Journal:
    """Confirms, or not, when a test lets it."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[None]] = []

    async def confirm(self) -> None:
        self.asked.append(asyncio.get_running_loop().create_future())
        await self.asked[-1]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Node:
    def __init__(self) -> None:
        self.clock, self.journal, self.until_ms = ManualClock(), Journal(), 1_000
        self.lead = Lead(self.clock, lambda: self.until_ms, self.journal.confirm)

    async def ask(self) -> "asyncio.Task[None]":
        task = asyncio.create_task(self.lead.assure())
        await turns()
        return task


@pytest.fixture
async def node() -> Node:
    return Node()


async def test_the_journal_is_not_asked_while_the_election_is_certain(node: Node) -> None:
    await node.lead.assure()
    node.clock.advance(999)
    assert node.lead.is_certain
    await node.lead.assure()
    assert node.journal.asked == []
    node.clock.advance(1)
    assert not node.lead.is_certain


async def test_all_who_ask_before_the_journal_does_share_what_it_says(node: Node) -> None:
    node.until_ms = 0
    together = [asyncio.create_task(node.lead.assure()) for _ in range(10)]
    await turns()
    assert len(node.journal.asked) == 1
    late = [await node.ask() for _ in range(2)]  # what is on its way may be from before they asked
    assert len(node.journal.asked) == 1
    node.journal.asked[0].set_result(None)
    await asyncio.gather(*together)
    await turns()
    assert not any(one.done() for one in late)
    assert len(node.journal.asked) == 2
    node.journal.asked[1].set_result(None)
    await asyncio.gather(*late)


async def test_a_process_that_was_replaced_is_told(node: Node) -> None:
    node.until_ms = 0
    asked = await node.ask()
    node.journal.asked[0].set_exception(JournalFencedError("another process has claimed the journal"))
    with pytest.raises(NotReadyError, match="neither the election nor the journal confirms"):
        await asked


async def test_a_journal_that_does_not_answer_is_not_waited_for_longer_than_this(node: Node) -> None:
    node.until_ms = 0
    asked = await node.ask()
    node.clock.advance(ASK_MS_MAX - 1)
    await turns()
    assert not asked.done()
    node.clock.advance(1)
    with pytest.raises(NotReadyError):
        await asked


async def test_one_who_gives_up_does_not_take_the_answer_from_the_others(node: Node) -> None:
    node.until_ms = 0
    first, second = await node.ask(), await node.ask()
    first.cancel()
    await turns()
    node.journal.asked[0].set_result(None)
    await turns()
    if len(node.journal.asked) > 1:  # the second one came when the first question was on its way
        node.journal.asked[1].set_result(None)
    await second
    assert first.cancelled()


async def test_a_process_without_others_leads_for_good() -> None:
    lead = alone(ManualClock())
    assert lead.is_certain
    await lead.assure()
