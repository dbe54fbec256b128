import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timerwheel.store import quarantine
from timerwheel.store.errors import (
    CorruptionError,
    ForeignSegmentError,
    FormatError,
    LogDamagedError,
    LogFailedError,
    NoSpaceError,
    OffsetError,
)
from timerwheel.store.files import DiskFile, DiskFiles
from timerwheel.store.log import CommitLog, OnDamage
from timerwheel.store.log_reader import OPEN_SEGMENTS_MAX, LogReader, scan_tables
from timerwheel.store.record import FLAG_MORE, HEADER_SIZE, Kind, decode, encode
from timerwheel.store.segment import SEGMENT_HEADER_SIZE, Scanned, encode_header, read_header, segment_name
from timerwheel.store.table import merge

LOG_ID = bytes(range(16))
SEGMENT_BYTES = 1024
TOPICS = ("orders", "b", "%RETRY%g")


def record(number: int, body_size: int = 100, *, more: bool = False) -> bytes:
    return encode(
        Kind.TIMER,
        TOPICS[number % len(TOPICS)].encode(),
        b"",
        bytes((number + i) % 251 for i in range(body_size)),
        store_ms=1_000 + number,
        due_ms=5_000 - number,
        enqueue_ms=1_000 + number,
        flags=FLAG_MORE if more else 0,
    )


def unit(number: int, count: int, body_size: int = 100) -> list[bytes]:
    return [record(number + i, body_size, more=i < count - 1) for i in range(count)]


def opened(
    directory: Path, files: DiskFiles | None = None, *, size: int = SEGMENT_BYTES, keep_from: int = 0
) -> CommitLog:
    log = CommitLog(directory, files or DiskFiles(), size)
    log.open(new_log_id=LOG_ID, now_ms=7, keep_from=keep_from)
    return log


def recovered(directory: Path, files: DiskFiles | None = None, *, keep_from: int = 0) -> CommitLog:
    log = opened(directory, files, keep_from=keep_from)
    log.recover_tail(0, now_ms=9)
    return log


def stopped(log: CommitLog) -> None:
    """A planned stop."""
    log.finish()
    log.close()


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "log"


def stored(log: CommitLog, units: list[list[bytes]]) -> list[tuple[int, bytes]]:
    """Append units and say where each of their records must lie."""
    done = log.append(units, sync=True, now_ms=9)
    assert done.error is None
    assert len(done.offsets) == len(units)
    places = []
    for offset, records in zip(done.offsets, units, strict=True):
        at = offset
        for data in records:
            places.append((at, data))
            at += len(data)
    return places


