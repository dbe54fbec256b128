"""Runs of deduplication keys against a dictionary: whatever is merged, each key is found and no other."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timerwheel.index import dedup, forwarding, key_runs
from timerwheel.state.dedup_key import KEY_KEPT_MS, Ended, KeyEntry, digest_of
from timerwheel.state.key_columns import NewKeys
from timerwheel.state.memtable import SegmentCount
from timerwheel.store.errors import IndexDamagedError
from timerwheel.store.index import Index

NOW_MS = 10 * KEY_KEPT_MS
SEGMENT = 1_000


@pytest.fixture(scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("RUN_KEYS_MIN", 3), ("PART_ROWS", 4), ("MERGE_ROWS", 2), ("FANOUT", 3)):
            patch.setattr(key_runs, name, value)
        yield


@pytest.fixture
def index(tmp_path):
    index = Index(tmp_path / "index", 1 << 26)
    yield index
    index.close()


def digest(number: int) -> bytes:
    return digest_of("orders", str(number))


def entry(root: int) -> KeyEntry:
    return KeyEntry(root, root % 97, bytes([root % 251]) * 16, root * 3)


def new_keys(entries: dict[int, KeyEntry]) -> NewKeys:
    keys = NewKeys()
    keys.put({digest(number): one for number, one in entries.items()})
    return keys


def put(index: Index, entries: dict[int, KeyEntry], number: int) -> None:
    with index.write() as txn:
        dedup.put(txn, new_keys(entries), number)


def merge_all(index: Index, number: int, now_ms: int = 0) -> int:
    """Take all steps that there are; returns how many runs are left."""
    while True:
        with index.write() as txn:
            if not key_runs.merge(txn, now_ms, number):
                return len(key_runs.runs_of(txn).runs)
        number += 1


def found(index: Index, numbers: range) -> dict[int, KeyEntry]:
    with index.read() as txn:
        there = dedup.find(txn, [digest(number) for number in numbers])
        alone = [dedup.find(txn, [digest(number)]) for number in numbers]
        assert {key: one for found in alone for key, one in found.items()} == there
        assert key_runs.proved_count(txn) >= 0
    return {number: there[digest(number)] for number in numbers if digest(number) in there}


COMMITS = st.lists(
    st.one_of(st.sets(st.integers(0, 40), min_size=1, max_size=30), st.just("merge"), st.just("step")),
    max_size=14,
)


@settings(max_examples=60)
@given(commits=COMMITS)
@pytest.mark.usefixtures("small")
def test_each_key_is_found_as_it_was_last_registered_and_no_other(tmp_path_factory, commits):
    index = Index(tmp_path_factory.mktemp("runs"), 1 << 26)
    segments(index, PENDING)
    expected: dict[int, KeyEntry] = {}
    for number, commit in enumerate(commits):
        if isinstance(commit, set):
            made = {key: entry(100 * number + key) for key in commit}
            put(index, made, 1_000 * number)
            expected |= made
        elif commit == "merge":
            merge_all(index, 1_000 * number)
        else:
            with index.write() as txn:
                key_runs.merge(txn, 0, 1_000 * number)
        assert found(index, range(45)) == expected
        for key in (0, 40, 44):
            with index.read() as txn:
                assert dedup.has_any(txn, [digest(key)]) == (key in expected)
    with index.read() as txn:
        txn.prove()
    index.close()


@pytest.mark.usefixtures("small")
def test_few_keys_are_stored_by_themselves_and_many_as_a_run(index):
    put(index, {1: entry(1), 2: entry(2)}, 1)
    with index.read() as txn:
        assert key_runs.runs_of(txn).runs == []
    put(index, {number: entry(number) for number in range(3, 30)}, 2)
    with index.read() as txn:
        [run] = key_runs.runs_of(txn).runs
        assert (run.number, run.bits, run.low, run.high, run.count) == (2, 3, 3, 29, 27)
        assert sorted(key_runs.digests(txn, run)) == sorted(digest(number) for number in range(3, 30))
    assert found(index, range(40)) == {number: entry(number) for number in range(1, 30)}


@pytest.mark.usefixtures("small")
def test_a_carried_key_counts_before_its_row_in_a_run_and_a_later_row_before_both(index):
    put(index, {number: entry(number) for number in range(5)}, 1)
    carried = entry(3)._replace(ended=Ended(9))
    put(index, {3: carried}, 2)
    assert found(index, range(3, 4)) == {3: carried}
    put(index, {number: entry(100 + number) for number in range(3, 9)}, 3)
    assert found(index, range(3, 4)) == {3: entry(103)}


@pytest.mark.usefixtures("small")
def test_merges_leave_few_runs_and_one_that_is_under_way_changes_nothing(index):
    segments(index, PENDING)
    for number in range(27):
        put(index, {10 * number + place: entry(10 * number + place) for place in range(10)}, 1_000 + number)
    with index.write() as txn:
        assert key_runs.merge(txn, 0, 5_000)
        assert key_runs.runs_of(txn).merge is not None
        assert len(key_runs.runs_of(txn).runs) == 27
    everything = {number: entry(number) for number in range(270)}
    assert found(index, range(280)) == everything
    assert merge_all(index, 6_000) == 1
    assert found(index, range(280)) == everything


def segments(index: Index, *counts: SegmentCount) -> None:
    with index.write() as txn:
        for number, count in enumerate(counts):
            txn.put("segments", (SEGMENT * number).to_bytes(8, "big"), msgspec.msgpack.encode(count))


ENDED = SegmentCount(0, 1, NOW_MS - KEY_KEPT_MS)
COUNTS = SegmentCount(0, 1, NOW_MS - KEY_KEPT_MS + 1)
STORED = SegmentCount(0, NOW_MS - KEY_KEPT_MS + 1, 0)
PENDING = SegmentCount(1, 1, 1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("other", [COUNTS, STORED, PENDING])
def test_keys_are_left_out_when_half_have_ended_a_day_ago_and_those_that_count_stay(index, other):
    rows = {number: entry(100 * number) for number in range(20)}  # half of them in each of two segments
    put(index, rows, 1)
    segments(index, COUNTS, other)
    with index.write() as txn:
        assert not key_runs.sweep(txn, NOW_MS, 50)
    segments(index, ENDED, other)
    with index.write() as txn:
        forwarding.put(txn, [(300, 1_500), (400, 500)], 40)
        assert key_runs.sweep(txn, NOW_MS, 50)
        assert not key_runs.sweep(txn, NOW_MS, 51)
    merge_all(index, 60, NOW_MS)
    kept = {3, *range(10, 20)}  # the message of key 3 has been moved to the segment that counts
    assert found(index, range(20)) == {number: rows[number] for number in kept}
    with index.write() as txn:
        assert not key_runs.sweep(txn, NOW_MS, 70)
    segments(index, ENDED, ENDED)
    with index.write() as txn:
        assert key_runs.sweep(txn, NOW_MS, 80)
    assert merge_all(index, 90, NOW_MS) == 0
    assert found(index, range(20)) == {}
    with index.read() as txn:
        assert list(txn.pages(key_runs.TABLE, b"")) == []
        txn.prove()


@pytest.mark.usefixtures("small")
def test_keys_whose_segments_are_gone_have_ended(index):
    put(index, {number: entry(100 * number) for number in range(20)}, 1)
    with index.write() as txn:
        txn.put("segments", (5_000).to_bytes(8, "big"), msgspec.msgpack.encode(PENDING))
        assert key_runs.sweep(txn, NOW_MS, 2)
    assert merge_all(index, 3, NOW_MS) == 0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("column", [key_runs.HIGH, key_runs.REST])
def test_a_part_that_changed_or_is_missing_is_damage(index, column):
    put(index, {number: entry(number) for number in range(3)}, 1)
    key = key_runs.PART_KEY.pack(1, 0, column)
    table = index.env.open_db(key_runs.TABLE.encode(), create=False)
    with index.env.begin(write=True) as txn:
        stored = bytearray(txn.get(key, db=table))
        stored[-1] ^= 1
        txn.put(key, bytes(stored), db=table)
    with pytest.raises(IndexDamagedError, match="fails its CRC"), index.read() as txn:
        dedup.find(txn, [digest(number) for number in range(3)])
    with index.write() as txn:
        txn.delete(key_runs.TABLE, key)
    with pytest.raises(IndexDamagedError, match="is missing"), index.read() as txn:
        dedup.find(txn, [digest(number) for number in range(3)])


def test_digests_that_share_their_first_half_are_told_apart(index):
    rows = np.zeros(4, key_runs.KEY_DTYPE)
    rows["high"], rows["low"], rows["root"] = (1 << 64) - 1, range(4), range(10, 14)
    with index.write() as txn:
        key_runs.put(txn, rows, 1)
    wanted = [b"\xff" * 8 + number.to_bytes(8, "big") for number in range(6)]
    with index.read() as txn:
        there = key_runs.find(txn, wanted)
    assert {wanted.index(one): there[one].root for one in there} == {0: 10, 1: 11, 2: 12, 3: 13}
