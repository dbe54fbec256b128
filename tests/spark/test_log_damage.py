"""What damage to a log does to its readers on Spark: an error that names it, or salvage and a row that tells.

Most cases ask the reader of segments, which is what runs in executors; one test sends all sorts through
Spark.
"""

import asyncio
import shutil
from pathlib import Path
from zlib import crc32

import pytest
from pyspark.errors import PySparkException

from tests.harness.sample_log import BINARY, LAST_UNIT_RECORDS, make_sample, open_log
from timerwheel.spark_jobs.errors import job_error
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.segment_stats import ReadOptions, survey
from timerwheel.spark_jobs.segments import Damaged, Segment, SegmentGoneError, SegmentReader
from timerwheel.state.log_manifest import LogStart, encode_start
from timerwheel.store.errors import CorruptionError, FormatError
from timerwheel.store.files import DiskFiles
from timerwheel.store.log_reader import START_FILE
from timerwheel.store.record import HEADER_DTYPE, HEADER_SIZE, Kind, decode_header, encode
from timerwheel.store.segment import SEGMENT_HEADER_SIZE, encode_header, segment_name

PARTS = [*HEADER_DTYPE.names, "topic", "properties", "body", "padding"]
HEADER_PLACES = {"magic": 0, "version": 8, "size": 12, "base": 16, "log id": 24, "made": 40, "crc": 60}


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return asyncio.run(make_sample(tmp_path_factory.mktemp("damage") / "node-1"))


@pytest.fixture(scope="module")
def records(sample):
    """Every record of the sound log."""
    log = open_log(sample.data)
    found = list(log.scan(log.start))
    log.close()
    return found


@pytest.fixture
def data(sample, tmp_path):
    """A copy of the sample without sidecars, so that everything is read from the segments."""
    ignored = shutil.ignore_patterns("index", "*.side")
    return shutil.copytree(sample.data, tmp_path / "data", ignore=ignored)


def bases_of(data) -> list[int]:
    return sorted(int(path.stem) for path in (data / "log").glob("*.log"))


def segment_path(data, base) -> Path:
    return data / "log" / segment_name(base)


def patch(path, place, replace):
    """Change one byte."""
    content = bytearray(path.read_bytes())
    content[place] = replace(content[place])
    path.write_bytes(content)


def read(data, *, salvage=False):
    """The offsets of the records that are found, and the damage."""
    [log] = find_logs([str(data)])
    offsets, damaged = [], []
    for segment in log.segments:
        reader = SegmentReader(segment, salvage=salvage)
        offsets += [item.offset for item in reader.records()]
        damaged += reader.damaged
    return offsets, damaged


def refused(data) -> str:
    """What the error says when damage is not to be salvaged."""
    with pytest.raises(CorruptionError) as caught:
        read(data)
    assert "--salvage skips it" in str(caught.value)
    return str(caught.value)


def without(records, *, begin, end):
    return [item.offset for item in records if not begin <= item.offset < end]


def part_of(data, name):
    """Where a header field or a part of the payload begins in a record, and where it ends."""
    header = decode_header(data)
    if name in HEADER_DTYPE.names:
        kind, begin = HEADER_DTYPE.fields[name][:2]
        return begin, begin + kind.itemsize
    begin = HEADER_SIZE
    sizes = (header.topic_len, header.properties_len, header.body_len)
    for part, size in zip(("topic", "properties", "body"), sizes, strict=True):
        if part == name:
            return begin, begin + size
        begin += size
    return begin, header.size


@pytest.mark.parametrize("part", PARTS)
def test_a_flipped_byte_in_any_part_of_a_record_is_named_and_salvage_loses_that_record_alone(
    data, records, part
):
    [victim] = [item for item in records if BINARY in item.data and decode_header(item.data).kind == 1]
    end = victim.offset + len(victim.data)
    begin_of_part, end_of_part = part_of(victim.data, part)
    assert begin_of_part < end_of_part
    path = segment_path(data, 0)
    for place in {begin_of_part, end_of_part - 1}:
        for bit in (1, 128):
            patch(path, victim.offset + place, lambda byte, bit=bit: byte ^ bit)
            text = refused(data)
            assert str(path) in text
            assert f"at log offset {victim.offset}:" in text
            offsets, [damaged] = read(data, salvage=True)
            assert offsets == without(records, begin=victim.offset, end=end)
            assert damaged[:4] == ("data", str(path), victim.offset, end)
            assert not damaged.torn
            patch(path, victim.offset + place, lambda byte, bit=bit: byte ^ bit)
    assert read(data) == ([item.offset for item in records], [])


