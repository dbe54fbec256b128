"""Restoring: the service goes on with what waited when its log was archived, under the same ids."""

import json
import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from tests.harness.archiving import (
    DAY_MS,
    KEYED,
    SEGMENT_BYTES,
    TOPICS,
    ArchivedWorld,
    on_disk,
    run_archive,
    run_restore,
    story_of,
    told,
)
from tests.harness.consumers import bodies, receive
from timerwheel.cli import restore as command
from timerwheel.cli.output import Output
from timerwheel.errors import UnknownMessageError
from timerwheel.model.messages import State
from timerwheel.offline.fsck import fsck
from timerwheel.spark_jobs.archive.part import RESTORED_GAP_BYTES, find_part
from timerwheel.spark_jobs.archive.restored_log import restored_log
from timerwheel.spark_jobs.archive.restored_start import RESTORED_GAP_MESSAGES
from timerwheel.spark_jobs.archive.store import ArchiveError
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.store.errors import FormatError, LockedError


@pytest.fixture(scope="module")
def story(spark, tmp_path_factory) -> ArchivedWorld:
    return story_of(spark, tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def made(spark, story, tmp_path_factory):
    """A restored data directory, and what the restore said."""
    data = tmp_path_factory.mktemp("restored") / "data"
    return data, run_restore(spark, JobProgress(spark, show=False), story.archive, data, story.now_ms)


@pytest.fixture
async def world(story, made, tmp_path):
    """An engine on a copy of the restored directory, at the moment at which the original one ended."""
    shutil.copytree(made[0], tmp_path / "data")
    world = on_disk(tmp_path / "data", story.now_ms)
    await world.open()
    yield world
    await world.engine.close()


@pytest.fixture
def archive_copy(story, tmp_path) -> Path:
    shutil.copytree(story.archive, tmp_path / "archive")
    return tmp_path / "archive"


def manifests(archive: Path) -> list[Path]:
    return sorted(archive.glob("_manifest/*/*.json"))


async def test_the_same_messages_wait_with_ids_times_properties_and_bodies(story, made, world):
    _, report = made
    waiting = (await world.engine.messages.pending(limit=10_000)).messages
    assert [told(view) for view in waiting] == [told(view) for view in story.waiting]
    assert len(story.waiting) == report.pending == world.engine.core.state.pending
    assert report.overdue == sum(view.due_ms <= story.now_ms for view in story.waiting)
    assert report.log_id == story.logs[0].log_id == world.engine.core.log.log_id.hex()
    assert world.engine.core.state.leases == 0
    by_id = {view.id: view.properties for view in waiting}
    for view in story.waiting:
        rolls = int(by_id[view.id]["TIMER_ROLL_TIMES"])
        assert rolls == int(view.properties["TIMER_ROLL_TIMES"]) + 1


async def test_they_are_delivered_in_the_same_order_as_by_the_original(story, world, tmp_path):
    shutil.copytree(story.data, tmp_path / "original")
    original = on_disk(tmp_path / "original", story.now_ms)
    await original.open(retention_ms=10**12)
    ids = {view.id for view in story.waiting}
    delivered = []
    for one in (original, world):
        await one.advance(10 * DAY_MS)
        order = {topic: [i for i in await one.delivered_ids(topic) if i in ids] for topic in TOPICS}
        delivered.append(order)
    await original.engine.close()
    assert delivered[0] == delivered[1]
    assert sorted(i for order in delivered[1].values() for i in order) == sorted(ids)
    assert all(delivered[1][topic] for topic in ("orders", "0042"))


async def test_ids_given_out_before_recall_and_reschedule_and_those_that_ended_are_unknown(story, world):
    engine = world.engine
    await engine.recalls.reschedule(story.ids["rescheduled"], {"TIMER_DELAY_MS": "1000"})
    some = next(view.id for view in story.waiting if view.topic == "0042")
    await engine.recalls.recall(some)
    assert (await engine.messages.get(some)).state is State.RECALLED
    await world.advance(1_000)
    assert story.ids["rescheduled"] in await world.delivered_ids()
    for name in ("recalled_early", "recalled_late", "delivered"):
        with pytest.raises(UnknownMessageError):
            await engine.messages.get(story.ids[name])
    fresh = await world.send_ids(60_000)
    assert int(fresh[0][:16], 16) > story.logs[-1].until + RESTORED_GAP_BYTES


async def test_a_key_still_stands_for_its_message(story, world):
    [again] = await world.engine.sender.send([KEYED])
    assert (again.id, again.duplicate) == (story.ids["keyed"], True)
    assert (await world.engine.recalls.recall_key("orders", "order-17")).id == story.ids["keyed"]


async def test_readers_by_offset_that_were_ahead_of_the_archive_get_what_is_delivered_now(story, world):
    [sent] = await world.send_ids(0)
    for topic, offset in story.max_offsets.items():
        low, _ = world.engine.queues.queue_bounds(topic, 0)
        assert low == offset + RESTORED_GAP_MESSAGES
    ahead = story.max_offsets["orders"] + 5_000
    page = await world.engine.queues.read_queue("orders", 0, ahead, 10)
    assert [message.id for message in page.messages] == [sent]


async def test_groups_settings_and_schedules_go_on_with_nothing_in_flight(world):
    engine = world.engine
    info = {one.group: one for one in engine.groups.all("orders")}
    assert set(info) == {"g", "hasty"}
    assert info["g"].config["invisible_ms"] == 90_000
    assert info["hasty"].config["max_attempts"] == 1
    assert all(one.lag == one.in_flight == one.dead_letters == 0 for one in info.values())
    assert engine.queues.topic("tickets").ordered
    assert [one.name for one in await engine.schedules.all()] == ["daily"]
    await world.send(0, body=b"after")
    assert bodies(await receive(world)) == ["after"]


def test_fsck_finds_a_restored_directory_in_order(made):
    data, report = made
    found = fsck(data)
    assert found.ok
    assert (found.pending, found.visible, found.log_start) == (report.pending, 0, report.begin)
    assert {finding.code for finding in found.findings} <= {"index_missing", "sidecar_stale"}


async def test_a_restored_log_is_archived_to_the_same_place_and_restored_again(
    spark, progress, story, world, archive_copy, tmp_path
):
    await world.roll()
    further = run_archive(spark, progress, world.directory, archive_copy)
    assert further.archived > 0
    waiting = [told(view) for view in (await world.engine.messages.pending(limit=10_000)).messages]
    run_restore(spark, progress, archive_copy, tmp_path / "second", story.now_ms)
    second = on_disk(tmp_path / "second", story.now_ms)
    await second.open()
    assert [told(view) for view in (await second.engine.messages.pending(limit=10_000)).messages] == waiting
    assert {one.group for one in second.engine.groups.all("orders")} == {"g", "hasty"}
    low, _ = second.engine.queues.queue_bounds("orders", 0)
    assert low >= 2 * RESTORED_GAP_MESSAGES
    await second.engine.close()


def test_a_gap_in_the_archive_is_named_and_with_salvage_the_rest_is_restored(
    spark, progress, story, archive_copy, tmp_path
):
    chunks = find_part(str(archive_copy), None).chunks
    manifests(archive_copy)[1].unlink()
    gap = f"offsets {chunks[1].base} to {chunks[2].base} are missing"
    with pytest.raises(ArchiveError, match=gap):
        find_part(str(archive_copy), None)
    found = run_restore(spark, progress, archive_copy, tmp_path / "new", story.now_ms, salvage=True)
    assert found.missing == [gap]
    assert found.pending > 0


def test_a_beginning_of_which_the_archive_tells_nothing_is_named(archive_copy):
    chunks = find_part(str(archive_copy), None).chunks
    chunk = next(one for one in chunks if one.base and one.segments[0].beginning is None)
    for manifest in manifests(archive_copy)[: chunks.index(chunk)]:
        manifest.unlink()
    with pytest.raises(ArchiveError, match=f"offsets 0 to {chunk.base} are missing"):
        find_part(str(archive_copy), None)


async def test_a_log_that_was_archived_after_retention_had_begun_is_restored_with_its_queue_offsets(
    spark, progress, story, tmp_path
):
    shutil.copytree(story.data, tmp_path / "late")
    run_archive(spark, progress, tmp_path / "late", tmp_path / "archive")
    assert find_part(str(tmp_path / "archive"), None).chunks[0].base > 0
    found = run_restore(spark, progress, tmp_path / "archive", tmp_path / "new", story.now_ms)
    assert found.pending == len(story.waiting)
    world = on_disk(tmp_path / "new", story.now_ms)
    await world.open()
    for topic, offset in story.max_offsets.items():
        assert world.engine.queues.queue_bounds(topic, 0)[0] == offset + RESTORED_GAP_MESSAGES
    assert {one.group for one in world.engine.groups.all("orders")} == {"g", "hasty"}
    assert world.engine.queues.topic("tickets").ordered
    await world.engine.close()


def test_an_archived_file_that_changed_is_named_and_leaves_no_log(
    spark, progress, story, archive_copy, tmp_path
):
    [path, *_] = sorted(archive_copy.glob("records/date=*/*.parquet"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(PySparkException, match=f"{path.name} is damaged"):
        run_restore(spark, progress, archive_copy, tmp_path / "new", story.now_ms)
    assert not (tmp_path / "new").exists()


def test_a_restore_that_was_killed_leaves_no_data_directory_and_is_run_again(
    spark, progress, story, made, tmp_path
):
    data = tmp_path / "new"
    (data / "log.restoring").mkdir(parents=True)
    [segment, *_] = sorted((made[0] / "log").glob("*.log"))
    shutil.copy(segment, data / "log.restoring")
    with pytest.raises(FormatError, match="no log"):
        find_logs([str(data)])
    run_restore(spark, progress, story.archive, data, story.now_ms)
    assert fsck(data).pending == len(story.waiting)
    assert sorted(path.name for path in data.iterdir()) == ["lock", "log"]
    names = [path.name for path in sorted((data / "log").iterdir())]
    assert names == [path.name for path in sorted((made[0] / "log").iterdir())]
    for name in names:
        # The same records: only when a segment was made is told, and that is the same moment here.
        assert (data / "log" / name).read_bytes() == (made[0] / "log" / name).read_bytes()


def test_only_a_new_directory_is_restored_into_and_by_one_at_a_time(made, tmp_path):
    with (
        pytest.raises(FormatError, match="is not empty: it has log"),
        restored_log(made[0], SEGMENT_BYTES, "now"),
    ):
        raise AssertionError
    (tmp_path / "new" / "lost+found").mkdir(parents=True)  # as at the top of a file system of its own
    with (
        restored_log(tmp_path / "new", SEGMENT_BYTES, "now"),
        pytest.raises(LockedError),
        restored_log(tmp_path / "new", SEGMENT_BYTES, "now"),
    ):
        raise AssertionError
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["lock", "lost+found"]


def test_one_of_several_logs_must_be_chosen_and_be_there(story, archive_copy, tmp_path):
    own = story.logs[0].log_id
    (archive_copy / "_manifest" / ("ab" * 16)).mkdir()
    with pytest.raises(ArchiveError, match=f"several logs; choose one with --log-id: .*{own}"):
        find_part(str(archive_copy), None)
    assert find_part(str(archive_copy), own.upper()).log_id == own
    with pytest.raises(ArchiveError, match="does not contain log cdcd"):
        find_part(str(archive_copy), "cd" * 16)
    with pytest.raises(ArchiveError, match="is not an archive"):
        find_part(str(tmp_path), None)


def test_a_manifest_of_a_later_format_is_refused(archive_copy):
    manifest = manifests(archive_copy)[0]
    manifest.write_text(json.dumps({**json.loads(manifest.read_bytes()), "format": 3}))
    with pytest.raises(ArchiveError, match="has format 3; this program reads 1 and 2"):
        find_part(str(archive_copy), None)


def test_the_summary_says_what_was_not_restored(made, capsys):
    command.show_summary(made[1], {"find": 1.25, "write": 0.5}, Output(utc=True))
    text = capsys.readouterr().out
    assert f"{made[1].pending:,}, {made[1].overdue:,} of them overdue" in text
    assert "find 1.2 s, write 0.5 s" in text
    assert "a message delivered or recalled since then is waiting again" in text
