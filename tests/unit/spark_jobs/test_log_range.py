"""Reading a part of a segment, also while its service writes it."""

from pathlib import Path
from zlib import crc32

import pytest

from timerwheel.spark_jobs.delivered.log_range import LogRange
from timerwheel.spark_jobs.delivered.position import LogChangedError
from timerwheel.spark_jobs.segments import Segment, SegmentGoneError
from timerwheel.store.errors import CorruptionError, FormatError
from timerwheel.store.files import DiskFiles
from timerwheel.store.log import CommitLog
from timerwheel.store.record import Kind, encode, unit_of

LOG_ID = b"i" * 16
TIMES = {"store_ms": 1_800_000_000_000, "due_ms": 1_800_000_000_000, "enqueue_ms": 1_800_000_000_000}
UNITS = (1, 3, 1, 2)


def record(number):
    return encode(Kind.MESSAGE, b"orders", b"", b"%d" % number * 20, **TIMES)


@pytest.fixture
def segment(tmp_path):
    """A segment of seven records in four units, and where each unit ends."""
    log = CommitLog(tmp_path / "log", DiskFiles(), 1 << 20)
    log.open(new_log_id=LOG_ID, now_ms=0, keep_from=0)
    ends = [64]
    for first, count in enumerate(UNITS):
        log.append([unit_of([record(first * 10 + n) for n in range(count)])], sync=False, now_ms=0)
        ends.append(log.tail)
    log.sync()
    log.close()
    return Segment("node-1", str(tmp_path / "log"), 0, None), ends


def path_of(segment):
    return Path(segment.directory, "00000000000000000000.log")


def ends_of(segment, lo=64, hi=None, *, skip=False):
    with LogRange(segment, LOG_ID, skip=skip) as source:
        rows = source.table(lo, hi).rows
        return (rows["offset"] + rows["size"]).tolist(), source.lost


def test_whatever_has_been_written_the_rows_are_those_of_whole_units(segment):
    found, ends = segment
    path = path_of(found)
    data = path.read_bytes()
    whole, _ = ends_of(found)
    assert len(whole) == sum(UNITS)
    for cut in range(64, len(data) + 1):
        for rest in (b"", b"\0" * 700):
            path.write_bytes(data[:cut] + rest)
            read, lost = ends_of(found)
            # Zeros behind the cut may be those that belong to the record.
            tail = max(end for end in ends if end <= cut or (rest and not any(data[cut:end])))
            assert read == [end for end in whole if end <= tail]
            assert lost == []


def test_a_part_has_the_records_between_two_offsets_sealed_or_not(segment):
    found, ends = segment
    whole, _ = ends_of(found)
    for low in ends:
        for high in ends:
            expected = [end for end in whole if low < end <= high]
            if low < high:
                assert ends_of(found, low, high)[0] == expected
                assert ends_of(found._replace(end=ends[-1]), low, high)[0] == expected


def test_damage_before_intact_records_is_an_error_or_left_out(segment):
    found, ends = segment
    path = path_of(found)
    data = bytearray(path.read_bytes())
    data[ends[1] + 100] ^= 1
    path.write_bytes(data)
    whole = [ends[1], *ends_of(found, ends[2])[0]]
    for high in (None, ends[-1]):
        with pytest.raises(CorruptionError, match=f"{ends[1]}: the CRC does not match; failOnDataLoss=false"):
            ends_of(found, 64, high)
        read, lost = ends_of(found, 64, high, skip=True)
        assert set(whole) < set(read)
        assert [one.offset for one in lost] == [ends[1]]
    assert ends_of(found, ends[2], ends[-1])[0] == whole[1:]


def test_a_file_that_is_shorter_than_what_was_planned_is_an_error(segment):
    found, ends = segment
    with pytest.raises(CorruptionError, match="the file ends 800 bytes too early"):
        ends_of(found, 64, ends[-1] + 800)


def test_a_record_of_a_newer_format_is_never_passed_over(segment):
    found, ends = segment
    path = path_of(found)
    data = bytearray(path.read_bytes())
    place, size = ends[0], ends[1] - ends[0]
    data[place + 8] = 9
    data[place + 4 : place + 8] = crc32(data[place + 8 : place + size]).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(FormatError, match="unknown format version 9; use a newer version"):
        ends_of(found, skip=True)


def test_the_record_at_a_position_is_told_from_another(segment):
    found, ends = segment
    with LogRange(found, LOG_ID, skip=False) as source:
        crc = source.crc_at(ends[0])
        assert source.has_record((ends[0], crc), ends[1])
        assert not source.has_record((ends[0], crc ^ 1), ends[1])
        assert not source.has_record((ends[0], crc), ends[2])
        assert not source.has_record((ends[-1], crc), ends[-1] + 104)


def test_a_segment_that_is_gone_or_of_another_log_is_named(segment):
    found, _ = segment
    with pytest.raises(LogChangedError, match="belongs to another log"):
        LogRange(found, b"j" * 16, skip=True)
    with pytest.raises(SegmentGoneError, match="start the query again"):
        LogRange(found._replace(base=4096), LOG_ID, skip=False)
