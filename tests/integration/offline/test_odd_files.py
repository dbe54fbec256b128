"""What is no file where a file of a data directory belongs is refused in one line, with the right reason."""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.processes import COMMAND, environment, timerwheel
from timerwheel import tokens
from timerwheel.offline.fsck import fsck
from timerwheel.store.errors import NotAFileError
from timerwheel.store.files import DiskFiles
from timerwheel.store.lock import DirectoryLock


def bind(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # the address of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as there:
            there.bind(path.name)
    finally:
        os.chdir(before)


KINDS: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link that leads nowhere": lambda path: path.symlink_to("nowhere"),
    "a link": lambda path: path.symlink_to(path.name),
    "a socket or a pipe": bind,
}


def replace(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    KINDS[kind](path)


@pytest.fixture
async def data(world):
    """A data directory with several segments, whose service has stopped."""
    world.files = DiskFiles()
    await world.open()
    for _ in range(5):
        await world.send(*[0] * 6, body=b"v" * 900)
        await world.roll()
    await world.engine.indexer.commit()
    await world.engine.close()
    return world.directory


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["the first segment", "the last segment", "start"])
def test_the_offline_commands_name_what_is_no_file(data, tmp_path, name, kind):
    segments = sorted((data / "log").glob("*.log"))
    place = {"the first segment": segments[0], "the last segment": segments[-1]}.get(name, data / "log/start")
    replace(place, kind)
    for command in (["log"], ["log", "--tail", 1], ["fsck"], ["slots"], ["backup", "create", tmp_path / "b"]):
        done = timerwheel(*command, "--data", data)
        assert done.code == 1
        assert done.err == (
            f"timerwheel: {place} is not an ordinary file but {kind}; move it away, and put back the file "
            "that belongs there\n"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_derived_files_that_are_no_files_count_as_damaged(data, tmp_path, kind):
    first = min((data / "log").glob("*.log"))
    replace(first.with_suffix(".side"), kind)
    replace(first.with_suffix(".keys"), kind)
    report = fsck(data)
    assert report.ok
    assert {finding.code for finding in report.findings} == {"sidecar_stale", "register_stale"}
    assert timerwheel("backup", "create", tmp_path / "b", "--data", data).code == 0
    assert timerwheel("backup", "verify", tmp_path / "b").code == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_quarantine_file_that_is_no_file_stays_and_is_named(world, data, kind):
    place = data / "log" / f"{0:020}.cut"
    replace(place, kind)
    [finding] = fsck(data).findings
    assert (finding.code, finding.detail.split(";")[0]) == ("log_quarantined", "it cannot be read")
    shown = timerwheel("log", "--quarantined", "--data", data)
    assert (shown.code, shown.err.count("\n")) == (1, 1)
    assert f"{place} is not an ordinary file but {kind}" in shown.err
    await world.open(quarantine_retention_ms=0)
    await world.retention_turn()
    assert os.path.lexists(place)


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_that_is_no_file_is_damaged(data, kind):
    replace(data / "index/data.mdb", kind)
    [finding] = fsck(data).findings
    assert finding.code == "index_damaged"
    assert f"data.mdb is not an ordinary file but {kind}" in finding.detail
    shown = timerwheel("slots", "--data", data)
    assert (shown.code, shown.err.count("\n")) == (1, 1)
    assert "start the service once to rebuild it" in shown.err


@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_start_rebuilds_an_index_that_is_no_file(world, data, kind, name):
    replace(data / "index" / name, kind)
    await world.open_healing()
    assert len(await world.delivered()) == 30


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_are_no_file_are_refused_and_let_nobody_in(tmp_path, kind):
    replace(tmp_path / tokens.FILE, kind)
    with pytest.raises(tokens.TokensError, match=f"not an ordinary file but {kind}"):
        tokens.read(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_that_is_no_file_is_named(tmp_path, kind):
    replace(tmp_path / "lock", kind)
    with pytest.raises(NotAFileError, match="lock is not an ordinary file"):
        DirectoryLock(tmp_path, purpose="a test", now_text="now")


def test_a_link_to_a_file_is_as_good_as_the_file(data, tmp_path):
    first = min((data / "log").glob("*.log"))
    shutil.move(first, tmp_path / "elsewhere")
    first.symlink_to(tmp_path / "elsewhere")
    assert fsck(data).ok


@pytest.mark.parametrize("command", ["log", "fsck", "slots"])
def test_a_log_on_a_disk_that_is_not_mounted_is_named(tmp_path, command):
    (tmp_path / "log").symlink_to("nowhere")
    done = timerwheel(command, "--data", tmp_path)
    assert (done.code, done.err) == (
        1,
        f"timerwheel: {tmp_path}/log is a link that leads nowhere; is its disk mounted?\n",
    )


WITHOUT_PRIVILEGES = [
    *("setpriv", "--bounding-set", "-dac_override,-dac_read_search"),
    *("--inh-caps", "-dac_override,-dac_read_search"),
]
"""Root may read and write every file; a command that is started so may not."""


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root needs setpriv")
@pytest.mark.parametrize("command", ["slots", "fsck"])
def test_an_index_that_one_may_not_lock_is_not_called_damaged(data, command):
    lock = data / "index/lock.mdb"
    lock.chmod(0o400)
    before = WITHOUT_PRIVILEGES if os.geteuid() == 0 else []
    done = subprocess.run(
        [*before, *COMMAND, command, "--data", data],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"timerwheel: {lock}: reading the index needs write access to its lock file; run this as the "
        "service's user\n"
    )
