"""What must hold of every group at every moment: the invariants of `timerwheel.state.groups`."""

from timerwheel.engine import Engine
from timerwheel.state.groups import DEAD_QUEUE, GroupState, ItemState


def check_groups(engine: Engine) -> None:
    """Check all groups, and that the timers that wait are theirs."""
    log_state = engine.core.state
    timed = 0
    for state in log_state.groups:
        check_group(state)
        mine = sum(item.timed for item in state.items.values())
        assert log_state.topics[state.name].pending == mine, state.name
        timed += mine
    assert log_state.leases == timed
    assert engine.core.near.until_ms >= log_state.fired_until_ms


def check_group(state: GroupState) -> None:
    items = state.items.values()
    for passed in state.passed.values():
        edges = passed.edges
        assert len(edges) % 2 == 0
        assert edges == sorted(set(edges)), "stretches that touch, or out of order"
    assert all(key == item.key for key, item in state.items.items())
    for item in items:
        if item.queue != DEAD_QUEUE:
            assert item.queue_offset in state.passed[item.queue], "an item that may be taken for a fresh one"
        assert item.attempt >= (item.state in (ItemState.LEASED, ItemState.READY) and not item.ended)
        assert not (item.ended and item.state in (ItemState.LEASED, ItemState.PARKED))
    assert state.counts == {s: sum(item.state == s for item in items) for s in ItemState}
    assert state.by_root == {item.root: item for item in items}
    lanes: dict[int, list[int]] = {}
    for item in items:
        if item.lane:
            lanes.setdefault(item.lane, []).append(item.key)
    assert {lane: sorted(keys) for lane, keys in state.lanes.items()} == {
        n: sorted(k) for n, k in lanes.items()
    }
    first = {keys[0] for keys in state.lanes.values()}
    free = (item for item in items if not item.timed and not item.lent)
    may = {item.key for item in free if not item.lane or item.key in first}
    assert set(state.ready) == may
