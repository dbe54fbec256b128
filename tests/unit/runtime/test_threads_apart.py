"""What threads share is published whole: a call sees the segments as of one moment, whatever others do."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.harness.faulty import FaultyFiles
from tests.harness.interleaving import each_order
from timerwheel.state.batch import parts_of, tally_segments
from timerwheel.state.state import LogState
from timerwheel.store.errors import OffsetError
from timerwheel.store.log import CommitLog
from timerwheel.store.log_reader import OPEN_SEGMENTS_MAX
from timerwheel.store.record import Kind, encode
from timerwheel.store.segment import SEGMENT_HEADER_SIZE

SEGMENT_BYTES = 1024
SEGMENTS = 5
DROPPED = 2
MODULES = (
    "timerwheel.store.log",
    "timerwheel.store.log_reader",
    "timerwheel.state.batch",
    "timerwheel.state.state",
)


def record(number: int) -> bytes:
    return encode(Kind.TIMER, b"t", b"", b"x" * 100, 1_000 + number, 9_000, 1_000 + number)


SIZE = len(record(0))


class Before(NamedTuple):
    """A log as it was when the call began: its segments, its end, and (offset, size) of each record."""

    bases: tuple[int, ...]
    tail: int
    places: np.ndarray


def make_log(segment_bytes: int = SEGMENT_BYTES, segments: int = SEGMENTS) -> CommitLog:
    log = CommitLog(Path("log"), FaultyFiles(), segment_bytes)
    log.open(new_log_id=b"i" * 16, now_ms=0)
    log.recover_tail(0, now_ms=0)
    while len(log.bases) < segments:
        log.append([[record(len(log.bases))]], sync=False, now_ms=0)
    return log


def places_in(log: CommitLog) -> np.ndarray:
    return np.array([(item.offset, len(item.data)) for item in log.scan(0)], np.uint64).reshape(-1, 2)


def drop(log: CommitLog) -> None:
    log.drop_before(log.bases[DROPPED])


def append(log: CommitLog) -> None:
    while len(log.bases) < SEGMENTS + 2:
        log.append([[record(0)]], sync=False, now_ms=0)


BOTH = pytest.mark.parametrize("meanwhile", [drop, append])


def in_each_order(
    call: Callable[[CommitLog, Before], Any],
    meanwhile: Callable[[CommitLog], None],
    check: Callable[[Any, Before, CommitLog], None],
) -> None:
    """`check` what the call gave, for every line of it before which the other thread may have been."""
    orders = 0
    for order in each_order(MODULES):
        log = make_log()
        before = Before(log.bases, log.tail, places_in(log))
        found = order.run(lambda: call(log, before), lambda: meanwhile(log), log.files_lock)  # noqa: B023
        check(found, before, log)
        orders += order.happened
    assert orders > 1


def or_removed(call: Callable[[], Any], offset: int, log: CommitLog) -> Any:
    """What the call gives; None if it says that retention has removed the segment, which must be true."""
    try:
        return call()
    except OffsetError:
        if offset >= log.bases[0]:
            raise
        return None


def test_counting_by_segment_is_right_whenever_retention_removes_segments():
    def call(log: CommitLog, before: Before) -> Any:
        offsets = np.array([base + 64 for base in before.bases[DROPPED:] for _ in range(2)], np.uint64)
        return tally_segments(offsets, log.bases), list(parts_of(offsets, log.bases))

    def check(found: Any, before: Before, _log: CommitLog) -> None:
        tally, parts = found
        assert tally == [(base, 2) for base in before.bases[DROPPED:]]
        assert [(base, high - low) for base, low, high in parts] == tally

    in_each_order(call, drop, check)


@BOTH
def test_records_take_effect_in_the_segments_in_which_they_lie(meanwhile):
    def call(log: CommitLog, before: Before) -> dict[int, int]:
        log_state = LogState(lambda: log.bases)
        for table in log.tables(before.bases[DROPPED], before.tail):
            log_state.apply(table, log.tail)
        return {base: segment.pending for base, segment in log_state.segments.items()}

    def check(pending: dict[int, int], before: Before, _log: CommitLog) -> None:
        offsets = [place for place in before.places[:, 0].tolist() if place >= before.bases[DROPPED]]
        assert pending == Counter(max(b for b in before.bases if b <= offset) for offset in offsets)

    in_each_order(call, meanwhile, check)


@BOTH
def test_a_read_gives_the_record_or_says_that_retention_removed_it(meanwhile):
    def call(log: CommitLog, before: Before) -> list[Any]:
        return log.read_many(before.places[:, 0], before.places[:, 1])

    def check(found: list[Any], before: Before, log: CommitLog) -> None:
        for data, offset in zip(found, before.places[:, 0].tolist(), strict=True):
            assert isinstance(data, bytes) or offset < log.bases[0], data

    in_each_order(call, meanwhile, check)


@BOTH
def test_an_offset_at_the_end_is_refused_or_is_a_record_by_then(meanwhile):
    def call(log: CommitLog, before: Before) -> bytes | None:
        try:
            return log.read(before.tail)
        except OffsetError:
            return None

    in_each_order(call, meanwhile, lambda data, _before, _log: data is None or len(data) == SIZE)


@BOTH
def test_a_segment_ends_where_it_ended_or_is_said_to_be_removed(meanwhile):
    def call(log: CommitLog, before: Before) -> list[Any]:
        return [
            or_removed(lambda: (log.end_of(base), len(log.segment_table(base).rows)), base, log)  # noqa: B023
            for base in before.bases[:-1]
        ]

    def check(found: list[Any], before: Before, _log: CommitLog) -> None:
        for ends, (base, following) in zip(found, itertools.pairwise(before.bases), strict=True):
            assert ends in (None, (following, (following - base - SEGMENT_HEADER_SIZE) // SIZE))

    in_each_order(call, meanwhile, check)


@BOTH
def test_sidecars_of_removed_segments_are_not_left_behind(meanwhile):
    def call(log: CommitLog, before: Before) -> None:
        for base in before.bases[:-1]:
            or_removed(lambda: log.write_sidecar(base, None), base, log)  # noqa: B023

    def check(_found: None, before: Before, log: CommitLog) -> None:
        sealed = [base for base in before.bases[:-1] if base >= log.bases[0]]
        expected = {log.path(base).name for base in log.bases} | {log.sidecar_path(b).name for b in sealed}
        assert set(log.files.names(log.directory)) == expected

    in_each_order(call, meanwhile, check)


@BOTH
def test_a_removed_segment_is_not_kept_open(meanwhile):
    def call(log: CommitLog, before: Before) -> None:
        log.close()
        for base in before.bases:
            or_removed(lambda: log.file(base), base, log)  # noqa: B023

    def check(_found: None, _before: Before, log: CommitLog) -> None:
        assert set(log.open_segments) <= set(log.bases)

    in_each_order(call, meanwhile, check)


@pytest.mark.parametrize("write", [append, drop])
def test_between_any_two_steps_of_the_writer_a_reader_finds_every_record_that_stays(write):
    """The other way round: the writer line by line, the reader at once in between."""
    for order in each_order(("timerwheel.store.log", "timerwheel.store.log_reader")):
        log = make_log()
        kept = log.bases[DROPPED]

        def look(log: CommitLog = log, kept: int = kept) -> None:
            tail = log.tail
            places = np.array([(i.offset, len(i.data)) for i in log.scan(kept, tail)], np.uint64)
            assert int(places[-1].sum()) in (tail, tail - SEGMENT_HEADER_SIZE)
            found = log.read_many(places[:, 0], places[:, 1])
            assert all(isinstance(data, bytes) for data in found)
            assert len({id(log.file(base)) for base in log.bases}) == len(log.bases)

        order.run(lambda log=log: write(log), look, log.files_lock)
        assert {id(file) for file in log.open_segments.values()} == {id(log.file(base)) for base in log.bases}
        ends = places_in(log)[-1].sum()
        assert ends == log.tail


def test_a_segment_has_one_open_file_however_many_threads_ask_first():
    log = make_log()
    for _ in range(50):
        log.close()
        gate, found = threading.Barrier(4), []

        def ask(gate: threading.Barrier = gate, found: list[Any] = found) -> None:
            gate.wait()
            found.append(log.file(log.bases[-1]))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(file) for file in found}) == 1


def test_the_last_segment_stays_open_however_many_are_read():
    log = make_log(256, OPEN_SEGMENTS_MAX + 10)
    last = log.file(log.bases[-1])
    for base in log.bases:
        log.file(base)
    assert log.file(log.bases[-1]) is last
    assert len(log.open_segments) == OPEN_SEGMENTS_MAX
