"""Archives that somebody has changed: verify names what is wrong, a restore refuses and leaves nothing."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.harness.archiving import run_restore, story_of
from timerwheel.spark_jobs.archive.check import check_segment
from timerwheel.spark_jobs.archive.part import find_part
from timerwheel.spark_jobs.archive.store import Archive, ArchiveError
from timerwheel.store.sealed_json import seal

NUMBERS = (-1, 2**62, 2**63, 2**64, 1.5, None, "1", [], {})
TEXTS = ("", "../../etc/passwd", "/etc/passwd", "x", "0" * 64, None, 7, [], {})
FORGETFUL = (("made_ms",), ("beginning",))  # nothing else in an archive tells of these


@pytest.fixture(scope="session")
def story(spark, tmp_path_factory):
    return story_of(spark, tmp_path_factory.getbasetemp())


@pytest.fixture
def archive(story, tmp_path):
    """A copy that may be changed."""
    shutil.copytree(story.archive, tmp_path / "archive")
    return tmp_path / "archive"


def segments(archive: Path) -> list[tuple[str, int]]:
    store = Archive(str(archive))
    return [(log_id, base) for log_id in store.log_ids() for base in store.bases(log_id)]


def problems(archive: Path) -> list[str]:
    """What `archive --verify` names."""
    store = Archive(str(archive))
    return [one for segment in segments(archive) for one in check_segment(store, *segment)[1]]


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
    assert len(segments(archive)) > 2


def test_each_field_of_a_manifest_with_another_value_is_named(archive):
    tried, store = 0, Archive(str(archive))
    for number, segment in enumerate(segments(archive)):
        path = manifest_of(archive, number)
        whole = path.read_bytes()
        sound = orjson.loads(whole)
        del sound["checksum"]
        files = len(sound["files"])
        for place in places(sound):
            if place[0] == "files" and len(place) > 1 and place[1] not in (0, files - 1):
                continue  # one is like the other
            held = at(sound, place)
            for value in TEXTS if isinstance(held, str) else NUMBERS:
                if place[:1] in FORGETFUL and (isinstance(value, int | str) or value is None):
                    continue
                if value == held or (place[:1] in FORGETFUL and len(place) > 1):
                    continue
                forged_text = json.dumps(changed(sound, place, value), separators=(",", ":"))
                path.write_bytes(seal(forged_text.encode()))
                # Each segment is checked by itself; that the others are sound is asked once, at the end.
                found = check_segment(store, *segment)[1]
                assert found, f"{place} = {value!r}"
                assert str(archive) in found[0] or str(sound["base"]) in found[0]
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


def link(path: Path) -> None:
    elsewhere = path.parents[1] / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere.absolute())


def replace_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


KINDS: dict[str, Callable[[Path], None]] = {
    "a link to the same": link,
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
    for file in (manifest_of(archive), min(archive.glob("date=*/topic=orders/*.parquet"))):
        kept = tmp_path / "kept"
        shutil.copytree(archive, kept)
        listed = segments(archive)
        KINDS[kind](file)
        store = Archive(str(archive))
        found = [one for segment in listed for one in check_segment(store, *segment)[1]]
        assert len(found) == 1
        assert file.name in found[0]
        shutil.rmtree(archive)
        kept.rename(archive)


@pytest.mark.parametrize("pattern", ["_manifest", "_manifest/*", "date=*", "date=*/topic=orders"])
def test_a_directory_that_is_a_link_is_not_followed(archive, tmp_path, pattern):
    place = min(archive.glob(pattern))
    listed = segments(archive)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    store = Archive(str(archive))
    found = [one for segment in listed for one in check_segment(store, *segment)[1]]
    assert any(f"{place} is a link" in one for one in found)


def forged(archive: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Other rows in the first file of orders, with a manifest that has its size, rows and checksum."""
    file = min(archive.glob("date=*/topic=orders/*.parquet"))
    table = change(pq.ParquetFile(file).read())
    pq.write_table(table, file)
    for path in (archive / "_manifest").rglob("*.json"):
        manifest = orjson.loads(path.read_bytes())
        del manifest["checksum"]
        for one in manifest["files"]:
            if archive / one["path"] == file:
                raw = file.read_bytes()
                manifest["records"] += len(table) - one["rows"]
                one.update(rows=len(table), bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())
                path.write_bytes(seal(orjson.dumps(manifest)))


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
    file = min(archive.glob("date=*/topic=orders/*.parquet"))
    raw = b"x" * 1000
    file.write_bytes(raw)
    for path in (archive / "_manifest").rglob("*.json"):
        manifest = orjson.loads(path.read_bytes())
        del manifest["checksum"]
        for one in manifest["files"]:
            if archive / one["path"] == file:
                one.update(bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())
                path.write_bytes(seal(orjson.dumps(manifest)))
    [problem] = problems(archive)
    assert "is not a Parquet file" in problem


def test_an_archive_of_a_version_before_has_no_checksum_and_is_read(archive):
    for path in (archive / "_manifest").rglob("*.json"):
        manifest = orjson.loads(path.read_bytes())
        del manifest["checksum"]
        path.write_bytes(orjson.dumps(manifest))
    assert problems(archive) == []


def test_a_restore_refuses_what_verify_names_and_leaves_nothing(spark, progress, story, archive, tmp_path):
    link(min(archive.glob("date=*/topic=orders/*.parquet")))
    with pytest.raises(Exception, match="not an ordinary file"):
        run_restore(spark, progress, archive, tmp_path / "new", story.now_ms)
    assert not (tmp_path / "new").exists()


def test_a_manifest_that_is_a_link_is_refused_before_anything_is_made(archive):
    link(manifest_of(archive))
    with pytest.raises(ArchiveError, match="not an ordinary file"):
        find_part(str(archive), None)
