"""Several runs, several attempts of a task, and runs that were killed: each record is archived once."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.harness.archiving import CHUNK_BYTES, ArchivedWorld, run_archive, story_of
from tests.harness.processes import ROOT, environment
from timerwheel.runtime.archived import read_archived
from timerwheel.spark_jobs.archive.check import verify
from timerwheel.spark_jobs.archive.chunk_writer import ChunkWriter
from timerwheel.spark_jobs.archive.job import Work, archive_chunk, archive_segment
from timerwheel.spark_jobs.archive.lock import ArchiveLock, ArchiveLockedError
from timerwheel.spark_jobs.archive.part import find_part
from timerwheel.spark_jobs.archive.source import read_archive
from timerwheel.spark_jobs.archive.store import Archive, ArchiveError
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.store.files import DiskFiles

# Archives the first segments of a log in this process, which SIGKILL ends at the n-th rename.
KILLED = """
import os, signal, sys
from pathlib import Path
from timerwheel.spark_jobs.archive.job import Work, archive_chunk
from timerwheel.spark_jobs.archive.lock import ArchiveLock
from timerwheel.spark_jobs.logs import find_logs

data, to, count, number, place = sys.argv[1:]
renames = 0
rename = Path.replace

def replace(self, target):
    global renames
    renames += 1
    if renames == int(number) and place == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    rename(self, target)
    if renames == int(number):
        os.kill(os.getpid(), signal.SIGKILL)

Path.replace = replace
[log] = find_logs([data])
segments = log.segments[: int(count)]
lock = ArchiveLock(to, log.log_id.hex(), "then")
archive_chunk(Work(lock.run, segments, (None,) * len(segments)), salvage=False)
lock.release()
"""

KILLED_WITH_LOCK = """
import os, signal, sys
from timerwheel.spark_jobs.archive.lock import ArchiveLock
lock = ArchiveLock(*sys.argv[1:])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def story(spark, tmp_path_factory) -> ArchivedWorld:
    """With a data directory of its own: each run marks it as archived."""
    found = story_of(spark, tmp_path_factory.getbasetemp())
    data = tmp_path_factory.mktemp("own") / found.data.name
    shutil.copytree(found.data, data)
    return found._replace(data=data)


@pytest.fixture(scope="module")
def sound(spark, story, tmp_path_factory) -> Path:
    """The archive of one run that nothing disturbed."""
    to = tmp_path_factory.mktemp("sound") / "archive"
    run_archive(spark, JobProgress(spark, show=False), story.data, to)
    return to


def contents(archive: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(archive)): path.read_bytes()
        for path in archive.rglob("*")
        if path.is_file() and "_lock" not in path.parts
    }


def work_of(story: ArchivedWorld, lock: ArchiveLock, count: int) -> Work:
    [log] = find_logs([str(story.data)])
    return Work(lock.run, log.segments[:count], (None,) * count)


def log_id_of(story: ArchivedWorld) -> str:
    return story.logs[0].log_id