def test_a_record_in_the_body_of_a_damaged_message_is_not_taken_for_one_of_the_log(tmp_path):
    def message(body: bytes) -> bytes:
        times_ms = {"store_ms": 0, "due_ms": 0, "enqueue_ms": 0}
        return encode(Kind.MESSAGE, b"eight-by", b"", body, **times_ms)

    damaged, sound = bytearray(message(message(b"forged"))), message(b"sound")
    damaged[4] ^= 1
    head = encode_header(0, bytes(16), 0)
    segment_path(tmp_path, 0).parent.mkdir()
    segment_path(tmp_path, 0).write_bytes(head + damaged + sound)
    reader = SegmentReader(Segment("node", str(tmp_path / "log"), 0, None), salvage=True)
    assert [found.data for found in reader.records()] == [sound]
    [region] = reader.damaged
    assert (region.offset, region.end) == (len(head), len(head) + len(damaged))


def test_damage_before_whole_records_of_the_last_segment_is_no_torn_tail(data, records):
    base = bases_of(data)[-1]
    first, second = [item for item in records if item.offset >= base][:2]
    patch(segment_path(data, base), SEGMENT_HEADER_SIZE + 90, lambda byte: byte ^ 1)
    assert f"at log offset {first.offset}:" in refused(data)
    offsets, [damaged] = read(data, salvage=True)
    assert offsets == without(records, begin=first.offset, end=second.offset)
    assert (damaged.offset, damaged.end, damaged.torn) == (first.offset, second.offset, False)


def test_a_log_cut_anywhere_in_its_last_unit_is_read_up_to_the_unit_before_it(data, records):
    begin = records[-LAST_UNIT_RECORDS].offset
    end = records[-1].offset + len(records[-1].data)
    kept = [item.offset for item in records if item.offset < begin]
    base = bases_of(data)[-1]
    path = segment_path(data, base)
    content = path.read_bytes()
    assert base + len(content) == end
    for cut in range(begin, end):
        path.write_bytes(content[: cut - base])
        offsets, damaged = read(data)
        assert offsets == kept
        assert [(one.offset, one.end, one.torn) for one in damaged] == (
            [(begin, cut, True)] if cut > begin else []
        )


def test_a_last_unit_that_was_overwritten_is_torn_too(data, records):
    """Zeros, or sectors that never reached the disk: nothing whole follows."""
    begin = records[-LAST_UNIT_RECORDS].offset
    base = bases_of(data)[-1]
    path = segment_path(data, base)
    content = path.read_bytes()
    path.write_bytes(content[: records[-1].offset - base] + bytes(len(records[-1].data)))
    offsets, [damaged] = read(data)
    assert offsets == [item.offset for item in records if item.offset < begin]
    assert damaged == Damaged(
        "data",
        str(path),
        begin,
        records[-1].offset,
        "the last unit of records is not complete",
        torn=True,
    )


@pytest.mark.parametrize("zeros", [8, 512, 3 << 20])
def test_zeros_that_a_service_wrote_ahead_of_its_records_are_no_damage(data, records, zeros):
    with segment_path(data, bases_of(data)[-1]).open("ab") as file:
        file.write(bytes(zeros))
    assert read(data) == ([item.offset for item in records], [])


@pytest.mark.parametrize("sidecars", [False, True])
@pytest.mark.parametrize("into_record", [0, 8, 79, 81])
def test_a_sealed_segment_that_is_cut_is_named_also_when_its_sidecar_is_sound(
    data, sample, records, into_record, sidecars
):
    base, following = bases_of(data)[1:3]
    victim = [item for item in records if base <= item.offset < following][3]
    path = segment_path(data, base)
    path.write_bytes(path.read_bytes()[: victim.offset + into_record - base])
    if sidecars:
        for side in (sample.data / "log").glob("*.side"):
            shutil.copy(side, data / "log")
    [log] = find_logs([str(data)])
    with pytest.raises(CorruptionError, match=f"at log offset {victim.offset}:") as caught:
        SegmentReader(log.segments[1]).table()
    assert str(path) in str(caught.value)
    reader = SegmentReader(log.segments[1], salvage=True)
    before = [item.offset for item in records if base <= item.offset < victim.offset]
    assert reader.table().rows["offset"].tolist() == before
    assert [(one.offset, one.end) for one in reader.damaged] == [(victim.offset, following)]


