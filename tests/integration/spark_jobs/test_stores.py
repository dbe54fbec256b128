"""Logs and tables in stores that fsspec reads, the web, memory, a zip file, S3, and their errors."""

import asyncio
import pickle
import resource
import shutil
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.harness.sample_log import make_sample
from tests.harness.stores import (
    BUCKET,
    CREDENTIALS,
    names_below,
    refusing_s3,
    s3_server,
    upload,
    using,
    web_server,
)
from timerwheel.spark_jobs.archive.lock import ArchiveLock
from timerwheel.spark_jobs.archive.store import Archive
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.out_directory import UNFINISHED, check_unused, out_directory
from timerwheel.spark_jobs.preflight import probe
from timerwheel.spark_jobs.run_lock import RunLock
from timerwheel.spark_jobs.schedule.rows import RowMapping
from timerwheel.spark_jobs.schedule.table import batches_of, open_table
from timerwheel.spark_jobs.segments import SegmentReader
from timerwheel.spark_jobs.storage import (
    READ_BLOCK_BYTES,
    StorageError,
    exists,
    file_system,
    files_below,
    make_directories,
    names_in,
    place_of,
    read_bytes,
    remove,
    write_atomically,
)
from timerwheel.store.errors import FormatError

NODES = ("node-1", "node-2")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """A directory with two data directories, without their indexes."""
    directory = tmp_path_factory.mktemp("nodes")
    asyncio.run(make_sample(directory / "node-1"))
    shutil.rmtree(directory / "node-1" / "index")
    shutil.copytree(directory / "node-1", directory / "node-2")
    return directory


@pytest.fixture(scope="module")
def s3(nodes):
    with s3_server() as environment, using(environment):
        upload(nodes, f"s3://{BUCKET}/nodes")
        yield environment


@pytest.fixture(params=["http", "memory", "zip", "s3"])
def place(request, nodes, tmp_path):
    """The URL of the same directory in one of the stores, and what a chained URL ends with."""
    if request.param == "http":
        with web_server(nodes) as url:
            yield url, ""
    elif request.param == "memory":
        upload(nodes, "memory://nodes")
        yield "memory:///nodes", ""
        fsspec.filesystem("memory").rm("/nodes", recursive=True)
    elif request.param == "zip":
        with zipfile.ZipFile(tmp_path / "nodes.zip", "w") as archive:
            for path in sorted(nodes.rglob("*")):
                archive.write(path, f"nodes/{path.relative_to(nodes)}")
        yield "zip://nodes", f"::file://{tmp_path}/nodes.zip"
    else:
        request.getfixturevalue("s3")
        yield f"s3://{BUCKET}/nodes", ""


def rows_of(logs):
    return [
        (log.node, segment.base, segment.end, reader.table().rows.tobytes(), reader.source)
        for log in logs
        for segment in log.segments
        for reader in [SegmentReader(segment)]
    ]


def test_a_log_is_the_same_in_every_store(place, nodes):
    url, tail = place
    expected = rows_of(find_logs([str(nodes / name) for name in NODES]))
    assert {source for *_, source in expected} == {"sidecar", "scan"}
    found = find_logs([f"{url}/{name}{tail}" for name in NODES])
    assert [log.url for log in found] == [f"{url}/{name}{tail}" for name in NODES]
    assert rows_of(found) == expected
    assert str(SegmentReader(found[0].segments[0]).path) == f"{url}/node-1/log/{0:020d}.log"


def test_a_pattern_matches_the_same_logs_in_every_store(place):
    url, tail = place
    assert [(log.node, log.url) for log in find_logs([f"{url}/node-*{tail}"])] == [
        (name, f"{url}/{name}{tail}") for name in NODES
    ]


def test_a_place_without_a_log_is_named_as_it_was_given(place):
    url, tail = place
    with pytest.raises(FormatError) as caught:
        find_logs([f"{url}/none{tail}"])
    assert str(caught.value) == f"{url}/none{tail} is not a data directory of timerwheel: it has no log/"
    with pytest.raises(FormatError, match="matches no data directory"):
        find_logs([f"{url}/none-*{tail}"])


