"""Archives that somebody has changed: verify names what is wrong, a restore refuses and leaves nothing."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from tests.harness.archiving import run_archive, run_restore, story_of
from timerwheel.spark_jobs.archive.check import check_chunk, unnamed_files, verify
from timerwheel.spark_jobs.archive.part import find_part
from timerwheel.spark_jobs.archive.source import read_archive
from timerwheel.spark_jobs.archive.store import Archive, ArchiveError
from timerwheel.store.sealed_json import seal

NUMBERS = (-1, 2**62, 2**63, 2**64, 1.5, None, "1", [], {})
TEXTS = ("", "../../etc/passwd", "/etc/passwd", "x", "0" * 64, None, 7, [], {})
FORGETFUL = {"made_ms", "beginning"}  # of a segment: nothing else in an archive tells of these


@pytest.fixture(scope="session")
def story(spark, tmp_path_factory):
    return story_of(spark, tmp_path_factory.getbasetemp())


@pytest.fixture
def archive(story, tmp_path):
    """A copy that may be changed."""
    shutil.copytree(story.archive, tmp_path / "archive")
    return tmp_path / "archive"


def chunks(archive: Path) -> list[tuple[str, int]]:
    store = Archive(str(archive))
    return [(log_id, base) for log_id in store.log_ids() for base in store.bases(log_id)]


def problems(archive: Path) -> list[str]:
    """What `archive --verify` names."""
    store = Archive(str(archive))
    found = [one for chunk in chunks(archive) for one in check_chunk(store, *chunk)[2]]
    return sorted({*found, *unnamed_files(store)})


def manifest_of(archive: Path, number: int = 0) -> Path:
    return sorted((archive / "_manifest").rglob("*.json"))[number]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = orjson.loads(orjson.dumps(document))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def test_a_whole_archive_has_no_problems(archive):
    assert problems(archive) == []
    assert len(chunks(archive)) > 2


def test_each_field_of_a_manifest_with_another_value_is_named(archive):
    tried, store = 0, Archive(str(archive))
    for number, chunk in enumerate(chunks(archive)):
        path = manifest_of(archive, number)
        whole = path.read_bytes()
        sound = orjson.loads(whole)
        del sound["checksum"]
        files = len(sound["files"])
        bases = [segment["base"] for segment in sound["segments"]]
        for place in places(sound):
            if place[0] == "files" and len(place) > 1 and place[1] not in (0, files - 1):
                continue  # one is like the other
            held = at(sound, place)
            for value in TEXTS if isinstance(held, str) else NUMBERS:
                if FORGETFUL & set(place) and (isinstance(value, int | str) or value is None):
                    continue
                if value == held or (FORGETFUL & set(place) and len(place) > 3):
                    continue
                forged_text = json.dumps(changed(sound, place, value), separators=(",", ":"))
                path.write_bytes(seal(forged_text.encode()))
                # Each chunk is checked by itself; that the others are sound is asked once, at the end.
                found = check_chunk(store, *chunk)[2]
                assert found, f"{place} = {value!r}"
                assert str(archive) in found[0] or any(f"segment {base} " in found[0] for base in bases)
                tried += 1
        path.write_bytes(whole)
    assert tried > 500
    assert problems(archive) == []


def test_one_wrong_byte_of_a_manifest_is_named_wherever_it_is(archive):
    path = manifest_of(archive)
    whole = path.read_bytes()
    missed = []
    for place in range(0, len(whole), 5):
        raw = bytearray(whole)
        raw[place] ^= 1
        path.write_bytes(raw)
        if not problems(archive):
            missed.append(bytes(raw[max(place - 8, 0) : place + 8]))
    assert len(missed) <= 2, missed  # the name of the checksum itself


ELSEWHERE: dict[str, Callable[[str, Path], str]] = {
    "above the archive": lambda path, _: f"../archive/{path}",
    "by a way around": lambda path, _: f"date=2026-01-01/../{path}",
    "an absolute path": lambda path, root: f"{root}/{path}",
    "a system file": lambda _path, _root: "/etc/passwd",
    "a URL": lambda path, _: f"s3://elsewhere/{path}",
    "a file URL": lambda path, root: f"file://{root}/{path}",
    "another file of it": lambda path, _: path.replace(".parquet", ".parquet/../x"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_path_out_of_the_archive_is_not_read(archive, tmp_path, name):
    path = manifest_of(archive)
    manifest = orjson.loads(path.read_bytes())
    del manifest["checksum"]
    manifest["files"][0]["path"] = ELSEWHERE[name](manifest["files"][0]["path"], archive)
    path.write_bytes(seal(orjson.dumps(manifest)))
    [problem] = problems(archive)
    assert "is not a valid manifest: it must list" in problem
    assert tmp_path.exists()


def second_name(path: Path) -> None:
    """A hard link from outside the archive."""
    (path.parents[3] / "outside").hardlink_to(path)


def link(path: Path) -> None:
    elsewhere = path.parents[3] / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere.absolute())


def replace_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


KINDS: dict[str, Callable[[Path], None]] = {
    "a link to the same": link,
    "a file with a name outside": second_name,
    "a dangling link": replace_by(lambda path: path.symlink_to("nowhere")),
    "a link to an endless device": replace_by(lambda path: path.symlink_to("/dev/zero")),
    "a pipe": replace_by(os.mkfifo),
    "a directory": replace_by(lambda path: path.mkdir()),
    "a huge file": lambda path: os.truncate(path, 1 << 42),
    "nothing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_file_that_is_not_an_ordinary_one_is_named(archive, tmp_path, kind):
    for file in (manifest_of(archive), min(archive.glob("records/date=*/*.parquet"))):
        kept = tmp_path / "kept"
        shutil.copytree(archive, kept)
        listed = chunks(archive)
        KINDS[kind](file)
        store = Archive(str(archive))
        found = [one for chunk in listed for one in check_chunk(store, *chunk)[2]]
        assert len(found) == 1
        assert file.name in found[0]
        shutil.rmtree(archive)
        kept.rename(archive)
        (tmp_path / "outside").unlink(missing_ok=True)


@pytest.mark.parametrize("pattern", ["_manifest", "_manifest/*", "records", "records/date=*"])
def test_a_directory_that_is_a_link_is_not_followed(archive, tmp_path, pattern):
    place = min(archive.glob(pattern))
    listed = chunks(archive)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    store = Archive(str(archive))
    found = [one for chunk in listed for one in check_chunk(store, *chunk)[2]]
    assert any(f"{place} is a link" in one for one in found)


def put_in_place(archive: Path, raw: bytes, rows: int | None = None) -> None:
    """Other bytes for the first file, with a manifest that has their size, rows and checksum."""
    file = min(archive.glob("records/date=*/*.parquet"))
    for path in (archive / "_manifest").rglob("*.json"):
        manifest = orjson.loads(path.read_bytes())
        del manifest["checksum"]
        for one in manifest["files"]:
            if archive / one["path"] == file:
                digest = hashlib.sha256(raw).hexdigest()
                file = file.rename(file.with_name(f"{file.stem[:-16]}{digest[:16]}.parquet"))
                file.write_bytes(raw)
                if rows is not None:
                    manifest["segments"][0]["records"] += rows - one["rows"]
                    one["rows"] = rows
                one.update(path=str(file.relative_to(archive)), bytes=len(raw), sha256=digest)
                path.write_bytes(seal(orjson.dumps(manifest)))
                return


def forged(archive: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Other rows in the first file."""
    table = change(pq.ParquetFile(min(archive.glob("records/date=*/*.parquet"))).read())
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    put_in_place(archive, sink.getvalue().to_pybytes(), len(table))