def test_a_segment_that_overlaps_its_successor_is_named(data, records):
    base, following = bases_of(data)[:2]
    path = segment_path(data, base)
    path.write_bytes(path.read_bytes() + bytes(16))
    text = refused(data)
    assert str(path) in text
    assert f"at log offset {following}: the segment extends 16 bytes beyond" in text
    offsets, [damaged] = read(data, salvage=True)
    assert offsets == [item.offset for item in records]
    assert (damaged.offset, damaged.end) == (following, following + 16)


def test_a_segment_that_is_missing_in_the_middle_is_named_with_where_the_log_goes_on(data, records):
    before, lost, after = bases_of(data)[:3]
    segment_path(data, lost).unlink()
    text = refused(data)
    assert str(segment_path(data, before)) in text
    assert f"at log offset {lost}: the file ends {after - lost} bytes too early" in text
    offsets, [damaged] = read(data, salvage=True)
    assert offsets == without(records, begin=lost, end=after)
    assert (damaged.offset, damaged.end, damaged.torn) == (lost, after, False)


def write_start(directory: Path, start: LogStart) -> None:
    DiskFiles().write_whole(directory / START_FILE, encode_start(start))


@pytest.mark.parametrize("sidecar", [False, True])
def test_a_first_segment_that_is_missing_is_damage_unless_retention_says_that_it_dropped_it(
    data, sample, records, sidecar
):
    lost, following = bases_of(data)[:2]
    segment_path(data, lost).unlink()
    if sidecar:
        shutil.copy(sample.data / "log" / f"{lost:020d}.side", data / "log")
    text = refused(data)
    assert str(segment_path(data, lost)) in text
    assert "the segment is missing" in text
    offsets, [damaged] = read(data, salvage=True)
    kept = without(records, begin=lost, end=following)
    assert offsets == kept
    assert (damaged.offset, damaged.end) == (lost, following)
    log = open_log(data)
    write_start(log.directory, LogStart(following, []))
    log.close()
    assert read(data) == (kept, [])


def test_a_segment_that_retention_drops_while_it_is_to_be_read_asks_for_another_run(data):
    [log] = find_logs([str(data)])
    first, second = log.segments[:2]
    log = open_log(data)
    write_start(log.directory, LogStart(second.base, []))
    log.close()
    segment_path(data, first.base).unlink()
    for salvage in (False, True):
        with pytest.raises(SegmentGoneError, match="run the job again"):
            list(SegmentReader(first, salvage=salvage).records())


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("field", HEADER_PLACES)
def test_a_damaged_segment_header_is_named_and_its_records_can_be_salvaged(data, records, field, number):
    base = bases_of(data)[number]
    path = segment_path(data, base)
    patch(path, HEADER_PLACES[field], lambda byte: byte ^ 1)
    text = refused(data)
    assert str(path) in text
    assert "the segment header is damaged" in text
    offsets, [damaged] = read(data, salvage=True)
    assert offsets == [item.offset for item in records]
    assert (damaged.offset, damaged.end) == (base, base + SEGMENT_HEADER_SIZE)


@pytest.mark.parametrize("number", [1, -1])
def test_a_segment_of_another_log_is_named_and_none_of_its_records_is_salvaged(data, records, number):
    base = bases_of(data)[number]
    path = segment_path(data, base)
    path.write_bytes(encode_header(base, bytes(16), 0) + path.read_bytes()[SEGMENT_HEADER_SIZE:])
    assert f"the segment belongs to log {'00' * 16}" in refused(data)
    offsets, damaged = read(data, salvage=True)
    end = damaged[0].end
    assert [(one.offset, one.torn) for one in damaged] == [(base, False)]
    assert offsets == without(records, begin=base, end=end)


@pytest.mark.parametrize("content", [b"", b"TWLOGSEG", bytes(SEGMENT_HEADER_SIZE)])
def test_a_last_segment_that_was_just_being_made_does_not_count(data, records, content):
    end = records[-1].offset + len(records[-1].data)
    segment_path(data, end).write_bytes(content)
    assert read(data) == ([item.offset for item in records], [])


def test_a_log_without_records_is_empty_and_no_fault(data):
    base = bases_of(data)[0]
    for path in (data / "log").glob("*.log"):
        if path != segment_path(data, base):
            path.unlink()
    path = segment_path(data, base)
    content = path.read_bytes()
    for size in (SEGMENT_HEADER_SIZE, SEGMENT_HEADER_SIZE + 7):
        path.write_bytes(content[:size])
        offsets, damaged = read(data)
        assert offsets == []
        assert [one.torn for one in damaged] == [True] * (size > SEGMENT_HEADER_SIZE)