def test_a_log_that_grew_is_read_as_it_is_now(nodes, s3):
    del s3
    url = f"s3://{BUCKET}/growing"
    first, *others = sorted((nodes / "node-1" / "log").glob("*.log"))
    write_atomically(f"{url}/log/{first.name}", first.read_bytes())
    assert len(find_logs([url])[0].segments) == 1
    for path in others:
        write_atomically(f"{url}/log/{path.name}", path.read_bytes())
    assert len(find_logs([url])[0].segments) == 1 + len(others)


def test_a_server_that_does_not_tell_the_size_of_a_file_is_read_as_well(tmp_path):
    (tmp_path / "file").write_bytes(bytes(range(100)))
    with web_server(tmp_path, tells_size=False) as url:
        place = place_of(url)
        file = place.files.open_readonly(place.file("file"))
        assert (file.size(), file.read(10, 5)) == (100, bytes(range(10, 15)))
        file.close()


def test_a_large_file_of_a_server_without_ranges_is_refused_with_what_to_choose(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        file.truncate(3 * READ_BLOCK_BYTES)
    with web_server(tmp_path) as url:
        place = place_of(url)
        file = place.files.open_readonly(place.file("file"))
        with pytest.raises(StorageError, match="choose a web server that answers them"):
            file.read(2 * READ_BLOCK_BYTES, 5)
        file.close()


# ---------------------------------------------------------------------- writing


@pytest.fixture(params=["memory", "s3", "local"])
def target(request, tmp_path):
    """The URL of a place without anything in it."""
    if request.param == "s3":
        request.getfixturevalue("s3")
    url = {
        "memory": "memory:///target",
        "s3": f"s3://{BUCKET}/target",
        "local": str(tmp_path / "target"),
    }[request.param]
    yield url
    remove(url)


def test_a_file_is_written_whole_over_an_older_one_and_nothing_else_is_left(target):
    for data in (b"older", b"newer"):
        write_atomically(f"{target}/a/b", data)
        assert read_bytes(f"{target}/a/b") == data
    assert names_below(target) == ["a/b"]
    remove(f"{target}/a")
    assert not exists(f"{target}/a")
    remove(f"{target}/a")
    assert names_in(target) == []


def test_what_a_failed_job_wrote_is_removed_and_a_used_directory_is_refused(target):
    def fail():
        with out_directory(target, "part") as out:
            write_atomically(f"{out}/part/file", b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert names_below(target) == []
    with out_directory(target, "part") as out:
        write_atomically(f"{out}/part/file", b"x")
    with pytest.raises(JobError, match="not an empty directory"):
        check_unused(target)
    with pytest.raises(JobError, match="not an empty directory"):
        check_unused(f"{target}/part/file")


def test_a_job_is_refused_a_directory_to_which_another_writes_and_leaves_it_alone(target):
    with out_directory(target, "part") as out:
        write_atomically(f"{out}/part/file", b"x")
        with pytest.raises(JobError, match=r"is in use by process [1-9]"), out_directory(target):
            pass
        assert read_bytes(f"{out}/part/file") == b"x"
    assert names_below(target) == ["part/file"]


def test_of_jobs_that_begin_in_the_same_moment_one_has_the_directory(tmp_path):
    for number in range(30):
        out = tmp_path / str(number) / "out"
        ready = threading.Barrier(2)

        def work(out=out, ready=ready):
            ready.wait()
            try:
                with out_directory(str(out)) as place:
                    Path(place, f"of-{threading.get_ident()}").touch()
            except JobError:
                return False
            return True

        with ThreadPoolExecutor(2) as threads:
            done = [one.result() for one in [threads.submit(work) for _ in range(2)]]
        assert sum(done) == len(list(out.iterdir())) == 1


def test_a_job_does_not_touch_what_another_wrote_whose_mark_replaced_its_own(target):
    def work():
        with out_directory(target) as out:
            write_atomically(f"{out}/file", b"x")
            write_atomically(f"{out}/{UNFINISHED}", b"{}")  # as in a store that ignores the condition

    with pytest.raises(JobError, match="another job has taken"):
        work()
    assert names_below(target) == [UNFINISHED, "file"]
    with pytest.raises(JobError, match="in use"):
        check_unused(target)


def test_the_end_of_a_probe_leaves_what_a_job_has_written_since(target):
    with probe("--out", target):
        check_unused(target)
        with out_directory(target) as out:
            write_atomically(f"{out}/file", b"x")
    assert names_below(target) == ["file"]


@contextmanager
def full_disk(room_bytes: int) -> Iterator[None]:
    """No file of this process can be longer, as if the disk had no more room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_a_full_disk_has_no_room_for_is_named_and_leaves_nothing(tmp_path):
    out = tmp_path / "out"
    for _ in range(2):  # the first try does not take the directory from the second
        with full_disk(20), pytest.raises(OSError, match="out/_unfinished"), out_directory(str(out)):
            pass
    with full_disk(20), pytest.raises(OSError, match="/file'"):
        write_atomically(f"{tmp_path}/file", bytes(100))
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(f"{tmp_path}/directory", b"")
    assert sorted(names_below(str(tmp_path))) == []
    with out_directory(str(out)):
        pass


def test_no_bucket_is_made_for_a_name_that_was_mistyped(s3):
    del s3
    make_directories("s3://lgos/out")
    with pytest.raises(
        StorageError, match=r"^s3://lgos/out/file: .*does not exist; check the name of the bucket"
    ):
        write_atomically("s3://lgos/out/file", b"x")
    for url in ("s3://lgos/node-1", "s3://lgos/node-*"):
        with pytest.raises(StorageError, match=r"^s3://lgos/.*check the name of the bucket"):
            find_logs([url])


# ---------------------------------------------------------------------- markers of folders


@pytest.fixture
def marked(s3, nodes):
    """The URL of a place in S3 where somebody created the folders in a console at first."""
    del s3
    url = f"s3://{BUCKET}/marked"
    fs, path = file_system(url)
    folders = ("", "nodes/", "nodes/log/", "nodes/node-1/", "nodes/node-1/log/", "out/", "staging/")
    for folder in (*folders, "table/", "table/day=1/", "archive/", "archive/records/", "archive/manifests/"):
        fs.call_s3("put_object", Bucket=BUCKET, Key=f"marked/{folder}", Body=b"")
    upload(nodes / "node-1", f"{url}/nodes/node-1")
    yield url
    fs.rm(path, recursive=True)


def test_markers_of_folders_are_neither_files_nor_logs(marked):
    assert names_in(f"{marked}/out") == files_below(f"{marked}/out") == []
    assert files_below(f"{marked}/staging/") == []
    assert names_in(f"{marked}/nodes") == ["log", "node-1"]
    assert [log.node for log in find_logs([f"{marked}/nodes/*"])] == ["node-1"]
    assert rows_of(find_logs([f"{marked}/nodes/node-1"]))


def test_a_folder_that_somebody_created_is_an_empty_directory(marked):
    with out_directory(f"{marked}/out", "part") as out:
        write_atomically(f"{out}/part/file", b"x")
    assert files_below(f"{marked}/out") == ["part/file"]
    with probe("--staging", f"{marked}/staging") as seen:
        assert seen.size > 0
    assert files_below(f"{marked}/staging") == []


def test_markers_of_folders_are_no_files_of_an_archive(marked):
    store = Archive(f"{marked}/archive")
    assert list(store.files()) == list(store.files(old=False)) == []
    assert store.log_ids() == []
    ArchiveLock(store.url, "ab" * 16, "now").release()


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_markers_of_folders_are_no_files_of_a_table(marked, tmp_path, kind):
    rows = pa.table({"due": ["2030-01-01T00:00:00Z"], "body": ["x"]})
    if kind == "parquet":
        pq.write_table(rows, tmp_path / "rows")
    else:
        pa.csv.write_csv(rows, tmp_path / "rows")
    with pytest.raises(JobError, match="no files in this directory"):
        open_table(f"{marked}/table", None)
    write_atomically(f"{marked}/table/day=1/rows.{kind}", (tmp_path / "rows").read_bytes())
    table = pickle.loads(pickle.dumps(open_table(f"{marked}/table", None)))
    assert table.columns == ["due", "body", "day"]
    mapping = RowMapping("due", "topic", None, "body", None, None, properties=("day",), zone=None)
    [batch] = [one for piece in table.pieces for one in batches_of(piece, table.schema, mapping)]
    assert batch["body"].to_pylist() == ["x"]
    assert batch["day"].to_pylist() == ["1"]


# ---------------------------------------------------------------------- errors


def failure(url):
    """The one line with which it fails to find a log."""
    with pytest.raises((StorageError, FormatError)) as caught:
        find_logs([url])
    text = str(caught.value)
    assert text.startswith(url)
    assert "\n" not in text
    return text


def test_a_server_that_does_not_answer_is_one_line_that_says_what_to_check(tmp_path):
    with web_server(tmp_path) as url:
        pass
    assert "check the address, and that this machine reaches it" in failure(f"{url}/node-1")
    assert "check the address" in failure(f"{url}/node-*")


def test_a_server_that_refuses_is_one_line_that_says_what_to_check(tmp_path):
    with web_server(tmp_path, refuses=True) as url:
        assert "403" in failure(f"{url}/node-1")
        assert "check the credentials and what they allow" in failure(f"{url}/node-1")


REFUSALS = {
    "forbidden": ((403, "AccessDenied"), "check the credentials and what they allow"),
    "a wrong key": ((403, "InvalidAccessKeyId"), "check the credentials and what they allow"),
    "an old token": ((400, "ExpiredToken"), "check the credentials and what they allow"),
    "no bucket": ((404, "NoSuchBucket"), "check the name of the bucket, which a job never creates"),
    "moved": (
        (301, "PermanentRedirect", "eu-west-1"),
        "the bucket is in another region: set AWS_DEFAULT_REGION to eu-west-1",
    ),
    "signed for another region": (
        (400, "AuthorizationHeaderMalformed", "eu-west-1"),
        "the bucket is in another region: set AWS_DEFAULT_REGION to eu-west-1",
    ),
}


@pytest.mark.parametrize(("answer", "advice"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_of_s3_is_one_line_with_the_url_and_what_to_do(answer, advice):
    url = "s3://bucket/place"
    with refusing_s3(*answer) as environment, using(environment):
        for call in (
            lambda: find_logs([url]),
            lambda: find_logs([f"{url}/*"]),
            lambda: write_atomically(f"{url}/file", b"x"),
            lambda: RunLock(url, "name", purpose="audit", now_text="now", taken=JobError),
            lambda: Archive(url).log_ids(),
            lambda: list(Archive(url).files()),
            lambda: ArchiveLock(url, "ab" * 16, "now"),
            lambda: open_table(url, "parquet"),
        ):
            with pytest.raises(StorageError) as caught:
                call()
            text = str(caught.value)
            assert text.startswith("s3://bucket/place")
            assert "\n" not in text
            assert text.endswith(
                (advice, "the credentials, and that AWS_DEFAULT_REGION is the region of the bucket")
            )
            assert "Errno" not in text


def test_an_s3_that_is_not_there_is_one_line_with_the_url_and_what_to_do(monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with refusing_s3(403, "AccessDenied") as environment:
        pass
    with using(environment):
        assert "check the address, and that this machine reaches it" in failure("s3://bucket/place")


def test_s3_without_credentials_is_one_line_that_says_what_to_check(s3, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with using(s3):
        for name in CREDENTIALS:
            if "KEY" in name:
                monkeypatch.delenv(name)
        assert "check the credentials" in failure(f"s3://{BUCKET}/nodes/node-1")
        monkeypatch.undo()


def test_a_file_that_is_no_zip_file_is_one_line(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"no zip file")
    assert "not a zip file" in failure(f"zip://node-1::{tmp_path}/x.zip")


def test_a_missing_package_is_named_with_where_it_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    text = failure("gs://bucket/node-1")
    assert "gcsfs" in text
    assert text.endswith("here and where the executors of Spark run")


def test_an_unknown_kind_of_url_is_one_line():
    assert failure("gopher://host/node-1").endswith("give a path, or a URL that fsspec supports")


def test_a_password_in_a_url_is_in_no_message():
    with pytest.raises(StorageError) as caught:
        file_system("gopher://user:secret@host/node-1")
    assert "gopher://host/node-1" in str(caught.value)
    assert "secret" not in str(caught.value)