def with_column(name: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(name)
        return table.set_column(place, name, pa.array([value] * len(table), table.schema.field(name).type))

    return change


ROWS: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "of another log": (with_column("log_id", "ab" * 16), "another log_id"),
    "of another segment": (with_column("segment", 7), "another segment"),
    "of another node": (with_column("node", "x"), "another node"),
    "of another day": (with_column("store_ms", 0), "records of 1970-01-01"),
    "at other offsets": (with_column("offset", 1 << 40), "another segment"),
    "in another queue": (with_column("queue", 9), "queues"),
    "too few": (lambda table: table.slice(1), "bytes"),
    "without a column": (lambda table: table.drop_columns(["node"]), "no column node"),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_are_not_those_of_the_segment_are_named(archive, name):
    change, said = ROWS[name]
    forged(archive, change)
    assert said in "".join(problems(archive))


def test_a_file_that_is_not_parquet_is_named(archive):
    put_in_place(archive, b"x" * 1000)
    [problem] = problems(archive)
    assert "is not a Parquet file" in problem


def copied_as(name: str) -> Callable[[Path], Path]:
    def change(file: Path) -> Path:
        shutil.copy(file, file.with_name(name))
        return file.with_name(name)

    return change


def beside(place: str) -> Callable[[Path], Path]:
    def change(file: Path) -> Path:
        path = file.parents[2] / place
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, path)
        return path

    return change


