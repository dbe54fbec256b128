"""Backups that somebody has changed: each is refused with a reason, and nothing is left behind."""

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson
import pytest

from tests.integration.offline.test_backup import life, lived, room, target  # noqa: F401 - fixtures
from timerwheel.offline.backup.backup import back_up
from timerwheel.offline.backup.files import BackupDamagedError, verify_files
from timerwheel.offline.backup.restore import restore_backup
from timerwheel.runtime.data_directory import MANIFEST_FILE
from timerwheel.store.errors import FormatError, NoSpaceError, StoreError
from timerwheel.store.sealed_json import seal
from timerwheel.store.segment import encode_header
from timerwheel.store.sidecar import encode
from timerwheel.store.table import ROW_DTYPE, Table

Manifest: TypeAlias = dict[str, Any]
NUMBERS = (-1, 0, 1, 8, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, 1.5, None, "1", [], {}, True)
TEXTS = ("", "0" * 31, "0" * 32, "../" * 12, "/etc/passwd", "x" * 100_000, "\0", None, 7, [], {})


@pytest.fixture
async def backup(lived, target):  # noqa: F811 - fixtures
    """A sound backup of everything: several segments, sidecars, `start`, tokens and a marker."""
    for _ in range(3):
        await lived.roll()
    back_up(lived.directory, target, lived.clock.now_ms())
    manifest = read(target)
    assert len(manifest["segments"]) > 3
    assert {file["name"] for file in manifest["files"]} == {"start", "tokens.json", "archived"}
    assert list((target / "log").glob("*.side"))
    return target


def read(backup: Path) -> Manifest:
    return orjson.loads((backup / "log" / MANIFEST_FILE).read_bytes())


def forge(backup: Path, manifest: Manifest, *, sealed: bool) -> None:
    """Put a manifest there, with a right checksum or, as versions before had them, with none."""
    manifest.pop("checksum", None)
    try:
        raw = orjson.dumps(manifest)
    except TypeError:  # a number that JSON of this library does not write
        raw = json.dumps(manifest, separators=(",", ":")).encode()
    (backup / "log" / MANIFEST_FILE).write_bytes(seal(raw) if sealed else raw)


def refused(backup: Path, data: Path) -> str:
    """What verify and restore say; neither leaves anything, nor does the backup change."""
    before = sorted(data.parent.rglob("*"))
    with pytest.raises(StoreError) as caught:
        verify_files(backup)
    with pytest.raises(StoreError) as again:
        restore_backup(backup, data / "of" / "it", 0)
    assert str(again.value) == str(caught.value)
    assert str(backup) in str(caught.value), "the message names the place"
    assert not data.exists()
    assert sorted(data.parent.rglob("*")) == before
    return str(caught.value)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document, containers included."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def put(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    for key in path[:-1]:
        document = document[key]
    before, document[path[-1]] = document[path[-1]], value
    return before


@pytest.mark.parametrize("sealed", [True, False])
def test_each_field_of_a_manifest_with_another_value_is_refused(backup, room, sealed):  # noqa: F811
    sound = read(backup)
    del sound["checksum"]
    tried = 0
    for path in places(sound):
        if path == ("made_ms",) and not sealed:
            continue
        held = sound
        for key in path:
            held = held[key]
        for value in TEXTS if isinstance(held, str) else NUMBERS:
            if value == held and type(value) is type(held):
                continue
            if path == ("made_ms",) and type(value) is int and 0 <= value < 2**31 + 1:
                continue  # a time like any other: only the checksum knows better
            changed = orjson.loads(orjson.dumps(sound))
            put(changed, path, value)
            forge(backup, changed, sealed=sealed)
            with pytest.raises(StoreError, match=str(backup)):
                verify_files(backup)
            tried += 1
    assert tried > 300
    forge(backup, sound, sealed=sealed)
    assert restore_backup(backup, room / "new", 0).until == sound["until"]


def test_each_field_that_is_left_out_or_twice_is_refused(backup, room):  # noqa: F811
    sound = read(backup)
    del sound["checksum"]
    for path in list(places(sound)):
        changed = orjson.loads(orjson.dumps(sound))
        parent = changed
        for key in path[:-1]:
            parent = parent[key]
        del parent[path[-1]]
        forge(backup, changed, sealed=True)
        refused(backup, room / "new")
        if isinstance(parent, list):
            parent.insert(path[-1], sound[path[0]][path[1]])
            parent.append(parent[0])
            forge(backup, changed, sealed=True)
            refused(backup, room / "new")


CHANGES: dict[str, tuple[Callable[[Manifest, Path], object], str]] = {
    "a segment in the middle is missing": (lambda m, _: m["segments"].pop(1), "is missing"),
    "the first segment is missing": (lambda m, _: m["segments"].pop(0), "is missing"),
    "the last segment is missing": (lambda m, _: m["segments"].pop(), "the log ends at"),
    "the last segment is missing and nothing says so": (
        lambda m, _: m.update(until=m["segments"].pop()["base"]),
        "the manifest does not list it",
    ),
    "the tokens are missing": (
        lambda m, _: m.update(files=[file for file in m["files"] if file["name"] != "tokens.json"]),
        r"tokens\.json .* the manifest does not list it",
    ),
    "the log is another one": (lambda m, _: m.update(log_id="ab" * 16), "the manifest to log abab"),
    "the beginning is another one": (lambda m, _: m.update(start=0), "is missing"),
    "the end lies further on": (lambda m, _: m.update(until=m["until"] + 8), "the log ends at"),
    "damage is made up": (
        lambda m, _: m["segments"][0].update(damage="damaged at log offset 7: x"),
        "the manifest states damaged at log offset 7",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("sealed", [True, False])
def test_a_manifest_that_is_sound_in_itself_and_wrong_is_refused(backup, room, name, sealed):  # noqa: F811
    change, said = CHANGES[name]
    manifest = read(backup)
    change(manifest, backup)
    forge(backup, manifest, sealed=sealed)
    message = refused(backup, room / "new")
    assert re.search(said, message), message


def test_one_wrong_byte_of_a_manifest_is_refused_wherever_it_is(backup):
    path = backup / "log" / MANIFEST_FILE
    whole, sound, refusals = path.read_bytes(), verify_files(backup), []
    for place in range(0, len(whole), 7):
        raw = bytearray(whole)
        raw[place] ^= 1
        path.write_bytes(raw)
        try:
            assert verify_files(backup) == sound, "only the name of the checksum was hit"
        except FormatError as error:
            refusals.append(str(error))
    assert len(refusals) > len(whole) // 7 - 3
    assert all(MANIFEST_FILE in refusal for refusal in refusals)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff\xfe",
        b'{"format":1}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"format":2}',
    ],
)
def test_what_is_not_a_manifest_is_refused(backup, room, raw):  # noqa: F811
    (backup / "log" / MANIFEST_FILE).write_bytes(raw)
    refused(backup, room / "new")


