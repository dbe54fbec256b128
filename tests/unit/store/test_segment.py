from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timerwheel.store.errors import CorruptionError, FormatError
from timerwheel.store.files import DiskFiles
from timerwheel.store.record import FLAG_MORE, HEADER_SIZE, UNKNOWN_VERSION, Kind, encode, fault
from timerwheel.store.segment import (
    SEGMENT_HEADER_SIZE,
    Damage,
    Scanned,
    encode_header,
    read_header,
    scan,
    segment_base,
    segment_name,
    whole_units,
)

BASE = 123_456_789_012
START = BASE + SEGMENT_HEADER_SIZE
LOG_ID = bytes(range(16))


class MemoryFile:
    """Bytes in memory that are read as a segment is."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, position: int, size: int) -> bytes:
        return self.data[position : position + size]


def record(body_size: int, *, flags: int = 0) -> bytes:
    body = bytes(i % 251 for i in range(body_size))
    return encode(Kind.TIMER, b"t", b"", body, store_ms=1, due_ms=2, enqueue_ms=1, flags=flags)


def segment(records: list[bytes]) -> MemoryFile:
    return MemoryFile(encode_header(BASE, LOG_ID, 7) + b"".join(records))


def end_of(file: MemoryFile) -> int:
    return BASE + len(file.data)


def expected(records: list[bytes]) -> list[Scanned]:
    found, at = [], START
    for data in records:
        found.append(Scanned(at, data))
        at += len(data)
    return found


def test_segment_name_is_twenty_digits_and_read_back():
    assert segment_name(4096) == "00000000000000004096.log"
    assert segment_base(segment_name(BASE)) == BASE


@pytest.mark.parametrize(
    "name",
    ["", "4096.log", "00000000000000004096.side", "00000000000000004096.log.tmp", "start", "x" * 20 + ".log"],
)
def test_other_file_names_are_no_segment(name):
    assert segment_base(name) is None


def golden_header() -> bytes:
    lines = (Path(__file__).parents[1] / "golden" / "segment-v1.hex").read_text().splitlines()
    return bytes.fromhex("".join(line.partition("#")[0] for line in lines))


def test_golden_segment_header_of_format_1_is_read_and_written_alike():
    data = golden_header()
    assert len(data) == SEGMENT_HEADER_SIZE
    assert read_header(MemoryFile(data), Path("golden"), BASE) == LOG_ID
    assert encode_header(BASE, LOG_ID, 1_700_000_000_000) == data


def test_every_flipped_byte_of_a_segment_header_is_corruption():
    head = encode_header(BASE, LOG_ID, 7)
    for at in range(len(head)):
        damaged = bytearray(head)
        damaged[at] ^= 0xFF
        with pytest.raises(CorruptionError) as caught:
            read_header(MemoryFile(bytes(damaged)), Path("seg"), BASE)
        assert caught.value.offset == BASE


@pytest.mark.parametrize("size", [0, 1, 63])
def test_short_segment_header_is_corruption(size):
    with pytest.raises(CorruptionError, match="the segment header is damaged"):
        read_header(MemoryFile(encode_header(BASE, LOG_ID, 7)[:size]), Path("seg"), BASE)


def test_segment_under_another_name_is_corruption():
    with pytest.raises(CorruptionError, match=f"states base offset {BASE}"):
        read_header(MemoryFile(encode_header(BASE, LOG_ID, 7)), Path("seg"), BASE + 8)


def test_segment_of_another_format_is_a_format_error(monkeypatch):
    monkeypatch.setattr("timerwheel.store.segment.FORMAT_VERSION", 2)
    head = encode_header(BASE, LOG_ID, 7)
    monkeypatch.undo()
    with pytest.raises(FormatError, match="format version 2; this program reads 1"):
        read_header(MemoryFile(head), Path("seg"), BASE)


def test_scan_finds_records_larger_than_a_read_window(tmp_path):
    mebibyte = 1 << 20
    records = [
        record(size)
        for size in (0, 3 * mebibyte, 1, mebibyte, mebibyte - HEADER_SIZE - 1, mebibyte // 2, mebibyte, 9, 0)
    ]
    path = tmp_path / segment_name(BASE)
    path.write_bytes(segment(records).data)
    file = DiskFiles().open_readonly(path)
    assert list(scan(file, BASE, START, BASE + file.size())) == expected(records)
    file.close()


@pytest.mark.parametrize("window", [1, 79, 80, 81, 88, 200, 1 << 20])
def test_scan_finds_every_record_whatever_the_window(monkeypatch, window):
    monkeypatch.setattr("timerwheel.store.segment.READ_BYTES", window)
    records = [record(size) for size in (0, 1, 7, 8, 9, 100, 5, 1000, 0, 0, 33)]
    file = segment(records)
    assert list(scan(file, BASE, START, end_of(file))) == expected(records)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 400), max_size=12), st.data())
def test_scan_of_any_record_boundaries_gives_the_records_between(sizes, data):
    records = [record(size) for size in sizes]
    file = segment(records)
    edges = [item.offset for item in expected(records)] + [end_of(file)]
    low = data.draw(st.integers(0, len(edges) - 1))
    high = data.draw(st.integers(low, len(edges) - 1))
    assert list(scan(file, BASE, edges[low], edges[high])) == expected(records)[low:high]


@pytest.mark.parametrize("window", [80, 200, 1 << 20])
@pytest.mark.parametrize("place", [0, 1, 4, 5])
@pytest.mark.parametrize(
    ("at", "value"),
    [
        pytest.param(0, b"\0\0\0\0", id="size-zero"),
        pytest.param(0, b"\x28\0\0\0", id="size-below-header"),
        pytest.param(0, b"\x51\0\0\0", id="size-unaligned"),
        pytest.param(0, b"\xff\xff\xff\x7f", id="size-past-end"),
        pytest.param(0, b"\xff\xff\xff\xff", id="size-all-ones"),
        pytest.param(4, b"\0\0\0\0", id="crc"),
        pytest.param(9, b"\x09", id="kind"),
        pytest.param(56, b"\xee" * 8, id="due"),
        pytest.param(79, b"\x11", id="last-header-byte"),
        pytest.param(80, b"\x7f", id="topic"),
        pytest.param(95, b"\xfe", id="body"),
        pytest.param(-1, b"\x01", id="padding"),
    ],
)
def test_scan_stops_at_a_damaged_record_with_its_offset(monkeypatch, window, place, at, value):
    monkeypatch.setattr("timerwheel.store.segment.READ_BYTES", window)
    records = [record(size) for size in (30, 100, 0, 500, 60, 20)]
    whole = expected(records)
    damaged = bytearray(records[place])
    if at < 0:
        at += len(damaged)
    if damaged[at : at + len(value)] == value:
        pytest.skip("that record holds these bytes anyway")
    damaged[at : at + len(value)] = value
    if bytes(damaged[: len(records[place])]) == records[place] or len(damaged) != len(records[place]):
        pytest.skip("that record has no such place")
    file = segment([*records[:place], bytes(damaged), *records[place + 1 :]])
    found = list(scan(file, BASE, START, end_of(file)))
    assert found[:-1] == whole[:place]
    assert isinstance(found[-1], Damage)
    assert found[-1].offset == whole[place].offset


@pytest.mark.parametrize("window", [80, 1 << 20])
def test_scan_of_a_torn_record_stops_at_its_start_wherever_it_is_torn(monkeypatch, window):
    monkeypatch.setattr("timerwheel.store.segment.READ_BYTES", window)
    records = [record(30), record(100)]
    whole = segment(records)
    last = expected(records)[-1]
    for size in range(1, len(last.data)):
        file = MemoryFile(whole.data[: last.offset - BASE + size])
        found = list(scan(file, BASE, START, end_of(file)))
        assert found[0] == expected(records)[0]
        assert found[1:] == [Damage(last.offset, found[1].reason)]


def with_version(data: bytes, version: int) -> bytes:
    rest = bytearray(data[8:])
    rest[0] = version
    return data[:4] + crc32(rest).to_bytes(4, "little") + rest


@pytest.mark.parametrize("window", [80, 1 << 20])
def test_scan_stops_at_a_whole_record_of_another_version(monkeypatch, window):
    monkeypatch.setattr("timerwheel.store.segment.READ_BYTES", window)
    records = [record(30), with_version(record(100), 2), record(5)]
    first, second, _ = expected(records)
    file = segment(records)
    assert list(scan(file, BASE, START, end_of(file))) == [
        first,
        Damage(second.offset, f"{UNKNOWN_VERSION} 2"),
    ]


def found_one_by_one(data: bytes) -> list[Scanned | Damage]:
    """What a scan must find in these bytes of records: `fault` asked at every record."""
    found: list[Scanned | Damage] = []
    at = 0
    while at < len(data):
        problem = fault(data, at)
        if problem is not None:
            return [*found, Damage(START + at, problem)]
        size = int.from_bytes(data[at : at + 4], "little")
        found.append(Scanned(START + at, data[at : at + size]))
        at += size
    return found


@settings(max_examples=200)
@given(st.lists(st.integers(0, 400), max_size=8), st.sampled_from([1, 80, 88, 300, 1 << 20]), st.data())
def test_scan_goes_as_far_as_fault_finds_nothing_and_gives_its_reason(sizes, window, data):
    harmed = bytearray(b"".join(record(size) for size in sizes))
    if harmed:
        cut = data.draw(st.integers(0, len(harmed)))
        harmed = harmed[:cut] if data.draw(st.booleans()) else harmed
    if harmed:
        at = data.draw(st.integers(0, len(harmed) - 1))
        harmed[at : at + 1] = data.draw(st.binary(max_size=4))
    file = segment([bytes(harmed)])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("timerwheel.store.segment.READ_BYTES", window)
        assert list(scan(file, BASE, START, end_of(file))) == found_one_by_one(bytes(harmed))


def test_scan_stops_at_zeros_after_the_last_record():
    records = [record(30), record(100)]
    file = MemoryFile(segment(records).data + bytes(4096))
    *found, damage = scan(file, BASE, START, end_of(file))
    assert found == expected(records)
    assert damage == Damage(end_of(segment(records)), "size 0 is not a record size")


def test_scan_that_meets_the_end_of_the_file_too_early_says_so():
    """A segment that lost its last records on a record boundary must not look complete."""
    records = [record(30), record(100), record(5)]
    whole = segment(records)
    shorter = MemoryFile(whole.data[: -len(records[-1])])
    *found, last = scan(shorter, BASE, START, end_of(whole))
    assert found == expected(records)[:-1]
    assert isinstance(last, Damage)
    assert last.offset == end_of(shorter)


def units_end(records: list[bytes], cut: int = 0) -> tuple[int, str | None]:
    file = segment(records)
    file = MemoryFile(file.data[: len(file.data) - cut])
    return whole_units(scan(file, BASE, START, end_of(file)), START)


def test_whole_units_of_nothing_end_where_they_start():
    assert units_end([]) == (START, None)


def test_whole_units_end_at_the_end_of_single_records():
    records = [record(1), record(2)]
    assert units_end(records) == (end_of(segment(records)), None)


def test_complete_unit_counts_whole():
    records = [record(1), record(2, flags=FLAG_MORE), record(3, flags=FLAG_MORE), record(4)]
    assert units_end(records) == (end_of(segment(records)), None)


@pytest.mark.parametrize("present", [1, 2])
def test_incomplete_last_unit_does_not_count(present):
    unit = [record(2, flags=FLAG_MORE), record(3, flags=FLAG_MORE), record(4)]
    before = [record(9, flags=FLAG_MORE), record(9)]
    assert units_end([*before, *unit[:present]]) == (
        end_of(segment(before)),
        "the last unit of records is not complete",
    )


def test_unit_with_a_torn_last_record_does_not_count():
    unit = [record(2, flags=FLAG_MORE), record(40)]
    end, reason = units_end([record(1), *unit], cut=8)
    assert end == end_of(segment([record(1)]))
    assert "reaches past the end" in reason


def test_nothing_after_a_damaged_record_counts():
    records = [record(1), record(2), record(3)]
    file = bytearray(segment(records).data)
    file[expected(records)[1].offset - BASE + 82] ^= 1
    memory = MemoryFile(bytes(file))
    assert whole_units(scan(memory, BASE, START, end_of(memory)), START) == (
        expected(records)[1].offset,
        "the CRC does not match",
    )
