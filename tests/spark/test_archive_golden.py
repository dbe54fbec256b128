"""An archive as the program of format 1 wrote it: today's reads, verifies, continues and restores it."""

import json
import shutil
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from tests.harness.archiving import on_disk, run_archive, run_restore, told
from timerwheel.spark_jobs.archive.check import verify
from timerwheel.spark_jobs.archive.part import find_part
from timerwheel.spark_jobs.archive.source import read_archive
from timerwheel.spark_jobs.archive.store import Archive

GOLDEN = Path(__file__).parents[1] / "golden" / "archive-v1"
EXPECTED = msgspec.json.decode((GOLDEN / "expected.json").read_bytes())


@pytest.fixture
def room(tmp_path) -> Path:
    """The archive, and the node whose log it has; both may be changed."""
    shutil.copytree(GOLDEN, tmp_path / "room")
    return tmp_path / "room"


def log_id_in(archive: Path) -> str:
    [log_id] = Archive(str(archive)).log_ids()
    return log_id


async def waiting_in(data: Path):
    world = on_disk(data, EXPECTED["now_ms"])
    await world.open()
    found = (await world.engine.messages.pending(limit=1_000)).messages
    await world.engine.close()
    return msgspec.json.decode(msgspec.json.encode([told(view) for view in found]))


def test_it_is_whole_and_its_rows_have_the_topics_as_they_were(spark, progress):
    archive = GOLDEN / "archive"
    checked = verify(spark, progress, str(archive), [log_id_in(archive)])
    assert (checked.records, checked.problems) == (EXPECTED["records"], [])
    found = {row.offset: row.asDict() for row in read_archive(spark, str(archive)).collect()}
    rows = {}
    for path in archive.glob("_manifest/*/*.json"):
        for file in json.loads(path.read_bytes())["files"]:
            for row in pq.ParquetFile(archive / file["path"]).read().to_pylist():
                rows[row["offset"]] = {**row, "topic": file["topic"]}
    assert {offset: {**row, "date": None} for offset, row in found.items()} == {
        offset: {**row, "date": None} for offset, row in rows.items()
    }
    assert {str(row["date"]) for row in found.values()} == {"2027-01-15"}
    assert {"0042", "%odd|topic", "orders/g"} <= {row["topic"] for row in found.values()}


async def test_it_is_restored_with_the_messages_that_waited(spark, progress, tmp_path):
    run_restore(spark, progress, GOLDEN / "archive", tmp_path / "new", EXPECTED["now_ms"])
    assert await waiting_in(tmp_path / "new") == EXPECTED["waiting"]


async def test_it_is_continued_in_todays_format_and_restored_from_both(spark, progress, room, tmp_path):
    before = {path: path.read_bytes() for path in (room / "archive").rglob("*") if path.is_file()}
    world = on_disk(room / "node", EXPECTED["now_ms"])
    await world.open()
    await world.send(3_600_000, body=b"since then")
    await world.roll()
    await world.engine.close()
    waiting = await waiting_in(room / "node")
    found = run_archive(spark, progress, room / "node", room / "archive")
    assert found.archived == 1
    assert found.skipped > 1
    assert all(path.read_bytes() == data for path, data in before.items())
    part = find_part(str(room / "archive"), None)
    assert {chunk.format for chunk in part.chunks} == {1, 2}
    assert verify(spark, progress, str(room / "archive"), [part.log_id]).problems == []
    run_restore(spark, progress, room / "archive", tmp_path / "new", EXPECTED["now_ms"])
    assert await waiting_in(tmp_path / "new") == waiting
    assert len(waiting) > len(EXPECTED["waiting"])


def test_a_segment_that_it_has_as_damaged_is_replaced_and_its_old_files_go(spark, progress, room):
    archive = room / "archive"
    manifest = max(archive.glob("_manifest/*/*.json"))
    changed = json.loads(manifest.read_bytes())
    del changed["checksum"]
    changed["lost"] = [{"offset": changed["end"] - 8, "end": changed["end"], "reason": "a bit flipped"}]
    manifest.write_text(json.dumps(changed))
    old = [archive / file["path"] for file in changed["files"]]
    assert run_archive(spark, progress, room / "node", archive).archived == 1
    assert not any(path.exists() for path in old)
    checked = verify(spark, progress, str(archive), [log_id_in(archive)])
    assert (checked.records, checked.problems) == (EXPECTED["records"], [])
    assert find_part(str(archive), None).missing == []