def arrays(places: list[tuple[int, bytes]]) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and sizes with the types of wheel entries."""
    offsets = np.array([offset for offset, _ in places], np.uint64)
    return offsets, np.array([len(data) for _, data in places], np.uint32)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


# ---------------------------------------------------------------------- writing and rolling


def test_empty_directory_gets_a_first_segment_and_the_given_log_id(directory):
    log = opened(directory)
    assert log.bases == (0,)
    assert log.tail == log.start == SEGMENT_HEADER_SIZE
    assert log.log_id == LOG_ID
    assert list(log.scan(0)) == []
    assert list(log.tables(0)) == []


def test_log_id_is_kept_when_the_log_is_opened_again(directory):
    opened(directory).close()
    log = CommitLog(directory, DiskFiles(), SEGMENT_BYTES)
    log.open(new_log_id=bytes(16), now_ms=8)
    assert log.log_id == LOG_ID


def test_segment_that_is_exactly_full_is_not_rolled(directory):
    log = opened(directory)
    size = len(record(0))
    body = 100 + (SEGMENT_BYTES - SEGMENT_HEADER_SIZE) % size
    full = (SEGMENT_BYTES - SEGMENT_HEADER_SIZE - len(record(0, body - body % 8 + 4))) // size
    stored(log, [[record(i)] for i in range(full)])
    rest = SEGMENT_BYTES - log.tail
    filler = record(0, rest - HEADER_SIZE - len(TOPICS[0]))
    assert len(filler) == rest
    stored(log, [[filler]])
    assert log.bases == (0,)
    assert log.tail == SEGMENT_BYTES
    stored(log, [[record(1, 0)]])
    assert log.bases == (0, SEGMENT_BYTES)


def test_unit_that_does_not_fit_goes_whole_into_the_next_segment(directory):
    log = opened(directory)
    places = stored(log, [unit(0, 3), unit(3, 3)])
    assert len(log.bases) == 2
    assert places[3][0] == log.bases[1] + SEGMENT_HEADER_SIZE
    assert log.bases[1] == places[2][0] + len(places[2][1])


@pytest.mark.parametrize("before", [0, 1])
def test_unit_larger_than_a_segment_gets_a_segment_of_its_own(directory, before):
    log = opened(directory)
    places = stored(log, [[record(9)]] * before + [unit(0, 5, 900), [record(5)]])
    assert len(log.bases) == before + 2
    assert {log.base_of(offset) for offset, _ in places[before : before + 5]} == {log.bases[before]}
    assert log.base_of(places[-1][0]) == log.bases[-1]


def test_append_of_nothing_changes_nothing(directory):
    log = opened(directory)
    assert log.append([], sync=True, now_ms=1) == ([], None)
    assert log.tail == SEGMENT_HEADER_SIZE


@settings(max_examples=60)
@given(
    batches=st.lists(
        st.lists(
            st.tuples(st.integers(1, 4), st.integers(0, 700)),
            max_size=4,
        ),
        max_size=6,
    ),
    data=st.data(),
)
def test_log_gives_back_what_was_appended(tmp_path_factory, batches, data):
    log = opened(tmp_path_factory.mktemp("log") / "log")
    places: list[tuple[int, bytes]] = []
    units: list[tuple[int, int]] = []
    for batch in batches:
        batch_units = [unit(len(places) + n, count, size) for n, (count, size) in enumerate(batch)]
        added = stored(log, batch_units)
        first = 0
        for records in batch_units:
            units.append((added[first][0], sum(map(len, records))))
            first += len(records)
        places += added
    again = LogReader(log.directory, DiskFiles())
    again.open_readonly()
    reopened = opened(log.directory)
    assert reopened.recover_tail(0, now_ms=9) is None
    for reader in (log, again, reopened):
        assert list(reader.scan(0)) == places
        assert [reader.read(offset) for offset, _ in places] == [record for _, record in places]
        wanted = data.draw(st.lists(st.sampled_from(places), unique=True)) if places else []
        assert reader.read_many(*arrays(wanted)) == [record for _, record in wanted]
        assert named_rows(merge(list(reader.tables(0)))) == [row_of(place) for place in places]
    for offset, size in units:
        base = log.base_of(offset)
        assert offset + size <= log.end_of(base)
        assert offset + size - base <= SEGMENT_BYTES or offset == base + SEGMENT_HEADER_SIZE
    for reader in (log, again, reopened):
        reader.close()


def named_rows(table):
    names = ("offset", "due_ms", "store_ms", "size", "flags")
    return [(table.topics[row["topic"]], *(int(row[name]) for name in names)) for row in table.rows]


def row_of(place: tuple[int, bytes]):
    offset, data = place
    found = decode(data)
    header = found.header
    return (found.topic, offset, header.due_ms, header.store_ms, header.size, header.flags)


# ---------------------------------------------------------------------- recovery


class Damaged:
    """A log of three segments in a directory, for a case to damage; the last holds four records."""

    def __init__(self, directory: Path) -> None:
        log = opened(directory)
        self.directory = directory
        self.places = stored(log, [unit(12, 2)] + [[record(i)] for i in range(12)])
        while len(log.bases) < 3 or log.tail - log.bases[-1] < 600:
            self.places += stored(log, [[record(len(self.places))]])
        self.bases, self.tail = log.bases, log.tail
        assert len(self.bases) == 3
        stopped(log)

    def path(self, place: int) -> Path:
        return self.directory / segment_name(self.bases[place])

    @property
    def last(self) -> int:
        return self.places[-1][0]

    def cut_to(self, offset: int, place: int = -1) -> None:
        os.truncate(self.path(place), offset - self.bases[place])

    def add(self, data: bytes) -> None:
        with self.path(-1).open("ab") as file:
            file.write(data)

    def flip(self, offset: int) -> None:
        base = max(base for base in self.bases if base <= offset)
        path = self.directory / segment_name(base)
        data = bytearray(path.read_bytes())
        data[offset - base] ^= 0x10
        path.write_bytes(data)

    def successor(self, data: bytes) -> None:
        (self.directory / segment_name(self.tail)).write_bytes(data)

    def sizes(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in sorted(self.directory.iterdir())}


TAILS = {
    # name: (what happened, where the log ends then relative to the last record / the tail, why)
    "nothing happened": (lambda d: d.add(b""), "tail", None),
    "torn last record": (lambda d: d.cut_to(d.tail - 8), "last", "reaches past the end by 8 bytes"),
    "last record torn in its last byte": (lambda d: d.cut_to(d.tail - 1), "last", "by 1 bytes"),
    "torn header": (lambda d: d.cut_to(d.last + 40), "last", "40 bytes are fewer than a header's 80"),
    "torn after one byte": (lambda d: d.cut_to(d.last + 1), "last", "1 bytes are fewer"),
    "whole record lost": (lambda d: d.cut_to(d.last), "last", None),
    "one record of a unit of two": (lambda d: d.add(unit(50, 2)[0]), "tail", "is not complete"),
    "two records of a unit of three": (
        lambda d: d.add(b"".join(unit(50, 3)[:2])),
        "tail",
        "is not complete",
    ),
    "unit torn in its last record": (lambda d: d.add(b"".join(unit(50, 2))[:-8]), "tail", "past the end"),
    "whole unit more": (lambda d: d.add(b"".join(unit(50, 3))), "more", None),
    "zero tail": (lambda d: d.add(bytes(4096)), "tail", None),
    "short zero tail": (lambda d: d.add(bytes(8)), "tail", None),
    "noise tail": (lambda d: d.add(b"\xa5" * 500), "tail", "is not a record size"),
    "flipped byte in the last record": (lambda d: d.flip(d.last + 90), "last", "the CRC does not match"),
    "flipped byte in the last header": (lambda d: d.flip(d.last + 57), "last", "the CRC does not match"),
    "unborn segment without a byte": (lambda d: d.successor(b""), "tail", None),
    "unborn segment with half a header": (lambda d: d.successor(b"TWLOGSEG\1\0\0"), "tail", None),
    "unborn segment of zeros": (lambda d: d.successor(bytes(64)), "tail", None),
    "foreign files beside": (lambda d: (d.directory / "notes.txt").write_text("x"), "tail", None),
}


@pytest.mark.parametrize("name", TAILS)
def test_recovery_ends_the_log_at_its_last_whole_unit(directory, name):
    damage, end, reason = TAILS[name]
    damaged = Damaged(directory)
    damage(damaged)
    before = damaged.tail if "unborn" in name else damaged.bases[-1] + damaged.path(-1).stat().st_size
    log = opened(directory)
    found = log.recover_tail(0, now_ms=9)
    wanted = {"tail": damaged.tail, "last": damaged.last, "more": before}[end]
    assert log.tail == log.synced == wanted
    assert log.bases == damaged.bases
    assert damaged.path(-1).stat().st_size == wanted - damaged.bases[-1]
    if reason is None:
        assert found is None
    else:
        assert (found.offset, found.size) == (wanted, before - wanted)
        assert reason in found.reason
    kept = [place for place in damaged.places if place[0] < wanted]
    assert list(log.scan(0, damaged.tail))[: len(kept)] == kept
    kept += stored(log, [unit(90, 2), unit(92, 2), unit(94, 2)])
    stopped(log)
    again = opened(directory)
    assert again.recover_tail(0, now_ms=9) is None
    assert set(kept) <= set(again.scan(0))
    again.close()


@pytest.mark.parametrize("name", [name for name, (_, _, reason) in TAILS.items() if reason])
def test_what_recovery_cuts_is_kept_in_quarantine_first(directory, name):
    damaged = Damaged(directory)
    TAILS[name][0](damaged)
    before = damaged.path(-1).read_bytes()
    log = opened(directory)
    found = log.recover_tail(0, now_ms=77)
    [kept] = quarantine.listed(DiskFiles(), directory)
    assert kept.path == found.kept
    assert kept.path.name == f"{found.offset:020d}.cut"
    assert (kept.offset, kept.size, kept.cut_ms) == (found.offset, found.size, 77)
    assert kept.path.read_bytes()[SEGMENT_HEADER_SIZE:] == before[found.offset - damaged.bases[-1] :]


def test_damage_with_whole_records_behind_it_is_refused_and_nothing_is_changed(directory):
    damaged = Damaged(directory)
    at, behind = damaged.places[-3][0], damaged.places[-2][0]
    damaged.flip(at + 90)
    before = contents(directory)
    log = opened(directory)
    with pytest.raises(LogDamagedError) as caught:
        log.recover_tail(0, now_ms=9)
    assert (caught.value.offset, caught.value.later) == (at, behind)
    assert str(damaged.path(-1)) in str(caught.value)
    for way_out in ("--salvage", "--cut"):
        assert way_out in str(caught.value)
    assert contents(directory) == before


def test_every_flipped_byte_of_the_last_segment_is_refused_or_leaves_every_record_before_it(directory):
    damaged = Damaged(directory)
    first, last = damaged.bases[-1] + SEGMENT_HEADER_SIZE, damaged.places[-1][0]
    for at in range(first, damaged.tail):
        damaged.flip(at)
        log = opened(directory)
        try:
            found = log.recover_tail(0, now_ms=9)
        except LogDamagedError:
            assert at < last
        else:
            assert found.offset <= at
            assert found.offset == last  # nothing whole lies behind the last record
            damaged.path(-1).write_bytes(damaged.path(-1).read_bytes() + found.kept.read_bytes()[64:])
            found.kept.unlink()
        stopped(log)
        damaged.flip(at)


def test_sectors_that_never_reached_the_disk_are_cut_with_whole_records_behind_them(directory):
    """The last append, torn by a power cut: one of its sectors is zeros."""
    log = opened(directory, size=1 << 20)
    before = stored(log, [[record(n)] for n in range(5)])
    batch = stored(log, [[record(n, 300)] for n in range(8)])
    stopped(log)
    path = directory / segment_name(0)
    content = bytearray(path.read_bytes())
    sector = batch[2][0] // 512 * 512 + 512
    content[sector : sector + 512] = bytes(512)
    path.write_bytes(content)
    again = opened(directory)
    cut = again.recover_tail(0, now_ms=9)
    assert cut.later in [offset for offset, _ in batch]
    assert list(again.scan(0)) == before + [found for found in batch if found[0] < cut.offset]
    assert cut.kept.read_bytes()[SEGMENT_HEADER_SIZE:] == content[cut.offset :]


def test_zeros_that_are_no_whole_sector_are_damage_that_no_crash_can_leave(directory):
    log = opened(directory, size=1 << 20)
    batch = stored(log, [[record(n, 300)] for n in range(8)])
    stopped(log)
    path = directory / segment_name(0)
    content = bytearray(path.read_bytes())
    sector = batch[2][0] // 512 * 512 + 512
    content[sector + 1 : sector + 512] = bytes(511)
    path.write_bytes(content)
    with pytest.raises(LogDamagedError):
        opened(directory).recover_tail(0, now_ms=9)


def test_salvage_keeps_every_whole_record_on_both_sides_of_the_damage(directory):
    damaged = Damaged(directory)
    at, behind = damaged.places[-3][0], damaged.places[-2][0]
    damaged.flip(at + 90)
    before = contents(directory)
    log = opened(directory)
    assert log.recover_tail(0, now_ms=9, on_damage=OnDamage.SALVAGE) is None
    assert contents(directory) == before
    lost = []
    kept = [row for table in log.tables(0, lost=lost) for row in table.rows["offset"].tolist()]
    assert kept == [offset for offset, _ in damaged.places if offset != at]
    assert lost == [(at, behind)]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_cut_ends_the_log_before_the_damage_and_keeps_all_that_follows(directory, place):
    damaged = Damaged(directory)
    inside = [offset for offset, _ in damaged.places[2:] if offset > damaged.bases[place]]
    at = inside[1]
    damaged.flip(at + 90)
    bytes_behind = sum(path.stat().st_size for path in directory.glob("*.log"))
    log = opened(directory)
    if place == 2:
        assert log.recover_tail(0, now_ms=9, on_damage=OnDamage.CUT).offset == at
    else:
        log.recover_tail(0, now_ms=9, on_damage=OnDamage.CUT)
        assert len(log.cut_before(at, 0, now_ms=9)) == 3 - place
    assert log.tail == at
    assert log.bases == damaged.bases[: place + 1]
    assert list(log.scan(0)) == [found for found in damaged.places if found[0] < at]
    kept = {}
    for one in quarantine.listed(DiskFiles(), directory):
        file = DiskFiles().open_readonly(one.path)
        assert read_header(file, one.path, one.offset - SEGMENT_HEADER_SIZE) == LOG_ID
        kept |= {
            found.offset: found.data for found in quarantine.records(file, one) if isinstance(found, Scanned)
        }
    assert sorted(kept.items()) == [found for found in damaged.places if found[0] > at]
    left = sum(path.stat().st_size - SEGMENT_HEADER_SIZE for path in directory.glob("*.cut"))
    left += sum(path.stat().st_size for path in directory.glob("*.log"))
    assert left + SEGMENT_HEADER_SIZE * (2 - place) == bytes_behind
    places = stored(log, [[record(1)], [record(2)]])
    assert list(log.scan(at)) == places


def test_a_second_cut_at_one_offset_gets_a_file_of_its_own(directory):
    damaged = Damaged(directory)
    for noise in (b"\xa5" * 100, b"\x5a" * 200):
        damaged.add(noise)
        log = opened(directory)
        log.recover_tail(0, now_ms=9)
        stopped(log)
    found = quarantine.listed(DiskFiles(), directory)
    assert [one.size for one in found] == [200, 100]
    assert {one.offset for one in found} == {damaged.tail}


def test_quarantine_files_are_dropped_by_their_age_and_nothing_else_is(directory):
    damaged = Damaged(directory)
    for now_ms in (1_000, 2_000):
        damaged.add(b"\xa5" * 100)
        log = opened(directory)
        log.recover_tail(0, now_ms=now_ms)
        stopped(log)
    (directory / "00000000000000000001.cutlery").write_text("not ours")
    (directory / "00000000000000000001.cut").write_text("damaged")
    before = contents(directory)
    dropped = quarantine.drop_before(DiskFiles(), directory, 2_000)
    assert [one.cut_ms for one in dropped] == [1_000]
    assert contents(directory) == {
        name: data for name, data in before.items() if name != dropped[0].path.name
    }


def test_a_record_inside_the_body_of_a_damaged_one_is_not_taken_for_a_record(directory):
    log = opened(directory)
    forged = record(7, 40)
    body = b"x" * 8 + forged + b"x" * 16
    carrier = encode(Kind.TIMER, b"orders!!", b"", body, store_ms=1, due_ms=2, enqueue_ms=1)
    places = stored(log, [[carrier], [record(1)], [record(2)]])
    stopped(log)
    path = directory / segment_name(0)
    content = bytearray(path.read_bytes())
    content[places[0][0] + 60] ^= 1
    path.write_bytes(content)
    log = opened(directory)
    lost = []
    log.recover_tail(0, now_ms=9, on_damage=OnDamage.SALVAGE)
    assert [int(row) for table in log.tables(0, lost=lost) for row in table.rows["offset"]] == [
        offset for offset, _ in places[1:]
    ]


def test_recovery_checks_only_what_is_not_known_to_be_whole(directory):
    damaged = Damaged(directory)
    damaged.flip(damaged.places[-2][0] + 90)
    log = opened(directory)
    sizes = damaged.sizes()
    assert log.recover_tail(damaged.last, now_ms=9) is None
    assert log.tail == damaged.tail
    assert damaged.sizes() == sizes
    with pytest.raises(CorruptionError) as caught:
        log.read(damaged.places[-2][0])
    assert caught.value.offset == damaged.places[-2][0]
    with pytest.raises(CorruptionError):
        list(log.scan(0))
    assert log.read(damaged.last) == damaged.places[-1][1]


@pytest.mark.parametrize("place", [0, 1])
def test_damage_in_a_sealed_segment_is_an_error_that_names_segment_and_offset(directory, place):
    damaged = Damaged(directory)
    offset = next(o for o, _ in damaged.places[2:] if o > damaged.bases[place])
    damaged.flip(offset + 100)
    log = opened(directory)
    sizes = damaged.sizes()
    assert log.recover_tail(0, now_ms=9) is None
    assert damaged.sizes() == sizes
    for reading in (log.scan, log.tables):
        with pytest.raises(CorruptionError) as caught:
            list(reading(0))
        assert caught.value.offset == offset
        assert caught.value.path == str(damaged.path(place))
    before = [p for p in damaged.places if p[0] < offset]
    assert list(log.scan(0, offset)) == before


OPENING_ERRORS = {
    "missing middle segment": (lambda d: d.path(1).unlink(), CorruptionError, 0),
    "sealed segment cut short": (lambda d: d.cut_to(d.bases[2] - 8, 1), CorruptionError, 1),
    "sealed segment grown": (lambda d: os.truncate(d.path(0), d.bases[1] + 8), CorruptionError, 0),
    "sealed segment emptied": (lambda d: os.truncate(d.path(1), 0), CorruptionError, 1),
    "damaged header of the first segment": (lambda d: d.flip(20), CorruptionError, 0),
    "damaged header of a sealed segment": (lambda d: d.flip(d.bases[1] + 3), CorruptionError, 1),
    "damaged header of the last segment": (lambda d: d.flip(d.bases[2] + 63), CorruptionError, 2),
}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_segment_of_another_log_is_refused_by_its_owner_and_by_readers(directory, place):
    damaged = Damaged(directory)
    base = damaged.bases[place]
    with damaged.path(place).open("r+b") as file:
        file.write(encode_header(base, bytes(range(16, 32)), 7))
    reader = LogReader(directory, DiskFiles())
    for opening in (lambda: opened(directory), reader.open_readonly):
        with pytest.raises(ForeignSegmentError, match="the segment belongs to log 101112") as caught:
            opening()
        assert (caught.value.path, caught.value.offset) == (str(damaged.path(place)), base)


def test_readonly_log_lists_what_is_wrong_with_headers_if_asked(directory):
    damaged = Damaged(directory)
    damaged.flip(damaged.bases[1] + 3)
    log, faults = LogReader(directory, DiskFiles()), []
    log.open_readonly(faults=faults)
    assert [fault.offset for fault in faults] == [damaged.bases[1]]
    assert list(log.scan(0)) == damaged.places


def test_readonly_log_whose_first_segment_is_missing_says_so(directory):
    damaged = Damaged(directory)
    damaged.path(0).unlink()
    log = LogReader(directory, DiskFiles())
    log.open_readonly()
    with pytest.raises(CorruptionError, match="must begin at 0: a segment is missing"):
        log.check_beginning()


@pytest.mark.parametrize("name", OPENING_ERRORS)
def test_log_that_is_not_whole_is_refused_and_left_as_it_is(directory, name):
    damage, error, place = OPENING_ERRORS[name]
    damaged = Damaged(directory)
    damage(damaged)
    sizes = damaged.sizes()
    with pytest.raises(error) as caught:
        opened(directory)
    assert caught.value.path == str(damaged.path(place))
    assert damaged.sizes() == sizes


def test_log_that_ends_before_its_checkpoint_is_corrupt(directory):
    damaged = Damaged(directory)
    log = opened(directory)
    with pytest.raises(CorruptionError, match=f"the log ends before offset {damaged.tail + 8}"):
        log.recover_tail(damaged.tail + 8, now_ms=9)


def test_whole_record_of_a_newer_format_at_the_tail_is_refused_and_kept(directory, monkeypatch):
    """A program that is too old must not take it for a torn tail and cut it."""
    damaged = Damaged(directory)
    monkeypatch.setattr("timerwheel.store.record.FORMAT_VERSION", 2)
    newer = record(99)
    monkeypatch.undo()
    with damaged.path(-1).open("ab") as file:
        file.write(newer)
    sizes = damaged.sizes()
    with pytest.raises(FormatError, match="unknown format version 2"):
        recovered(directory)
    assert damaged.sizes() == sizes


def test_torn_first_segment_is_created_again(directory):
    directory.mkdir()
    (directory / segment_name(0)).write_bytes(b"TWLOG")
    log = opened(directory)
    assert (log.bases, log.tail, log.log_id) == ((0,), SEGMENT_HEADER_SIZE, LOG_ID)
    places = stored(log, [[record(1)]])
    assert list(recovered(directory).scan(0)) == places


def test_empty_last_segment_of_a_newer_format_is_refused_and_kept(directory, monkeypatch):
    damaged = Damaged(directory)
    monkeypatch.setattr("timerwheel.store.segment.FORMAT_VERSION", 2)
    damaged.successor(encode_header(damaged.tail, LOG_ID, 7))
    monkeypatch.undo()
    sizes = damaged.sizes()
    with pytest.raises(FormatError, match="format version 2"):
        opened(directory)
    assert damaged.sizes() == sizes


def test_readonly_log_sees_a_log_whose_next_segment_is_being_born(directory):
    damaged = Damaged(directory)
    damaged.successor(b"TWLOG")
    log = LogReader(directory, DiskFiles())
    sizes = damaged.sizes()
    log.open_readonly()
    assert list(log.scan(0)) == damaged.places
    assert damaged.sizes() == sizes


def test_readonly_log_without_a_segment_is_a_format_error(directory):
    directory.mkdir()
    with pytest.raises(FormatError):
        LogReader(directory, DiskFiles()).open_readonly()


# ---------------------------------------------------------------------- no space, failed syncs


class Disk(DiskFiles):
    """A disk with room for `room_bytes` more (None: enough); what is set to fail does."""

    def __init__(self) -> None:
        self.room_bytes: int | None = None
        self.error = errno.ENOSPC
        self.sync_fails = False
        self.truncate_fails = False
        self.create_fails = False

    def free_bytes(self, directory: Path) -> int:
        return super().free_bytes(directory) if self.room_bytes is None else self.room_bytes

    def open(self, path: Path, *, create: bool = False, direct: bool = False) -> "FileOnDisk":
        assert not direct
        if create and self.create_fails:
            raise OSError(self.error, os.strerror(self.error))
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return FileOnDisk(os.open(path, flags, 0o640), self)


class FileOnDisk(DiskFile):
    def __init__(self, fd: int, disk: Disk) -> None:
        super().__init__(fd)
        self._disk = disk

    def write(self, position: int, data: bytes) -> None:
        room = self._disk.room_bytes
        if room is None:
            super().write(position, data)
            return
        super().write(position, data[:room])
        self._disk.room_bytes = max(room - len(data), 0)
        if room < len(data):
            raise OSError(self._disk.error, os.strerror(self._disk.error))

    def sync(self) -> None:
        if self._disk.sync_fails:
            raise OSError(errno.EIO, "Input/output error")
        super().sync()

    def truncate(self, size: int) -> None:
        if self._disk.truncate_fails:
            raise OSError(errno.EIO, "Input/output error")
        super().truncate(size)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_a_segment_that_cannot_be_begun_now_is_begun_when_there_is_room(directory, error):
    disk = Disk()
    log = opened(directory, disk)
    disk.create_fails, disk.error = True, error
    places = []
    while (done := log.append([[record(0)]], sync=True, now_ms=9)).error is None:
        places.append((done.offsets[0], record(0)))
    assert isinstance(done.error, NoSpaceError)
    disk.create_fails = False
    places += stored(log, [[record(0)]])
    assert len(log.bases) == 2
    assert list(log.scan(0)) == places
    stopped(log)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("room", [0, 1, 79, 80, 184, 400, 700, 850, 900, 1000, 1100, 1500, 2000])
def test_append_without_space_keeps_a_prefix_of_units_and_the_log_goes_on(directory, room, error):
    disk = Disk()
    log = opened(directory, disk)
    places = stored(log, [[record(0)]])
    units = [unit(10 * i, 2) for i in range(1, 7)]
    disk.room_bytes, disk.error = room, error
    done = log.append(units, sync=True, now_ms=9)
    assert isinstance(done.error, NoSpaceError)
    assert len(done.offsets) < len(units)
    for offset, records in zip(done.offsets, units, strict=False):
        places += [(offset, records[0]), (offset + len(records[0]), records[1])]
    assert list(log.scan(0)) == places
    again = CommitLog(directory, DiskFiles(), SEGMENT_BYTES)
    again.open(new_log_id=b"", now_ms=1)
    assert again.recover_tail(0, now_ms=9) is None
    assert list(again.scan(0)) == places
    again.close()
    disk.room_bytes = None
    places += stored(log, units)
    assert list(log.scan(0)) == places
    stopped(log)
    assert list(recovered(directory).scan(0)) == places


def test_write_that_fails_for_another_reason_is_the_end(directory):
    disk = Disk()
    log = opened(directory, disk)
    disk.room_bytes, disk.error = 10, errno.EIO
    with pytest.raises(LogFailedError):
        log.append([unit(1, 2)], sync=True, now_ms=9)
    disk.room_bytes = None
    with pytest.raises(LogFailedError):
        log.append([unit(1, 2)], sync=True, now_ms=9)


@pytest.mark.parametrize("fails", ["sync_fails", "truncate_fails"])
def test_write_that_cannot_be_undone_is_the_end(directory, fails):
    disk = Disk()
    log = opened(directory, disk)
    disk.room_bytes = 10
    setattr(disk, fails, True)
    with pytest.raises(LogFailedError):
        log.append([unit(1, 2)], sync=True, now_ms=9)
    disk.room_bytes = None
    setattr(disk, fails, False)
    with pytest.raises(LogFailedError):
        log.append([unit(1, 2)], sync=True, now_ms=9)


def test_failed_sync_is_the_end_though_later_syncs_would_succeed(directory):
    disk = Disk()
    log = opened(directory, disk)
    places = stored(log, [[record(0)]])
    disk.sync_fails = True
    with pytest.raises(LogFailedError):
        log.append([[record(1)]], sync=True, now_ms=9)
    disk.sync_fails = False
    for _ in range(2):
        with pytest.raises(LogFailedError):
            log.append([[record(2)]], sync=True, now_ms=9)
        with pytest.raises(LogFailedError):
            log.append([], sync=False, now_ms=9)
        with pytest.raises(LogFailedError):
            log.sync()
    assert log.synced == places[-1][0] + len(places[-1][1])


def test_sync_that_fails_while_a_segment_is_sealed_makes_no_successor(directory):
    disk = Disk()
    log = opened(directory, disk)
    disk.sync_fails = True
    with pytest.raises(LogFailedError):
        log.append([[record(i)] for i in range(12)], sync=False, now_ms=9)
    assert disk.names(directory) == [segment_name(0)]


def test_append_without_sync_is_durable_after_sync(directory):
    log = opened(directory)
    before = log.synced
    log.append([[record(1)]], sync=False, now_ms=9)
    assert log.synced == before < log.tail
    log.sync()
    assert log.synced == log.tail


# ---------------------------------------------------------------------- reading


def test_read_of_an_offset_where_no_record_can_begin_is_an_offset_error(directory):
    damaged = Damaged(directory)
    log = recovered(directory)
    offset = damaged.places[1][0]
    inside_headers = [base + at for base in damaged.bases for at in (0, 8, 56)]
    past_the_end = [damaged.tail, damaged.tail + 8, damaged.tail + 800, 1 << 63, (1 << 64) - 8]
    for wrong in [offset + 1, offset + 4, *inside_headers, *past_the_end]:
        with pytest.raises(OffsetError) as caught:
            log.read(wrong)
        assert caught.value.offset == wrong


def test_read_inside_a_record_gives_no_record(directory):
    damaged = Damaged(directory)
    log = recovered(directory)
    for offset, data in damaged.places:
        for wrong in range(offset + 8, offset + len(data), 8):
            with pytest.raises((OffsetError, CorruptionError)):
                log.read(wrong)


def test_read_of_dropped_offsets_is_an_offset_error(directory):
    damaged = Damaged(directory)
    log = recovered(directory)
    log.drop_before(damaged.bases[1])
    with pytest.raises(OffsetError, match=f"the log now begins at {damaged.bases[1]}"):
        log.read(damaged.places[0][0])


@pytest.mark.parametrize("size", [None, 80, 81, 200, 100_000])
def test_read_needs_no_right_size(directory, size):
    log = opened(directory)
    places = stored(log, [[record(1, 5000)], [record(2, 0)], [record(3, 2000)]])
    assert [log.read(offset, size) for offset, _ in places] == [data for _, data in places]


@given(st.data())
@settings(max_examples=40)
def test_read_many_gives_any_places_in_the_order_asked(tmp_path_factory, data):
    directory = tmp_path_factory.getbasetemp() / "read-many"
    if directory.exists():
        log = opened(directory, size=40_000)
        places = list(log.scan(0))
    else:
        log = opened(directory, size=40_000)
        places = stored(log, [[record(i, 10 + (i * 7919) % 9000)] for i in range(60)])
    wanted = data.draw(st.lists(st.sampled_from(places), max_size=40))
    assert log.read_many(*arrays(wanted)) == [record for _, record in wanted]
    log.warm(*arrays(wanted))
    stopped(log)


def test_read_many_gives_a_place_as_often_as_it_is_asked_for(directory):
    log = opened(directory)
    places = stored(log, [[record(i)] for i in range(12)])
    wanted = [places[3], places[0], places[3], places[11], places[11], places[3]]
    assert log.read_many(*arrays(wanted)) == [data for _, data in wanted]


def test_bad_record_spoils_none_of_its_neighbours_in_read_many(directory):
    damaged = Damaged(directory)
    log = recovered(directory)
    bad = [1, 5, len(damaged.places) - 2]
    for place in bad:
        damaged.flip(damaged.places[place][0] + 90)
    stopped(log)
    found = log.read_many(*arrays(damaged.places))
    for place, (item, (offset, data)) in enumerate(zip(found, damaged.places, strict=True)):
        if place in bad:
            assert isinstance(item, CorruptionError)
            assert item.offset == offset
            assert "the CRC does not match" in item.reason
        else:
            assert item == data


def test_read_many_of_wrong_places_gives_errors_and_the_right_ones(directory):
    damaged = Damaged(directory)
    log = recovered(directory)
    log.drop_before(damaged.bases[1])
    right = damaged.places[-1]
    dropped = damaged.places[0]
    offset, data = damaged.places[-3]
    wrong_size = (offset, data + bytes(8))
    too_small = (offset, data[:-8])
    past = (damaged.tail + 64, data)
    wanted = [dropped, right, wrong_size, past, too_small, (offset, data)]
    found = log.read_many(*arrays(wanted))
    assert found[1] == right[1]
    assert found[5] == data
    for place in (0, 3, 4):
        assert isinstance(found[place], CorruptionError)
        assert found[place].offset == wanted[place][0]
    # Told a size that is too large, it may give the record or an error, but no byte of the next one.
    assert found[2] == data or isinstance(found[2], CorruptionError)


def test_read_many_of_nothing_is_nothing(directory):
    log = opened(directory)
    assert log.read_many(*arrays([])) == []
    log.warm(*arrays([]))


def test_tables_from_sidecars_equal_tables_from_scans(directory):
    damaged = Damaged(directory)
    log = recovered(directory)
    edges = [offset for offset, _ in damaged.places] + [damaged.tail]
    scanned = {
        (low, high): named_rows(merge(list(log.tables(low, high))))
        for low in edges[::3]
        for high in edges[::2]
    }
    for base in log.bases[:-1]:
        log.write_sidecar(base, None)
        # What follows is read from the sidecar, or the flipped payload byte would be met.
        damaged.flip(next(o for o in edges if o > base) + 90)
    for (low, high), rows in scanned.items():
        assert named_rows(merge(list(log.tables(low, high)))) == rows


def test_damaged_sidecar_is_not_used(directory):
    damaged = Damaged(directory)
    log = recovered(directory)
    rows = named_rows(merge(list(log.tables(0))))
    log.write_sidecar(0, None)
    path = log.sidecar_path(0)
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    assert named_rows(merge(list(log.tables(0)))) == rows
    assert named_rows(log.segment_table(0)) == [row for row in rows if row[1] < damaged.bases[1]]


def test_scan_between_records_of_several_segments_gives_those_between(directory):
    damaged = Damaged(directory)
    log = recovered(directory)
    edges = [offset for offset, _ in damaged.places] + [damaged.tail]
    for low in range(0, len(edges), 2):
        for high in range(low, len(edges), 3):
            assert list(log.scan(edges[low], edges[high])) == damaged.places[low:high]


# ---------------------------------------------------------------------- dropping, many segments


def test_drop_before_removes_only_segments_that_end_there_and_never_the_last(directory):
    damaged = Damaged(directory)
    log = recovered(directory)
    for base in damaged.bases[:-1]:
        log.write_sidecar(base, None)
    assert log.drop_before(damaged.bases[1] - 8) == []
    assert log.drop_before(damaged.bases[1] + 8) == [damaged.bases[0]]
    assert log.start == damaged.bases[1] + SEGMENT_HEADER_SIZE
    assert log.files.names(directory) == [
        segment_name(damaged.bases[1])[:-4] + ".log",
        segment_name(damaged.bases[1])[:-4] + ".side",
        segment_name(damaged.bases[2]),
    ]
    assert log.drop_before(1 << 60) == [damaged.bases[1]]
    kept = [place for place in damaged.places if place[0] > damaged.bases[2]]
    assert list(log.scan(0)) == kept
    stopped(log)
    again = recovered(directory, keep_from=damaged.bases[2])
    assert again.bases == (damaged.bases[2],)
    assert list(again.scan(0)) == kept
    assert again.log_id == LOG_ID


def test_reader_that_is_inside_a_segment_when_it_is_dropped_reads_on(directory, monkeypatch):
    """`read` and `scan` may run in any thread: a descriptor must not be closed under them."""
    monkeypatch.setattr("timerwheel.store.segment.READ_BYTES", 256)
    damaged = Damaged(directory)
    log = recovered(directory)
    reading = log.scan(0, damaged.bases[1])
    found = [next(reading)]
    log.drop_before(damaged.bases[1])
    found += reading
    assert found == [place for place in damaged.places if place[0] < damaged.bases[1]]


def open_files(directory: Path) -> int:
    links = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return sum(link.parent == directory for link in links)


def test_writing_and_reading_never_hold_more_files_open_than_allowed(directory):
    log = opened(directory)
    places = stored(log, [[record(i, 900)] for i in range(OPEN_SEGMENTS_MAX + 20)])
    assert open_files(directory) <= OPEN_SEGMENTS_MAX + 1
    assert log.read_many(*arrays(places)) == [data for _, data in places]
    assert open_files(directory) <= OPEN_SEGMENTS_MAX + 1
    stopped(log)
    assert open_files(directory) == 0


def test_more_segments_than_may_be_open_are_all_read(directory):
    log = opened(directory)
    count = OPEN_SEGMENTS_MAX + 60
    places = stored(log, [[record(i, 900)] for i in range(count)])
    assert len(log.bases) == count
    stopped(log)
    log = recovered(directory)
    assert list(log.scan(0)) == places
    assert [log.read(offset) for offset, _ in places[::-1]] == [data for _, data in places[::-1]]
    assert log.read_many(*arrays(places)) == [data for _, data in places]
    places += stored(log, [[record(1, 900)], [record(2, 900)]])
    log.drop_before(log.bases[-2])
    assert list(log.scan(0)) == places[-2:]
    stopped(log)


def test_tables_of_small_records_have_at_most_50_000_rows_and_miss_none(directory):
    log = opened(directory, size=1 << 23)
    places = stored(log, [[record(number, 0)] for number in range(60_000)])
    found = list(log.tables(0))
    assert max(len(table.rows) for table in found) <= 50_000
    assert merge(found).rows["offset"].tolist() == [offset for offset, _ in places]
    assert named_rows(merge(found)) == named_rows(merge(list(scan_tables(log.scan(0)))))
    stopped(log)


@pytest.mark.parametrize("keep_from", [0, 8192])
def test_a_log_that_does_not_begin_where_it_must_is_damaged(directory, keep_from):
    log = CommitLog(directory, DiskFiles(), 1 << 20)
    log.open(new_log_id=LOG_ID, now_ms=1, keep_from=4096)
    stopped(log)
    with pytest.raises(CorruptionError, match=f"the log must begin at {keep_from}"):
        log.open(new_log_id=LOG_ID, now_ms=1, keep_from=keep_from)
    stopped(log)
