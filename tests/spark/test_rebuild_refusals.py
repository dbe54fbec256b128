"""The check of a new index: whatever differs from what executors made is refused, and the old one stays."""

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.harness.drive import small_settings
from tests.harness.index_dump import dump_index, pending_of, replay
from tests.harness.world import World
from timerwheel.cli import rebuild as command
from timerwheel.cli.spark_options import Job
from timerwheel.cli.table import typed
from timerwheel.index import dedup, forwarding, queues
from timerwheel.runtime.recovery import recover
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.monitoring.job_metrics import JobMetrics
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.rebuild.index_build import check_complete, load_rows, open_new, summarize_index
from timerwheel.spark_jobs.rebuild.index_rows import IndexRows, SegmentPlan, SegmentStats, rows_file
from timerwheel.spark_jobs.session import plain_errors
from timerwheel.state import dedup_key
from timerwheel.state.key_columns import NewKeys
from timerwheel.store import pages
from timerwheel.store.errors import IndexDamagedError
from timerwheel.store.files import DiskFiles
from timerwheel.store.index import Index
from timerwheel.store.keys import sequence_key, sequence_of, slot_of, slot_prefix
from timerwheel.store.record import NO_OFFSET, Kind
from timerwheel.store.table import ROW_DTYPE, Table
from timerwheel.wheel import slot_table
from timerwheel.wheel.geometry import HOUR_MS, Horizons, Level, first_horizons

NOW_MS = 1_800_000_000_000
MAP_SIZE_BYTES = 1 << 26
RECORD_BYTES = 128
ONE_SLOT, SPREAD, VISIBLE, RECALLED, KEYS = 2_500, 60, 5_000, 10, 3
PENDING = ONE_SLOT + SPREAD - RECALLED


# ------------------------------------------------------------------ one segment, and its index


