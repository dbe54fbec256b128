"""What a rebuild makes of each damage: the table in doc/spark.md, row by row."""

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.drive import read_all
from tests.harness.index_dump import dump_index, pending_of, replay
from tests.harness.sample_log import open_log
from tests.harness.world import World
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.rebuild.job import Rebuild
from timerwheel.spark_jobs.segment_stats import ReadOptions
from timerwheel.spark_jobs.session import plain_errors
from timerwheel.store.errors import CorruptionError
from timerwheel.store.files import DiskFiles
from timerwheel.store.record import HEADER_DTYPE, HEADER_SIZE, NO_OFFSET, Kind, decode_header
from timerwheel.store.segment import SEGMENT_HEADER_SIZE

HOUR_MS = 3_600_000


async def make(directory: Path) -> int:
    """A data directory with several segments of everything, and `older/`, its index of an earlier time."""
    world = World(directory)
    world.files = DiskFiles()
    await world.open()
    ids = await world.send_ids(*range(1_000, 21_000, 1_000), body=b"b" * 300)
    await world.advance(8_500)
    await world.restart()
    shutil.copytree(directory / "index", directory.with_name("older"))
    ids += await world.send_ids(*(number * HOUR_MS for number in range(1, 21)), body=b"c" * 300)
    for message_id in ids[-3:]:
        await world.engine.recalls.recall(message_id)
    await world.engine.recalls.reschedule(ids[22], {"TIMER_DELAY_MS": "5000"})
    await world.advance(3_000)
    await world.engine.close()
    return world.clock.now_ms()


async def make_fired(directory: Path) -> None:
    world = World(directory)
    world.files = DiskFiles()
    await world.open()
    await world.send(*range(1, 40))
    await world.advance(HOUR_MS)
    assert not await world.pending_ids()
    await world.engine.close()


async def make_empty(directory: Path) -> None:
    world = World(directory)
    world.files = DiskFiles()
    await world.open()
    await world.engine.close()


def segments(data: Path) -> list[Path]:
    return sorted((data / "log").glob("*.log"))


def without_sidecars(data: Path) -> None:
    for path in (data / "log").glob("*.side"):
        path.unlink()