@pytest.mark.parametrize("point", [(1, "before"), (1, "after"), (2, "before"), (2, "after")])
def test_a_run_that_was_killed_at_any_point_is_completed_by_the_next_to_the_same_bytes(
    spark, progress, story, sound, tmp_path, point
):
    # Three segments: another chunk than the next run makes, so what is left of it has other names.
    command = [sys.executable, "-c", KILLED, str(story.data), str(tmp_path / "to"), "3", *map(str, point)]
    done = subprocess.run(command, check=False, env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(tmp_path.glob("to/_writing/*/*/*"))
    found = run_archive(spark, progress, story.data, tmp_path / "to")
    if point == (2, "after"):  # with its manifest, so it counts
        assert found.skipped == 3
    else:
        assert found.skipped == 0
        assert contents(tmp_path / "to") == contents(sound)
    assert not (tmp_path / "to" / "_writing").exists()
    checked = verify(spark, progress, str(tmp_path / "to"), [found.log_id])
    assert checked.problems == []
    assert checked.records == sum(one.records for one in find_part(str(sound), None).segments)


def test_a_run_beside_another_is_refused_and_learns_who_has_the_lock_and_changes_nothing(
    spark, progress, story, tmp_path
):
    to = tmp_path / "to"
    marked = read_archived(DiskFiles(), story.data)
    with ArchiveLock(str(to), log_id_of(story), "2026-11-23T10:00:00.000+00:00"):
        with pytest.raises(ArchiveLockedError) as refused:
            run_archive(spark, progress, story.data, to)
        told = str(refused.value)
        assert f"{to}: another run is archiving log {log_id_of(story)}" in told
        assert f"process {os.getpid()} (archive on {socket.gethostname()} since 2026-11-23T10:00:00" in told
        assert "\n" not in told
        assert not (to / "_manifest").exists()
        assert read_archived(DiskFiles(), story.data) == marked
        with ArchiveLock(str(to), "ab" * 16, "now"):
            pass  # another log may be archived to the same place
    assert run_archive(spark, progress, story.data, to).archived > 0


def test_of_two_runs_at_once_one_writes_and_the_other_is_refused_or_finds_it_done(
    spark, story, sound, tmp_path
):
    found: list[object] = []

    def run() -> None:
        try:
            found.append(run_archive(spark, JobProgress(spark, show=False), story.data, tmp_path / "to"))
        except ArchiveLockedError as error:
            found.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert sorted(getattr(one, "archived", 0) for one in found) == [0, 6]
    assert contents(tmp_path / "to") == contents(sound)


def test_a_killed_run_on_a_local_path_leaves_no_lock(story, tmp_path):
    command = [sys.executable, "-c", KILLED_WITH_LOCK, str(tmp_path), log_id_of(story), "then"]
    done = subprocess.run(command, check=False, env=environment(), cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    with ArchiveLock(str(tmp_path), log_id_of(story), "now"):
        pass


def test_two_attempts_of_one_task_commit_one_manifest_and_both_return_it(spark, progress, story, tmp_path):
    with ArchiveLock(str(tmp_path), log_id_of(story), "now") as lock:
        work = work_of(story, lock, 2)
        with ChunkWriter(lock.run) as slow, ChunkWriter(lock.run) as lost:
            segments = [
                archive_segment(slow, lock.run.log_id, one, None, salvage=False) for one in work.segments
            ]
            archive_segment(
                lost, lock.run.log_id, work.segments[0], None, salvage=False
            )  # and goes no further
            first = archive_chunk(work, salvage=False)
            before = contents(tmp_path)
            assert (
                slow.commit(work.segments[0].node, segments).files
                == Archive(str(tmp_path)).manifest(lock.run.log_id, work.segments[0].base).files
            )
            assert archive_chunk(work, salvage=False) == first
            assert {name: data for name, data in contents(tmp_path).items() if "_writing" not in name} == {
                name: data for name, data in before.items() if "_writing" not in name
            }
    assert verify(spark, progress, str(tmp_path), [log_id_of(story)]).problems == []


def test_an_attempt_that_outlives_its_run_commits_nothing(spark, progress, story, tmp_path):
    lock = ArchiveLock(str(tmp_path), log_id_of(story), "then")
    work = work_of(story, lock, 3)
    with ChunkWriter(lock.run, row_group_bytes=1) as late, ChunkWriter(lock.run) as not_begun:
        segments = [
            [archive_segment(writer, lock.run.log_id, one, None, salvage=False) for one in work.segments]
            for writer in (late, not_begun)
        ]
        lock.release()
        found = run_archive(spark, progress, story.data, tmp_path)
        before = contents(tmp_path)
        for writer, own in zip((late, not_begun), segments, strict=True):
            with pytest.raises((ArchiveError, FileNotFoundError)):
                writer.commit(work.segments[0].node, own)
        with pytest.raises(ArchiveError, match="no longer has the lock"):
            archive_chunk(work, salvage=False)
    assert found.archived == 6
    assert contents(tmp_path) == before
    assert verify(spark, progress, str(tmp_path), [log_id_of(story)]).problems == []


def test_what_a_run_is_writing_is_no_finding_of_verify(story, spark, progress, tmp_path):
    run_archive(spark, progress, story.data, tmp_path)
    name = f"{log_id_of(story)}-{1 << 40:020d}-{'a' * 16}.parquet"
    fresh = tmp_path / "records" / "date=2027-01-16" / name
    fresh.parent.mkdir()
    fresh.write_bytes(b"PAR1")
    with ArchiveLock(str(tmp_path), log_id_of(story), "now"):
        assert verify(spark, progress, str(tmp_path), [log_id_of(story)]).problems == []
    [problem] = verify(spark, progress, str(tmp_path), [log_id_of(story)]).problems
    assert f"{fresh} is named by no manifest" in problem
    run_archive(spark, progress, story.data, tmp_path)  # which removes it
    assert verify(spark, progress, str(tmp_path), [log_id_of(story)]).problems == []


def test_chunks_have_at_most_so_many_bytes_and_the_rows_are_the_same_in_any(spark, progress, story, tmp_path):
    rows = []
    for chunk_bytes, files in ((1, 6), (CHUNK_BYTES, 3), (1 << 30, 1)):
        to = tmp_path / str(chunk_bytes)
        found = run_archive(spark, progress, story.data, to, chunk_bytes_max=chunk_bytes)
        assert (found.archived, found.files) == (6, files)
        assert verify(spark, progress, str(to), [found.log_id]).problems == []
        rows.append(sorted(tuple(row) for row in read_archive(spark, str(to)).collect()))
    assert rows[0] == rows[1] == rows[2]
    assert len(rows[0]) == sum(one.records for one in find_part(str(to), None).segments)