def segment_table() -> Table:
    """Timers of which many share a slot, messages enough for three pages of a queue, and recalls."""
    rows = np.zeros(ONE_SLOT + SPREAD + VISIBLE + RECALLED, ROW_DTYPE)
    rows["offset"] = rows["root"] = 64 + RECORD_BYTES * np.arange(len(rows))
    rows["origin"] = NO_OFFSET
    rows["size"] = RECORD_BYTES
    rows["store_ms"] = rows["due_ms"] = NOW_MS
    timers, spread = rows[: ONE_SLOT + SPREAD], rows[ONE_SLOT : ONE_SLOT + SPREAD]
    timers["kind"] = Kind.TIMER
    timers["due_ms"] = NOW_MS + 10_000
    spread["due_ms"] = NOW_MS + np.arange(SPREAD) ** 2 * (HOUR_MS // 3)
    rows[ONE_SLOT + SPREAD :]["kind"] = Kind.MESSAGE
    recalls = rows[-RECALLED:]
    recalls["kind"] = Kind.CANCEL
    recalls["origin"] = recalls["root"] = timers["offset"][:RECALLED]
    recalls["prior_due_ms"] = timers["due_ms"][:RECALLED]
    return Table(rows, ["orders"])


class Executed(NamedTuple):
    """What executors made of the segment."""

    staging: str
    horizons: Horizons
    stats: SegmentStats


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    staging = str(tmp_path_factory.mktemp("staging"))
    horizons = first_horizons(NOW_MS)
    rows = IndexRows([SegmentPlan(0, 64, {"orders": 7}, {("orders", 0): 0})], horizons, staging)
    table = segment_table()
    collected = rows.collect(0, table, pa.table(rows.emit(0, table)))
    return Executed(
        staging, horizons, msgspec.msgpack.decode(collected["stats"][0].as_py(), type=SegmentStats)
    )


def put_keys(txn, entries):
    keys = NewKeys()
    keys.put(entries)
    dedup.put(txn, keys, 1 << 30)


@pytest.fixture
def index(executed, tmp_path):
    """The index that the driver makes of it."""
    index = open_new(tmp_path / "index.new", MAP_SIZE_BYTES)
    load_rows(index, [rows_file(executed.staging, 0)], lambda _done, _files: None)
    entry = dedup_key.KeyEntry(64, 1, bytes(16), NOW_MS)
    with index.write() as txn:
        put_keys(txn, {dedup_key.digest_of("orders", str(number)): entry for number in range(KEYS)})
    yield index
    index.close()


def check(index: Index, executed: Executed) -> None:
    """As a rebuild does before it swaps."""
    check_complete(summarize_index(index, check=executed.horizons), [executed.stats], KEYS)


def test_an_index_that_holds_what_executors_made_passes(index, executed):
    check(index, executed)
    found = summarize_index(index)
    assert (found.pending, found.positions, found.marks, found.keys) == (PENDING, VISIBLE, RECALLED, KEYS)
    with index.read() as txn:
        slots = [slot_of(key) for key, _ in txn.pages(slot_table.TABLE, b"")]
        assert len(slots) > found.slots == len(set(slots))
        assert {level for level, _ in slots} == set(Level)
        assert [sequence_of(key) for key, _ in txn.pages(queues.TABLE, b"")] == [0, 2_048, 4_096]


def test_a_timer_that_lies_there_with_its_end_counts_for_nothing(index, executed):
    ended = np.zeros(2, slot_table.ENTRY_DTYPE)
    ended["offset"] = 1 << 40
    ended["due_ms"] = NOW_MS + 10_000
    ended["op"] = (slot_table.ADD, slot_table.REMOVE)
    for sequence, entry in enumerate(np.split(ended, 2), 1 << 20):
        with index.write() as txn:
            slot_table.put(txn, entry, executed.horizons, sequence)
    check(index, executed)


# ------------------------------------------------------------------ ways in which it can be wrong


def all_pages(txn, table) -> list[tuple[bytes, bytes]]:
    return [(key, value) for key, value in txn.items(table)]


def unpacked(value: bytes, dtype: np.dtype) -> np.ndarray:
    """The rows of a packed page."""
    return np.frombuffer(value[pages.HEAD_SIZE - pages.CHECK_SIZE :], dtype).copy()


def move(txn, table, key, to) -> None:
    value = txn.get(table, key)
    txn.remove(table, [key])
    txn.put(table, to, value)


def second_too_late(txn) -> None:
    key, _ = all_pages(txn, slot_table.TABLE)[0]
    level, start_ms = slot_of(key)
    move(txn, slot_table.TABLE, key, slot_prefix(level, start_ms + 1_000) + key[-8:])


def level_too_fine(txn) -> None:
    key, _ = all_pages(txn, slot_table.TABLE)[-1]
    level, start_ms = slot_of(key)
    assert level == Level.DAY
    move(txn, slot_table.TABLE, key, slot_prefix(Level.HOUR, start_ms) + key[-8:])


def one_timer_in_the_slot_of_another(txn) -> None:
    (key, value), (_, other) = all_pages(txn, slot_table.TABLE)[-2:]
    rows = unpacked(value, slot_table.ENTRY_DTYPE)
    rows[0] = unpacked(other, slot_table.ENTRY_DTYPE)[0]
    txn.put(slot_table.TABLE, key, pages.pack(rows))


def queue_page_missing(place):
    return lambda txn: txn.remove(queues.TABLE, [all_pages(txn, queues.TABLE)[place][0]])


def queue_offset_left_out(txn) -> None:
    key, _ = all_pages(txn, queues.TABLE)[-1]
    move(txn, queues.TABLE, key, key[:-8] + sequence_key(sequence_of(key) + 1))


def queue_pages_exchanged(txn) -> None:
    (one, first), (other, second), _ = all_pages(txn, queues.TABLE)
    txn.put(queues.TABLE, one, second)
    txn.put(queues.TABLE, other, first)


def queue_page_twice(txn) -> None:
    key, value = all_pages(txn, queues.TABLE)[-1]
    txn.put(queues.TABLE, key[:-8] + sequence_key(VISIBLE), value)


def change_rows(table, dtype, change):
    """A wrong index in whose first page some rows were changed."""

    def wrong(txn) -> None:
        key, value = all_pages(txn, table)[0]
        txn.put(table, key, pages.pack(change(unpacked(value, dtype))))

    return wrong


def change_wheel(change):
    return change_rows(slot_table.TABLE, slot_table.ENTRY_DTYPE, change)


def changed(rows, name, by):
    rows[name][0] += by
    return rows


def key_missing(txn) -> None:
    txn.delete(dedup.TABLE, dedup_key.digest_of("orders", "0"))


def key_more(txn) -> None:
    put_keys(txn, {dedup_key.digest_of("tickets", "0"): dedup_key.KeyEntry(64, 1, bytes(16), NOW_MS)})


def removed_once_more(txn) -> None:
    rows = unpacked(all_pages(txn, slot_table.TABLE)[0][1], slot_table.ENTRY_DTYPE)[:1]
    rows["op"] = slot_table.REMOVE
    slot_table.put(txn, rows, first_horizons(NOW_MS), 1 << 20)


MISPLACED = {
    "a page in the slot a second later": (second_too_late, r"wrong slot: level 0, \d+ ms"),
    "a page in a finer level": (level_too_fine, r"wrong slot: level 2, \d+ ms"),
    "one timer in the slot of another": (one_timer_in_the_slot_of_another, r"wrong slot: level 3, \d+ ms"),
    "a page missing within a queue": (queue_page_missing(1), "gap in queue .* at queue offset 2048"),
    "a queue offset left out": (queue_offset_left_out, "gap in queue .* at queue offset 4096"),
    "two pages of a queue exchanged": (queue_pages_exchanged, "gap in queue .* at queue offset 2048"),
    "a page of a queue twice": (queue_page_twice, "gap in queue .* at queue offset 5000"),
}
DIFFERENT = {
    "the first page of a queue missing": (queue_page_missing(0), f"positions = {VISIBLE - 2_048}, "),
    "the last page of a queue missing": (queue_page_missing(-1), "positions = 4096, "),
    "a timer less": (change_wheel(lambda rows: rows[1:]), f"pending = {PENDING - 1}, the log {PENDING}"),
    "a timer twice": (
        change_wheel(lambda rows: np.append(rows, rows[:1])),
        f"pending = {PENDING + 1}, the log {PENDING}",
    ),
    "a timer ended that waits": (removed_once_more, f"pending = {PENDING - 1}, the log {PENDING}"),
    "another timer": (change_wheel(lambda rows: changed(rows, "offset", 8)), "digest = "),
    "a timer that is due a millisecond later": (
        change_wheel(lambda rows: changed(rows, "due_ms", 1)),
        "digest = ",
    ),
    "a mark less": (
        change_rows(forwarding.TABLE, forwarding.MARK_DTYPE, lambda rows: rows[1:]),
        f"marks = {RECALLED - 1}, the log {RECALLED}",
    ),
    "a key less": (key_missing, f"keys = {KEYS - 1}, the log {KEYS}"),
    "a key more": (key_more, f"keys = {KEYS + 1}, the log {KEYS}"),
}


@pytest.mark.parametrize("name", MISPLACED)
def test_what_is_not_where_it_belongs_is_refused_with_its_place(index, executed, name):
    wrong, told = MISPLACED[name]
    with index.write() as txn:
        wrong(txn)
    with pytest.raises(JobError, match=told):
        summarize_index(index, check=executed.horizons)
    summarize_index(index)  # an index that is only looked at may have any shape


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_executors_did_not_make_is_refused_with_both_counts(index, executed, name):
    wrong, told = DIFFERENT[name]
    with index.write() as txn:
        wrong(txn)
    summary = summarize_index(index, check=executed.horizons)
    with pytest.raises(JobError, match=f"the new index was not swapped in: it has {told}"):
        check_complete(summary, [executed.stats], KEYS)


@pytest.mark.parametrize("table", [slot_table.TABLE, queues.TABLE, forwarding.TABLE])
def test_a_flipped_bit_in_any_sort_of_page_is_refused(index, executed, table):
    with index.write() as txn:
        key, value = all_pages(txn, table)[-1]
        txn.put(table, key, value[:-3] + bytes([value[-3] ^ 1]) + value[-2:])
    with pytest.raises(IndexDamagedError, match="CRC"):
        summarize_index(index, check=executed.horizons)


# ------------------------------------------------------------------ the digest of what waits

# One pair in 2^64 counts for nothing, (2^62, 2^62) for example: that is far beyond any due time.
TIMERS = st.lists(st.tuples(st.integers(64, 2**63 - 1), st.integers(-(2**40), 2**50)), max_size=30)


def digest(timers: list[tuple[int, int]]) -> int:
    offsets, due_ms = zip(*timers, strict=True) if timers else ((), ())
    return pages.digest_of(np.array(offsets, np.uint64), np.array(due_ms, np.int64))


@given(TIMERS, TIMERS, st.randoms(use_true_random=False))
def test_the_digest_of_parts_adds_up_to_that_of_the_whole_in_any_order(one, other, rng):
    whole = one + other
    rng.shuffle(whole)
    assert digest(whole) == (digest(one) + digest(other)) % (1 << 64)
    assert (digest(whole) - digest(other)) % (1 << 64) == digest(one)


@given(TIMERS.filter(len), st.data())
def test_the_digest_tells_a_timer_with_another_offset_or_due_time(timers, data):
    at = data.draw(st.integers(0, len(timers) - 1))
    offset, due_ms = timers[at]
    by = data.draw(st.integers(1, 2**32))
    for other in ((offset + by, due_ms), (offset, due_ms + by)):
        assert digest([*timers[:at], other, *timers[at + 1 :]]) != digest(timers)


@given(TIMERS.filter(len), st.data())
def test_the_digest_tells_a_timer_that_is_not_there_or_there_twice(timers, data):
    at = data.draw(st.integers(0, len(timers) - 1))
    assert digest(timers[:at] + timers[at + 1 :]) != digest(timers)
    assert digest([*timers, timers[at]]) != digest(timers)


# ------------------------------------------------------------------ a whole run that is refused, and the next


class LossyProgress(JobProgress):
    """Stages of a job whose staged pages lose one timer between executors and driver."""

    staging: Path

    def stage(self, name):
        if name == "load":
            lose_a_timer(self.staging)
        return super().stage(name)


def lose_a_timer(staging: Path) -> None:
    for path in sorted((staging / "rows").glob("*.arrow")):
        with pa.ipc.open_file(path) as file:
            table = file.read_all()
        rows = table.to_pylist()
        for row in rows:
            if row["name"] == slot_table.TABLE:
                entries = unpacked(row["value"], slot_table.ENTRY_DTYPE)[1:]
                row["value"] = pages.pack(entries)
                with pa.ipc.new_file(path, table.schema) as file:
                    file.write_table(pa.Table.from_pylist(rows, table.schema))
                return
    raise AssertionError("nothing waits")


async def make_log(data: Path) -> None:
    """A few timers in two segments, of which some were delivered."""
    world = World(data)
    world.files = DiskFiles()
    await world.open()
    await world.send(*range(500, 15_500, 1_000), body=b"b" * 200)
    await world.advance(5_000)
    await world.engine.close()


@pytest.fixture
def run(spark, monkeypatch):
    """Runs the command within the session of these tests, with the progress class that it is given."""

    def run(data: Path, make_progress):
        @contextlib.contextmanager
        def job(this, **_more):
            options = this.options
            progress = make_progress(spark, show=False)
            if isinstance(progress, LossyProgress):
                progress.staging = Path(options.staging)
            with plain_errors():
                yield Job(spark, progress, options.staging, JobMetrics("rebuild", ""))

        monkeypatch.setattr(command, "spark_job", job)
        app = typer.Typer()
        app.command()(typed(command.rebuild))
        return CliRunner().invoke(app, ["--data", str(data)])

    return run


def test_a_refused_run_leaves_the_old_index_and_the_next_removes_what_was_left_over(run, tmp_path):
    data = tmp_path / "data"
    asyncio.run(make_log(data))
    shutil.copytree(data, tmp_path / "replayed")
    replay(tmp_path / "replayed", NOW_MS)
    before = (data / "index" / "data.mdb").read_bytes()

    refused = run(data, LossyProgress)
    assert isinstance(refused.exception, JobError)
    assert "the new index was not swapped in: it has pending = " in str(refused.exception)
    assert (data / "index" / "data.mdb").read_bytes() == before
    assert not (data / "index.aside").exists()
    assert not (data / "rebuild.tmp").exists()
    recovered = recover(small_settings(data), DiskFiles(), NOW_MS)
    assert (recovered.rebuilt, recovered.replayed_records) == (None, 0)
    recovered.writer.index.close()
    recovered.log.close()

    # What a run that was killed leaves besides.
    (data / "index.new").mkdir(exist_ok=True)
    (data / "index.new" / "data.mdb").write_bytes(b"half an index")
    (data / "rebuild.tmp" / "rows").mkdir(parents=True)
    (data / "rebuild.tmp" / "rows" / "00000000.arrow").write_bytes(b"half a file")

    assert run(data, JobProgress).exit_code == 0
    assert not (data / "index.new").exists()
    assert not (data / "rebuild.tmp").exists()
    assert pending_of(data) == pending_of(tmp_path / "replayed")
    assert dump_index(data) == dump_index(tmp_path / "replayed")