def newer(record):
    """The same record in a format that is not known yet, with its right CRC."""
    changed = bytearray(record)
    changed[8] = 2
    changed[4:8] = crc32(changed[8:]).to_bytes(4, "little")
    return bytes(changed)


@pytest.mark.parametrize("place", [3, -1])
def test_a_record_of_a_newer_format_is_never_guessed_at_or_passed_over(data, records, place):
    victim = records[place]
    base = max(base for base in bases_of(data) if base < victim.offset)
    path = segment_path(data, base)
    content = path.read_bytes()
    at = victim.offset - base
    path.write_bytes(content[:at] + newer(victim.data) + content[at + len(victim.data) :])
    for salvage in (False, True):
        with pytest.raises(FormatError, match="unknown format version 2; use a newer version") as caught:
            read(data, salvage=salvage)
        assert f"{path}: at log offset {victim.offset}" in str(caught.value)


def test_a_segment_of_a_newer_format_is_refused(data):
    base = bases_of(data)[1]
    path = segment_path(data, base)
    content = bytearray(path.read_bytes())
    content[8] = 2
    content[60:64] = crc32(content[:60]).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(FormatError, match="format version 2; this program reads 1") as caught:
        read(data, salvage=True)
    assert str(path) in str(caught.value)


@pytest.fixture
def damaged_nodes(sample, records, tmp_path):
    """A node for each sort of damage, and what of each is to be told: offset, end, torn."""
    first, second, third = bases_of(sample.data)[:3]
    victim = next(item for item in records if item.offset > second)
    end = records[-1].offset + len(records[-1].data)
    last_unit = records[-LAST_UNIT_RECORDS].offset
    last = bases_of(sample.data)[-1]

    def flip(data):
        patch(segment_path(data, second), SEGMENT_HEADER_SIZE + 40, lambda byte: byte ^ 4)

    def cut(data):
        path = segment_path(data, second)
        path.write_bytes(path.read_bytes()[:SEGMENT_HEADER_SIZE])

    def tear(data):
        path = segment_path(data, last)
        path.write_bytes(path.read_bytes()[:-20])

    nodes = {
        "flipped": (flip, victim.offset, victim.offset + len(victim.data), False),
        "cut": (cut, second + SEGMENT_HEADER_SIZE, third, False),
        "gap": (lambda data: segment_path(data, second).unlink(), second, third, False),
        "header": (
            lambda data: patch(segment_path(data, first), 30, lambda byte: byte ^ 1),
            first,
            first + SEGMENT_HEADER_SIZE,
            False,
        ),
        "torn": (tear, last_unit, end - 20, True),
    }
    for name, (damage, *_) in nodes.items():
        damage(
            shutil.copytree(sample.data, tmp_path / name, ignore=shutil.ignore_patterns("index", "*.side"))
        )
    return tmp_path, {name: told for name, (_, *told) in nodes.items()}


def test_through_spark_damage_is_a_table_an_error_by_default_and_salvaged_when_asked(
    spark, records, damaged_nodes, tmp_path_factory
):
    directory, told = damaged_nodes
    source = spark.read.format("commitlog")
    rows = source.option("table", "damage").load(f"{directory}/*").collect()
    assert {row.node: [row.offset, row.end, row.torn] for row in rows} == told
    assert len(rows) == len(told)
    with pytest.raises(PySparkException) as caught:
        source.option("table", "records").load(f"{directory}/flipped").count()
    text = str(job_error(caught.value))
    offset = told["flipped"][0]
    assert f"damaged at log offset {offset}: the CRC does not match; --salvage skips it" in text
    assert f"{directory}/flipped/log/" in text
    assert "\n" not in text
    salvaged = source.option("table", "records").option("salvage", "true").load(f"{directory}/*")
    found = {
        row.node: row.records for row in salvaged.groupBy("node").count().toDF("node", "records").collect()
    }
    assert found == {
        name: len(without(records, begin=begin, end=10**9 if torn else end))
        for name, (begin, end, torn) in told.items()
    }
    staging = str(tmp_path_factory.mktemp("staging"))
    surveyed = survey(spark, find_logs([f"{directory}/*"]), ReadOptions(staging, salvage=True))
    assert {one.node: [one.offset, one.end, one.torn] for one in surveyed.damaged} == told
    assert sum(one.records for one in surveyed.found) == sum(found.values())
