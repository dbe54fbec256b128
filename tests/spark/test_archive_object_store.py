"""Archives in an object store: S3 by moto on loopback, and memory."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator

import fsspec
import pytest
import s3fs
from pyspark.errors import PySparkException

from tests.harness.archiving import ArchivedWorld, run_archive, run_restore, story_of
from tests.harness.object_store import BUCKET, ObjectStore, object_store
from tests.harness.processes import ROOT, environment, timerwheel
from timerwheel.offline.fsck import fsck
from timerwheel.spark_jobs.archive.check import check_chunk, verify
from timerwheel.spark_jobs.archive.chunk_writer import ChunkWriter
from timerwheel.spark_jobs.archive.job import Work, archive_chunk, archive_segment
from timerwheel.spark_jobs.archive.lock import ArchiveLock, ArchiveLockedError
from timerwheel.spark_jobs.archive.part import find_part
from timerwheel.spark_jobs.archive.source import read_archive
from timerwheel.spark_jobs.archive.store import Archive, ArchiveError
from timerwheel.spark_jobs.logs import find_logs

LOCKING = """
import os, signal, sys
from timerwheel.spark_jobs.archive.lock import ArchiveLock
lock = ArchiveLock(*sys.argv[2:])
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""
URL = f"s3://{BUCKET}/archive"


@pytest.fixture(scope="module")
def story(spark, tmp_path_factory) -> ArchivedWorld:
    """With a data directory of its own: each run marks it as archived."""
    found = story_of(spark, tmp_path_factory.getbasetemp())
    data = tmp_path_factory.mktemp("own") / found.data.name
    shutil.copytree(found.data, data)
    return found._replace(data=data)


