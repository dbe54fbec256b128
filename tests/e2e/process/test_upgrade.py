"""What a newer program wrote is refused in one line, and nothing of it is changed."""

import re
import shutil
from pathlib import Path
from zlib import crc32

import pytest

from tests.harness.processes import ROOT, timerwheel
from timerwheel import tokens
from timerwheel.offline.backup.files import BACKUP_FORMAT, Manifest
from timerwheel.spark_jobs.archive.manifest import FORMAT as ARCHIVE_FORMAT
from timerwheel.spark_jobs.archive.manifest import MANIFESTS
from timerwheel.store import register, sidecar
from timerwheel.store.index import INDEX_FORMAT
from timerwheel.store.record import FORMAT_VERSION, HEADER_SIZE
from timerwheel.store.segment import SEGMENT_HEADER_SIZE

GOLDEN = ROOT / "tests" / "golden" / "v1"


@pytest.fixture
def data(tmp_path) -> Path:
    """A data directory of a program before."""
    shutil.copytree(GOLDEN / "service", tmp_path / "d")
    return tmp_path / "d"


def files_of(place: Path) -> dict[str, bytes]:
    """Every file but the lock, which says who tried, and the index, which follows from the log."""
    found = {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    return {str(path): data for path, data in found.items() if path.parts[0] not in ("lock", "index")}


def segments(data: Path) -> list[Path]:
    return sorted(data.glob("log/*.log"))


def newer_segment(data: Path) -> None:
    """The last segment says that it is of format 2."""
    raw = bytearray(segments(data)[-1].read_bytes())
    raw[8] = 2
    raw[60:64] = crc32(raw[:60]).to_bytes(4, "little")
    segments(data)[-1].write_bytes(raw)


def newer_record(data: Path) -> None:
    """A whole record of version 2 stands at the end of the last segment."""
    path = segments(data)[-1]
    raw = path.read_bytes()
    record = bytearray(raw[SEGMENT_HEADER_SIZE : SEGMENT_HEADER_SIZE + HEADER_SIZE + 500])
    record = record[: int.from_bytes(record[:4], "little")]
    record[8] = 2
    record[4:8] = crc32(record[8:]).to_bytes(4, "little")
    path.write_bytes(raw + record)


def newer_tokens(data: Path) -> None:
    path = data / "tokens.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))


@pytest.mark.parametrize(
    ("change", "named"),
    [(newer_segment, "version 2"), (newer_record, "version 2"), (newer_tokens, "version 2")],
)
def test_a_directory_of_a_newer_program_is_refused_and_left_as_it_is(data, change, named):
    change(data)
    before = files_of(data)
    refused = timerwheel("serve", "--port", 0, "--data", data)
    assert refused.code == 1
    usual = ("the index was missing", "other users could access")
    told = [line for line in refused.err.splitlines() if not any(words in line for words in usual)]
    assert len(told) == 1
    assert named in refused.err
    assert files_of(data) == before


@pytest.mark.parametrize("change", [newer_segment, newer_record])
def test_a_log_of_a_newer_program_is_not_backed_up(data, change, tmp_path):
    change(data)
    before = files_of(data)
    refused = timerwheel("backup", "create", tmp_path / "b", "--data", data)
    assert refused.code == 1
    assert "version 2" in refused.err
    assert not (tmp_path / "b" / "log").exists()
    assert files_of(data) == before


def test_a_backup_of_a_newer_program_is_refused_and_left_as_it_is(tmp_path):
    shutil.copytree(GOLDEN / "backup", tmp_path / "b")
    manifest = tmp_path / "b" / "log" / "backup.json"
    manifest.write_text(manifest.read_text().replace('"format":1', '"format":2'))
    before = files_of(tmp_path / "b")
    for command in (("verify",), ("restore", "--data", tmp_path / "new")):
        refused = timerwheel("backup", command[0], tmp_path / "b", *command[1:])
        assert refused.code == 1
        assert "backup format 2; this program reads 1" in refused.err
    refused = timerwheel("backup", "create", tmp_path / "b", "--data", GOLDEN / "service")
    assert refused.code == 1
    assert files_of(tmp_path / "b") == before
    assert not (tmp_path / "new").exists()


def test_the_check_reads_a_directory_of_a_program_before(data):
    checked = timerwheel("fsck", "--data", data, "--json").json
    assert checked["ok"]
    assert [one["code"] for one in checked["findings"]] == ["index_missing"]


def test_the_page_states_the_versions_of_today():
    table = (ROOT / "doc" / "upgrade.md").read_text().partition("| file |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \| (\d+) \|", table, re.MULTILINE)
    assert {files.split("`")[1]: int(version) for files, version in rows} == {
        "log/*.log": FORMAT_VERSION,
        "log/start": FORMAT_VERSION,
        "log/*.side": int(sidecar.MAGIC[-2:]),
        "log/*.keys": int(register.MAGIC[-2:]),
        "index/": INDEX_FORMAT,
        "tokens.json": tokens.VERSION,
        "backup.json": BACKUP_FORMAT,
        f"{MANIFESTS}/": ARCHIVE_FORMAT,
    }


def test_the_page_states_the_fields_of_the_manifest():
    page = (ROOT / "doc" / "upgrade.md").read_text()
    table = page.partition("| field of `backup.json` |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [*Manifest.__struct_fields__, "checksum"]