def linked_directory(file: Path) -> Path:
    path = file.parents[1] / "date=2026-02-03"
    path.symlink_to(file.parents[3])
    return path


UNNAMED: dict[str, Callable[[Path], Path]] = {
    "a copy under another digest": lambda file: copied_as(f"{file.stem[:-16]}{'a' * 16}.parquet")(file),
    "a file of anybody": copied_as("part-00000.snappy.parquet"),
    "a hidden file": copied_as(".part.parquet"),
    "another day": beside("records/date=2026-02-03/x.parquet"),
    "beside the records": beside("x.parquet"),
    "a file in the place of format 1": beside("date=2026-02-03/topic=orders/x.parquet"),
    "a directory that is a link": linked_directory,
}


@pytest.mark.parametrize("name", UNNAMED)
def test_a_file_that_no_manifest_names_is_named_and_not_read(spark, archive, name):
    rows = read_archive(spark, str(archive), columns=["offset"]).count()
    added = UNNAMED[name](min(archive.glob("records/date=*/*.parquet")))
    [problem] = problems(archive)
    assert problem == f"{added} is named by no manifest: it is not part of the archive; move it elsewhere"
    assert read_archive(spark, str(archive), columns=["offset"]).count() == rows


def test_a_manifest_whose_records_another_has_too_is_named_and_nothing_is_read_twice(
    spark, progress, archive
):
    first, second, *_ = chunks(archive)
    shorter = orjson.loads(manifest_of(archive, 1).read_bytes())
    del shorter["checksum"]
    moved = shorter["segments"].pop(0)
    base = shorter["segments"][0]["base"]
    shorter["files"] = []
    for segment in shorter["segments"]:
        segment["records"] = 0
    path = archive / "_manifest" / first[0] / f"{base:020d}.json"
    path.write_bytes(seal(orjson.dumps(shorter)))
    said = f"both have the offsets from {base} on: remove one of the two"
    assert moved["base"] == second[1]
    assert any(said in one for one in verify(spark, progress, str(archive), [first[0]]).problems)
    for read in (lambda: read_archive(spark, str(archive)), lambda: find_part(str(archive), None)):
        with pytest.raises(ArchiveError, match=said):
            read()


@pytest.mark.parametrize("change", [link, second_name, lambda path: path.write_bytes(b"PAR1")])
def test_read_archive_refuses_what_verify_names(spark, archive, change):
    file = min(archive.glob("records/date=*/*.parquet"))
    change(file)
    with pytest.raises(PySparkException, match=re.escape(file.name)):
        read_archive(spark, str(archive), columns=["offset"]).count()
    (archive.parent / "outside").unlink(missing_ok=True)
    change(manifest_of(archive))
    with pytest.raises(ArchiveError, match=re.escape(manifest_of(archive).name)):
        read_archive(spark, str(archive))


def test_an_archive_does_not_write_through_a_link(spark, progress, story, archive, tmp_path):
    shutil.rmtree(archive / "records")
    shutil.rmtree(archive / "_manifest")
    (tmp_path / "elsewhere").mkdir()
    (archive / "records").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PySparkException, match="is a link, which an archive must not contain"):
        run_archive(spark, progress, story.data, archive)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_restore_refuses_what_verify_names_and_leaves_nothing(spark, progress, story, archive, tmp_path):
    link(min(archive.glob("records/date=*/*.parquet")))
    with pytest.raises(Exception, match="not an ordinary file"):
        run_restore(spark, progress, archive, tmp_path / "new", story.now_ms)
    assert not (tmp_path / "new").exists()


def test_a_manifest_that_is_a_link_is_refused_before_anything_is_made(archive):
    link(manifest_of(archive))
    with pytest.raises(ArchiveError, match="not an ordinary file"):
        find_part(str(archive), None)