@pytest.fixture
def store(spark, monkeypatch, request) -> Iterator[ObjectStore]:
    """A fresh server, for this process and for Spark's workers."""
    with object_store(conditions=getattr(request, "param", True)) as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
            monkeypatch.setitem(spark.sparkContext.environment, name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        yield found
        s3fs.S3FileSystem.clear_instance_cache()


def log_id_of(story: ArchivedWorld) -> str:
    return story.logs[0].log_id


def test_each_file_is_one_put_and_the_archive_is_verified_read_and_restored(
    spark, progress, story, store, tmp_path
):
    found = run_archive(spark, progress, story.data, URL)
    assert (found.archived, found.files) == (6, 3)
    assert not any(request.copies for request in store.requests)
    puts = [
        request.path for request in store.requests if request.method == "PUT" and "archive" in request.path
    ]
    assert len(puts) == len(set(puts)) == found.files + 3 + 1  # with a manifest each, and the lock
    deleted = [request for request in store.requests if request.method in ("DELETE", "POST")]
    assert len(deleted) == 1  # the lock
    assert not any("_lock" in name or "_writing" in name for name in store.names())
    assert verify(spark, progress, URL, [found.log_id]).problems == []
    assert read_archive(spark, URL, columns=["offset"]).count() == found.records
    assert run_archive(spark, progress, story.data, URL).archived == 0
    run_restore(spark, progress, URL, tmp_path / "new", story.now_ms)
    assert fsck(tmp_path / "new").pending == len(story.waiting)


@pytest.mark.torture
def test_the_files_in_a_store_are_those_on_a_disk(spark, progress, story, store, tmp_path):
    run_archive(spark, progress, story.data, URL)
    run_archive(spark, progress, story.data, tmp_path / "to")
    here = {str(path.relative_to(tmp_path / "to")) for path in tmp_path.glob("to/[r_][em]*/**/*.*")}
    assert {name.removeprefix("archive/") for name in store.names("archive/")} == here


@pytest.mark.torture
def test_a_run_beside_another_is_refused_and_learns_who_has_the_lock(story, store):
    with ArchiveLock(URL, log_id_of(story), "2026-11-23T10:00:00Z"):
        done = timerwheel("archive", "--data", story.data, "--to", URL, **store.environment)
    assert done.code == 1
    assert f"{URL}: another run is archiving log {log_id_of(story)}: process " in done.err
    assert "since 2026-11-23T10:00:00Z; if that process no longer exists, delete" in done.err
    assert done.err.endswith(f"delete {URL}/_lock/{log_id_of(story)}.json\n")
    assert done.err.count("\n") == 1
    assert store.names("archive/") == []


def test_of_many_runs_that_begin_at_once_one_has_the_lock(store):
    script = (
        "import sys; from timerwheel.spark_jobs.archive.lock import ArchiveLock; ArchiveLock(*sys.argv[1:])"
    )
    command = [sys.executable, "-c", script, URL, "ab" * 16, "now"]
    settings = environment(**store.environment)
    runs = [subprocess.Popen(command, env=settings, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(4)]
    told = [run.communicate()[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 1, 1, 1]
    assert sum(b"ArchiveLockedError" in one for one in told) == 3


@pytest.mark.torture
def test_the_lock_of_a_killed_run_stays_until_it_is_deleted_as_the_error_says(spark, progress, story, store):
    command = [sys.executable, "-c", LOCKING, "killed", URL, log_id_of(story), "then"]
    subprocess.run(command, check=False, env=environment(**store.environment), cwd=ROOT)
    with pytest.raises(ArchiveLockedError, match="delete") as refused:
        run_archive(spark, progress, story.data, URL)
    place = str(refused.value).rpartition("delete ")[2]
    fs, path = fsspec.core.url_to_fs(place)
    fs.rm(path)
    assert run_archive(spark, progress, story.data, URL).archived == 6


def test_a_run_whose_lock_was_deleted_commits_nothing_more(story, store):
    [log] = find_logs([str(story.data)])
    with ArchiveLock(URL, log_id_of(story), "then") as lock, ChunkWriter(lock.run) as late:
        found = [archive_segment(late, lock.run.log_id, log.segments[0], None, salvage=False)]
        store.client.delete_object(Bucket=BUCKET, Key=f"archive/_lock/{log_id_of(story)}.json")
        with ArchiveLock(URL, log_id_of(story), "now"):
            with pytest.raises(ArchiveError, match="no longer has the lock"):
                late.commit(log.node, found)
            assert store.names("archive/_manifest") == []
            lock.release()
            assert store.names("archive/_lock") != []  # not of the other run


@pytest.mark.parametrize("store", [False], indirect=True, ids=["a store without conditions"])
def test_where_a_store_ignores_conditions_the_later_run_takes_over_and_the_earlier_one_stops(story, store):
    [log] = find_logs([str(story.data)])
    first = ArchiveLock(URL, log_id_of(story), "then")
    second = ArchiveLock(URL, log_id_of(story), "now")
    works = [Work(lock.run, log.segments[:1], (None,)) for lock in (first, second)]
    with pytest.raises(ArchiveError, match="no longer has the lock"):
        archive_chunk(works[0], salvage=False)
    assert store.names("archive/_manifest") == []
    first.release()
    assert archive_chunk(works[1], salvage=False).files == 1
    second.release()
    assert store.names("archive/_lock") == []


def test_two_attempts_of_one_task_commit_one_manifest(story, store):
    [log] = find_logs([str(story.data)])
    with ArchiveLock(URL, log_id_of(story), "now") as lock:
        work = Work(lock.run, log.segments[:2], (None, None))
        with ChunkWriter(lock.run) as slow:
            found = [
                archive_segment(slow, lock.run.log_id, one, None, salvage=False) for one in work.segments
            ]
            first = archive_chunk(work, salvage=False)
            before = store.names("archive/")
            manifest = slow.commit(log.node, found)
            assert store.names("archive/") == before
    assert sum(file.rows for file in manifest.files) == first.records
    assert len(store.names("archive/_manifest")) == 1
    puts = [request for request in store.requests if request.method == "PUT" and "_manifest" in request.path]
    assert len(puts) == 2  # the second was refused


@pytest.mark.torture
def test_an_orphan_is_named_by_verify_and_removed_by_the_next_run(spark, progress, story, store):
    found = run_archive(spark, progress, story.data, URL)
    base = find_part(URL, None).chunks[0].base
    key = f"archive/records/date=2027-01-15/{found.log_id}-{base:020d}-{'a' * 16}.parquet"
    store.client.put_object(Bucket=BUCKET, Key=key, Body=b"PAR1")
    [problem] = verify(spark, progress, URL, [found.log_id]).problems
    assert problem.startswith(f"s3://{BUCKET}/{key} is named by no manifest")
    run_archive(spark, progress, story.data, URL)
    assert verify(spark, progress, URL, [found.log_id]).problems == []
    [manifest, *_] = store.names("archive/_manifest")
    body = json.loads(store.client.get_object(Bucket=BUCKET, Key=manifest)["Body"].read())
    store.client.put_object(Bucket=BUCKET, Key=f"archive/{body['files'][0]['path']}", Body=b"PAR1")
    with pytest.raises(PySparkException, match=r"is damaged: it has 4 bytes"):
        read_archive(spark, URL, columns=["offset"]).count()


def test_an_archive_may_lie_in_any_file_system_that_fsspec_knows(story):
    [log] = find_logs([str(story.data)])
    store = Archive("memory://backup/timers")
    log_id = log.log_id.hex()
    with ArchiveLock(store.url, log_id, "now") as lock:
        with pytest.raises(ArchiveLockedError):
            ArchiveLock(store.url, log_id, "now")
        done = archive_chunk(Work(lock.run, log.segments[:1], (None,)), salvage=False)
    assert store.log_ids() == [log_id]
    assert check_chunk(store, log_id, log.segments[0].base) == (1, done.records, [])
    fs = fsspec.filesystem("memory")
    assert not any("_lock" in name or "_writing" in name for name in fs.find("/backup"))
    fs.rm("/backup", recursive=True)