def flip(path: Path, position: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0x10
    path.write_bytes(raw)


def lose_index(data: Path) -> None:
    shutil.rmtree(data / "index")


def older_index(data: Path) -> None:
    lose_index(data)
    shutil.copytree(data.parent.parent / "older", data / "index")


def garbage_index(data: Path) -> None:
    (data / "index" / "data.mdb").write_bytes(random.Random(5).randbytes(50_000))


def foreign_sidecar(data: Path) -> None:
    first, second = sorted((data / "log").glob("*.side"))[:2]
    shutil.copy(second, first)


def flipped_sidecar(data: Path) -> None:
    flip(min((data / "log").glob("*.side")), 100)


def torn_record(data: Path) -> None:
    path = segments(data)[-1]
    path.write_bytes(path.read_bytes()[:-1_100])


def garbage_behind(data: Path) -> None:
    path = segments(data)[-1]
    path.write_bytes(path.read_bytes() + b"\x05" * 77)


HARMLESS: dict[str, Callable[[Path], None]] = {
    "nothing": lambda _: None,
    "index lost": lose_index,
    "index of another day": older_index,
    "index overwritten": garbage_index,
    "sidecars missing": without_sidecars,
    "sidecar of another segment": foreign_sidecar,
    "sidecar flipped": flipped_sidecar,
    "last record torn": torn_record,
    "garbage behind the end": garbage_behind,
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """The directory that is damaged, and the time at which its story ended."""
    directory = tmp_path_factory.mktemp("damage")
    return directory / "data", asyncio.run(make(directory / "data"))


def rebuild(spark, staging: Path, pattern: Path, *, salvage: bool = False):
    staging.mkdir(exist_ok=True)
    with plain_errors():
        job = Rebuild(spark, JobProgress(spark, show=False), ReadOptions(str(staging), salvage=salvage))
        report = job.run(find_logs([str(pattern)]))
    return {node.node: node for node in report.nodes}


@pytest.fixture(scope="module")
def harmless(spark, pristine):
    """Each harmless damage done to a copy, rebuilt in one run; and the same copies replayed."""
    data, now_ms = pristine
    nodes = data.with_name("harmless")
    for name, damage in HARMLESS.items():
        shutil.copytree(data, nodes / name)
        damage(nodes / name)
    asyncio.run(make_fired(nodes / "all fired"))
    asyncio.run(make_empty(nodes / "empty"))
    shutil.copytree(nodes, nodes.with_name("replayed"))
    for path in nodes.with_name("replayed").iterdir():
        replay(path, now_ms)
    return nodes, rebuild(spark, data.with_name("staging"), nodes / "*")


@pytest.mark.parametrize("name", [*HARMLESS, "all fired", "empty"])
def test_harmless_damage_gives_the_index_that_replay_gives(harmless, name):
    nodes, told = harmless
    replayed = nodes.with_name("replayed") / name
    assert pending_of(nodes / name) == pending_of(replayed)
    assert dump_index(nodes / name) == dump_index(replayed)
    assert [region.torn for region in told[name].damaged] == [True] * (name in TORN)


TORN = ("last record torn", "garbage behind the end")


def test_the_index_that_was_there_is_kept_aside_and_a_service_goes_on_from_the_new_one(harmless):
    nodes, told = harmless
    data = nodes / "index of another day"
    assert told[data.name].aside == str(data / "index.aside")
    assert (data / "index.aside" / "data.mdb").exists()
    assert not (data / "index.new").exists()
    assert told["index lost"].aside is None

    async def go_on() -> tuple[str | None, int, int]:
        world = World(data)
        world.files = DiskFiles()
        engine = await world.open()
        recovered = engine.recovered
        rebuilt, replayed = recovered.rebuilt, recovered.replayed_records
        await world.advance(30 * HOUR_MS)
        delivered = len(await read_all(engine, "orders"))
        await engine.close()
        return rebuilt, replayed, delivered

    assert asyncio.run(go_on()) == (None, 0, 37)


@pytest.fixture(scope="module")
def record_offset(pristine):
    """Where in the first segment its third record begins: a timer that was delivered long ago."""
    raw = segments(pristine[0])[0].read_bytes()
    at = 64
    for _ in range(2):
        at += int.from_bytes(raw[at : at + 4], "little")
    return at


def cut_segment(data: Path) -> None:
    """End a segment within the body of its third record from the end."""
    path = segments(data)[1]
    raw, places = path.read_bytes(), [SEGMENT_HEADER_SIZE]
    while places[-1] < len(raw):
        places.append(places[-1] + int.from_bytes(raw[places[-1] :][:4], "little"))
    path.write_bytes(raw[: places[-4] + HEADER_SIZE + 8])


def remove_segment(data: Path) -> None:
    segments(data)[1].unlink()


GAPS = {"cut segment": cut_segment, "missing segment": remove_segment}


@pytest.fixture(scope="module")
def flipped(spark, pristine, record_offset):
    """A bit flipped in every field of one record's header, each in a copy without sidecars; salvaged."""
    nodes = pristine[0].with_name("flipped")
    for field in (*HEADER_DTYPE.names, "topic", "body"):
        data = nodes / field
        shutil.copytree(pristine[0], data)
        without_sidecars(data)
        place = {"topic": 81, "body": 120}.get(field)
        flip(segments(data)[0], record_offset + (HEADER_DTYPE.fields[field][1] if place is None else place))
    for name, damage in GAPS.items():
        shutil.copytree(pristine[0], nodes / name)
        without_sidecars(nodes / name)
        damage(nodes / name)
    return nodes, rebuild(spark, nodes.with_name("staging-flipped"), nodes / "*", salvage=True)


@pytest.mark.parametrize("field", [*HEADER_DTYPE.names, "topic", "body"])
def test_salvage_leaves_out_just_the_record_whose_bits_flipped_and_says_where_it_lay(
    flipped, record_offset, field
):
    nodes, told = flipped
    (region,) = told[field].damaged
    assert region.path == str(segments(nodes / field)[0])
    assert region.offset == record_offset
    assert told[field].records == told["body"].records
    assert not region.torn


@pytest.mark.parametrize("name", GAPS)
def test_salvage_goes_on_behind_a_gap_and_says_how_far_it_reaches(flipped, pristine, name):
    nodes, told = flipped
    (region,) = told[name].damaged
    third = int(segments(pristine[0])[2].stem)
    assert region.end == third
    assert region.offset >= third - segments(pristine[0])[1].stat().st_size
    assert told[name].checkpoint == told["body"].checkpoint
    assert 0 < told[name].records < told["body"].records
    assert pending_of(nodes / name)


@pytest.mark.parametrize("name", GAPS)
def test_without_salvage_a_gap_ends_the_rebuild(spark, pristine, tmp_path, name):
    shutil.copytree(pristine[0], tmp_path / "data")
    GAPS[name](tmp_path / "data")
    with pytest.raises(JobError, match=r"bytes(?: too early)?; --salvage skips it"):
        rebuild(spark, tmp_path / "staging", tmp_path / "data")


@pytest.mark.parametrize("field", ["size", "kind", "due_ms", "body"])
def test_without_salvage_a_flipped_bit_ends_the_rebuild_and_leaves_the_index_as_it_was(
    spark, pristine, record_offset, tmp_path, field
):
    data = tmp_path / "data"
    shutil.copytree(pristine[0], data)
    without_sidecars(data)
    before = (data / "index" / "data.mdb").read_bytes()
    flip(segments(data)[0], record_offset + (120 if field == "body" else HEADER_DTYPE.fields[field][1]))
    with pytest.raises(
        JobError, match=rf"{segments(data)[0]}: damaged at log offset {record_offset}.*--salvage"
    ):
        rebuild(spark, tmp_path / "staging", data)
    assert (data / "index" / "data.mdb").read_bytes() == before


UNSEEN = ("due_ms", "body")


@pytest.fixture(scope="module")
def unseen(spark, pristine, record_offset):
    """The same record flipped while its segment's sidecar is sound; not salvaged."""
    nodes = pristine[0].with_name("unseen")
    for field in UNSEEN:
        shutil.copytree(pristine[0], nodes / field)
        path = segments(nodes / field)[0]
        assert path.with_suffix(".side").exists()
        flip(path, record_offset + (120 if field == "body" else HEADER_DTYPE.fields[field][1]))
    return nodes, rebuild(spark, nodes.with_name("staging-unseen"), nodes / "*")


@pytest.mark.parametrize("field", UNSEEN)
def test_damage_under_a_sound_sidecar_is_not_seen_and_the_index_is_that_of_the_sound_log(
    unseen, harmless, field
):
    nodes, told = unseen
    assert told[field].damaged == []
    sound = harmless[0].with_name("replayed") / "nothing"
    assert pending_of(nodes / field) == pending_of(sound)
    assert dump_index(nodes / field) == dump_index(sound)


def test_a_scan_sees_the_damage_under_a_sound_sidecar(spark, pristine, record_offset, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(pristine[0], data)
    before = (data / "index" / "data.mdb").read_bytes()
    flip(segments(data)[0], record_offset + 120)
    job = Rebuild(spark, JobProgress(spark, show=False), ReadOptions(str(tmp_path), sidecars=False))
    with (
        pytest.raises(JobError, match=rf"{segments(data)[0]}: damaged at log offset {record_offset}"),
        plain_errors(),
    ):
        job.run(find_logs([str(data)]))
    assert (data / "index" / "data.mdb").read_bytes() == before


def offsets_by_end(data: Path) -> dict[str, int]:
    """Where the first timer that waits lies, the first delivery, and the first recall."""
    log = open_log(data)
    headers = {item.offset: decode_header(item.data) for item in log.scan(log.start)}
    log.close()
    ended = {header.origin for header in headers.values()}
    found: dict[str, int] = {}
    for offset, header in headers.items():
        if header.kind == Kind.TIMER and offset not in ended:
            found.setdefault("a timer that waits", offset)
        if header.kind == Kind.MESSAGE and header.origin != NO_OFFSET:
            found.setdefault("a delivery", offset)
        if header.kind == Kind.CANCEL:
            found.setdefault("a recall", offset)
    return found


@pytest.fixture(scope="module")
def lossy(spark, pristine):
    """One record of each sort flipped in a copy of its own, salvaged in one run."""
    nodes = pristine[0].with_name("lossy")
    for name, offset in offsets_by_end(pristine[0]).items():
        data = nodes / name
        shutil.copytree(pristine[0], data)
        without_sidecars(data)
        path = max((one for one in segments(data) if int(one.stem) <= offset), key=lambda one: int(one.stem))
        flip(path, offset - int(path.stem) + HEADER_DTYPE.fields["store_ms"][1])
    shutil.copytree(pristine[0], nodes / "none")
    return nodes, rebuild(spark, nodes.with_name("staging-lossy"), nodes / "*", salvage=True)


async def deliver_all(data: Path, now_ms: int) -> tuple[str | None, list[str]]:
    """Start a service and let everything fall due: why it made its index anew, and the ids delivered."""
    world = World(data)
    world.files = DiskFiles()
    world.clock.advance(now_ms - world.clock.now_ms())
    engine = await world.open()
    await world.advance(30 * HOUR_MS)
    delivered = await world.delivered_ids()
    await engine.close()
    return engine.recovered.rebuilt, delivered


def test_after_a_salvage_the_service_starts_and_fires_all_but_what_the_lost_record_was(
    lossy, pristine, tmp_path
):
    nodes, told = lossy
    shutil.copytree(nodes, tmp_path / "nodes")
    delivered = {}
    for name, node in told.items():
        assert len(node.damaged) == (name != "none")
        rebuilt, ids = asyncio.run(deliver_all(tmp_path / "nodes" / name, pristine[1]))
        assert rebuilt is None
        assert len(ids) == len(set(ids)), name
        delivered[name] = ids
    sound = delivered["none"]
    assert len(sound) == 37
    # Its message is lost.
    assert len(set(sound) - set(delivered["a timer that waits"])) == 1
    assert set(delivered["a timer that waits"]) < set(sound)
    # It is delivered again, now; what came after it stands one place further ahead in the queue.
    assert delivered["a delivery"][:7] == sound[1:8]
    assert set(delivered["a delivery"]) == set(sound)
    # It is delivered although it was recalled.
    assert set(delivered["a recall"]) > set(sound)
    assert len(delivered["a recall"]) == 38


@pytest.mark.parametrize("name", GAPS)
def test_after_a_gap_was_salvaged_the_service_still_refuses_to_start(flipped, tmp_path, name):
    data = shutil.copytree(flipped[0] / name, tmp_path / "data")
    world = World(data)
    world.files = DiskFiles()
    for _ in range(2):  # nothing was cut or removed by the first try
        with pytest.raises(CorruptionError, match=r"the segment has \d+ bytes, its successor begins after"):
            asyncio.run(world.open())
    assert dump_index(data) == dump_index(flipped[0] / name)
