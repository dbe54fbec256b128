"""What nodes with too little disk do about the lead: each decision, and a group of such nodes over time."""

import random

import pytest

from timerwheel.runtime.election import Node
from timerwheel.runtime.room import (
    CAUGHT_UP_RUNS,
    HAND_OVER_MS_MIN,
    SHORT_MS,
    SPARE_BYTES,
    Part,
    Room,
    Standing,
    Step,
)

RESERVE = 512 << 20
ROOMY = Node("http://b", False, 0, True)
STAYS, GOES = Step(is_aside=False, hands_over=False), Step(is_aside=True, hands_over=True)
ASIDE = Step(is_aside=True, hands_over=False)


def test_a_node_is_short_below_the_reserve_and_until_a_quarter_more_is_free() -> None:
    room = Room()
    room.measured(RESERVE, RESERVE)
    assert not room.is_short
    room.measured(RESERVE - 1, RESERVE)
    assert room.is_short
    room.measured(RESERVE + RESERVE // 4 - 1, RESERVE)
    assert room.is_short
    room.measured(RESERVE + RESERVE // 4, RESERVE)
    assert not room.is_short


def test_without_a_reserve_a_node_is_short_of_what_a_copy_leaves_free() -> None:
    room = Room()
    room.measured(SPARE_BYTES - 1, 0)
    assert room.is_short


def test_a_node_that_could_not_write_is_short_until_it_can_whatever_is_free() -> None:
    room = Room()
    room.failed()
    room.measured(1 << 50, RESERVE)
    assert room.is_short
    room.worked()
    room.measured(1 << 50, RESERVE)
    assert not room.is_short


def leader_after(ms: int, *others: Node, standing: Standing | None = None) -> Step:
    """What a leader does that has been short for so long."""
    standing = standing or Standing()
    standing.decide(0, Part.LEADS, is_short=True, others=None)
    return standing.decide(ms, Part.LEADS, is_short=True, others=others)


def test_a_leader_that_stays_short_hands_over_to_a_standby_that_has_room() -> None:
    assert leader_after(SHORT_MS - 1, ROOMY) == STAYS
    assert leader_after(SHORT_MS, ROOMY) == GOES


@pytest.mark.parametrize(
    "others",
    [
        [],
        [ROOMY._replace(has_room=False)],
        [ROOMY._replace(has_room=None)],
        [ROOMY._replace(behind=None)],
        [ROOMY._replace(behind=CAUGHT_UP_RUNS + 1)],
        [ROOMY._replace(is_aside=True)],
        [ROOMY, ROOMY._replace(url="http://c", has_room=False)],
        [ROOMY, ROOMY._replace(url="http://c", behind=CAUGHT_UP_RUNS + 1)],
    ],
)
def test_it_stays_while_one_that_could_be_chosen_has_no_room_or_is_behind(others: list[Node]) -> None:
    assert leader_after(10 * SHORT_MS, *others) == STAYS


def test_one_that_stands_aside_without_room_does_not_keep_it() -> None:
    aside = Node("http://c", False, 5 * CAUGHT_UP_RUNS, False, True)
    assert leader_after(SHORT_MS, ROOMY._replace(behind=CAUGHT_UP_RUNS), aside) == GOES


def test_a_hand_over_that_has_begun_goes_on() -> None:
    standing = Standing()
    assert leader_after(SHORT_MS, ROOMY, standing=standing) == GOES
    assert standing.decide(SHORT_MS + 1, Part.LEADS, is_short=True, others=[]) == GOES
    assert standing.decide(SHORT_MS + 2, Part.LEADS, is_short=False, others=None) == GOES
    assert standing.decide(SHORT_MS + 3, Part.STANDS_BY, is_short=True, others=[ROOMY]) == ASIDE
    assert standing.decide(SHORT_MS + 4, Part.STANDS_BY, is_short=False, others=None) == STAYS


def test_a_node_hands_over_at_most_once_a_minute() -> None:
    standing = Standing()
    assert leader_after(SHORT_MS, ROOMY, standing=standing) == GOES
    standing.decide(SHORT_MS + 1, Part.STANDS_BY, is_short=False, others=None)
    again_ms = SHORT_MS + HAND_OVER_MS_MIN
    for now_ms in range(SHORT_MS + 2_000, again_ms, 1_000):
        assert standing.decide(now_ms, Part.LEADS, is_short=True, others=[ROOMY]) == STAYS
    assert standing.decide(again_ms, Part.LEADS, is_short=True, others=[ROOMY]) == GOES


def test_one_that_is_chosen_without_room_to_open_its_copy_hands_over_at_once_if_any_has_room() -> None:
    behind = ROOMY._replace(behind=None)
    for others, step in (([behind], GOES), ([ROOMY._replace(has_room=False)], STAYS), ([], STAYS)):
        assert Standing().decide(0, Part.CANNOT_LEAD, is_short=True, others=others) == step


def test_a_short_standby_stands_aside_while_another_has_room_and_no_longer() -> None:
    standing = Standing()
    assert standing.decide(0, Part.STANDS_BY, is_short=True, others=[ROOMY]) == ASIDE
    assert standing.decide(1, Part.STANDS_BY, is_short=True, others=None) == ASIDE  # nobody answered
    assert standing.decide(2, Part.STANDS_BY, is_short=True, others=[ROOMY._replace(has_room=False)]) == STAYS
    assert standing.decide(3, Part.STANDS_BY, is_short=True, others=[ROOMY]) == ASIDE
    assert standing.decide(4, Part.STANDS_BY, is_short=False, others=None) == STAYS


class Group:
    """Nodes that decide each second in any order, and a group that chooses any that does not stand aside."""

    def __init__(self, count: int, dice: random.Random) -> None:
        self.dice = dice
        self.now_ms = 0
        self.short = dict.fromkeys([f"http://{number}" for number in range(count)], False)
        self.standing = {url: Standing() for url in self.short}
        self.aside = dict.fromkeys(self.short, False)
        self.leader: str | None = None
        self.moves: list[tuple[int, str]] = []

    def seen(self, url: str) -> Node:
        return Node(url, url == self.leader, 0, not self.short[url], self.aside[url])

    def second(self) -> None:
        self.now_ms += 1_000
        for url in self.dice.sample(sorted(self.short), len(self.short)):
            part = Part.LEADS if url == self.leader else Part.STANDS_BY
            others = [self.seen(other) for other in self.short if other != url]
            step = self.standing[url].decide(self.now_ms, part, is_short=self.short[url], others=others)
            self.aside[url] = step.is_aside
            if step.hands_over:
                assert any(one.has_room and not one.is_aside for one in others)
                self.moves.append((self.now_ms, url))
                self.leader = None
            self.choose()

    def choose(self) -> None:
        standing = [url for url in sorted(self.short) if not self.aside[url]]
        if self.leader is None and standing:
            self.leader = self.dice.choice(standing)


@pytest.mark.parametrize("seed", range(20))
def test_over_time_a_node_with_room_leads_if_there_is_one_and_nodes_do_not_swap_endlessly(seed: int) -> None:
    dice = random.Random(seed)
    group = Group(dice.choice([2, 3, 4]), dice)
    for _ in range(40):
        for url in group.short:
            group.short[url] = dice.random() < 0.6
        if dice.random() < 0.2:  # the leader dies
            group.leader = None
        for _ in range(dice.choice([1, 10, 200])):
            group.second()
            assert group.leader is not None
        lasts = len(group.moves)
        for _ in range(HAND_OVER_MS_MIN // 1_000 + 10):
            group.second()
        assert len(group.moves) - lasts <= 1, "one is enough while nothing changes"
        assert not group.short[group.leader] or all(group.short.values())
    by_node: dict[str, int] = {}
    for at_ms, url in group.moves:
        assert at_ms - by_node.get(url, -HAND_OVER_MS_MIN) >= HAND_OVER_MS_MIN
        by_node[url] = at_ms