# ---------------------------------------------------------------------- what lies there


def link(path: Path) -> None:
    """The same content, but elsewhere."""
    elsewhere = path.parents[2] / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def replace_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


KINDS: dict[str, Callable[[Path], None]] = {
    "a link to the same": link,
    "a dangling link": replace_by(lambda path: path.symlink_to("nowhere")),
    "a link to itself": replace_by(lambda path: path.symlink_to(path.name)),
    "a link to an endless device": replace_by(lambda path: path.symlink_to("/dev/zero")),
    "a pipe": replace_by(os.mkfifo),
    "a directory": replace_by(lambda path: path.mkdir()),
    "a huge file": lambda path: os.truncate(path, 1 << 45),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_file_that_is_not_an_ordinary_one_is_refused(backup, room, kind):  # noqa: F811
    whole = room / "whole"
    shutil.copytree(backup, whole)
    for name in sorted(path.name for path in (whole / "log").iterdir()):
        if kind == "a huge file" and name.endswith(".side"):
            continue  # it is not read at all
        shutil.rmtree(backup)
        shutil.copytree(whole, backup)
        KINDS[kind](backup / "log" / name)
        refused(backup, room / "new")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_refused(backup, room):  # noqa: F811
    path = backup / "log" / "tokens.json"
    path.unlink()
    os.mknod(path, 0o20600, os.makedev(1, 5))
    assert "not an ordinary file" in refused(backup, room / "new")


def test_a_log_that_is_a_link_is_refused(backup, room):  # noqa: F811
    (backup / "log").rename(room / "elsewhere")
    (backup / "log").symlink_to(room / "elsewhere")
    assert "is a link" in refused(backup, room / "new")


def test_each_file_that_is_missing_is_named(backup, room):  # noqa: F811
    for path in sorted((backup / "log").iterdir()):
        if path.suffix != ".side":
            raw = path.read_bytes()
            path.unlink()
            message = refused(backup, room / "new")
            assert path.name in message or path.name == MANIFEST_FILE
            path.write_bytes(raw)


def test_a_sidecar_that_lies_misleads_nobody(backup, room):  # noqa: F811
    truth = restore_backup(backup, room / "one", 0)
    liar = Table(np.zeros(1, ROW_DTYPE), ["orders"])
    for number, path in enumerate(sorted((backup / "log").glob("*.log"))):
        base, end = int(path.stem), int(path.stem) + path.stat().st_size
        path.with_suffix(".side").write_bytes(b"\0" * 100 if number else encode(liar, base, end))
    assert restore_backup(backup, room / "two", 0) == truth
    for path in (room / "one" / "log").iterdir():
        assert path.read_bytes() == (room / "two" / "log" / path.name).read_bytes()


def test_a_segment_of_another_log_is_refused_though_its_checksum_is_right(backup, room):  # noqa: F811
    manifest = read(backup)
    path = min((backup / "log").glob("*.log"))
    raw = encode_header(manifest["start"], b"x" * 16, 1) + path.read_bytes()[64:]
    path.write_bytes(raw)
    manifest["segments"][0]["crc"] = zlib.crc32(raw)
    forge(backup, manifest, sealed=True)
    assert "it belongs to log" in refused(backup, room / "new")


def test_a_last_segment_that_was_cut_is_refused_though_its_checksum_is_right(backup, room):  # noqa: F811
    manifest = read(backup)
    path = max((backup / "log").glob("*.log"))
    raw = path.read_bytes()[:-8]
    path.write_bytes(raw)
    manifest["segments"][-1].update(crc=zlib.crc32(raw), size=len(raw))
    manifest["until"] -= 8
    forge(backup, manifest, sealed=True)
    assert "up to" in refused(backup, room / "new")


def test_a_backup_that_does_not_fit_on_the_disk_is_refused_before_it_is_copied(backup, room, monkeypatch):  # noqa: F811
    manifest = read(backup)
    monkeypatch.setattr("timerwheel.store.files.DiskFiles.free_bytes", lambda _self, _directory: 1_000)
    with pytest.raises(NoSpaceError, match="1,000 bytes free"):
        restore_backup(backup, room / "new", 0)
    assert not (room / "new").exists()
    assert manifest


def test_a_refused_restore_leaves_a_directory_that_was_there_as_it_was(backup, room):  # noqa: F811
    (room / "new" / "lost+found").mkdir(parents=True)
    min((backup / "log").glob("*.log")).unlink()
    with pytest.raises(BackupDamagedError):
        restore_backup(backup, room / "new", 0)
    assert [path.name for path in (room / "new").iterdir()] == ["lost+found"]
