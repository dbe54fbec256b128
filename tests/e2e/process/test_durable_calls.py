"""The real file layer on the real process: a sync comes before each answer, rename and removal (`strace`)."""

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.processes import COMMAND, PATIENCE_S, environment, serving, serving_alone
from tests.harness.syscalls import HOW_TO_INSTALL, Disk, calls_of, can_trace, traced

pytestmark = pytest.mark.skipif(not can_trace(), reason=HOW_TO_INSTALL)
SMALL = ("--segment-size", "4KiB", "--index-interval", "20ms")
RETENTION = ("--retention", "100ms", "--retention-interval", "50ms")
SENDS_MAX = 2_000
# The owner's name and the index are derived or of no worth after a power cut.
IGNORED = ("lock", "index", "index.aside")


def lines_of(trace: Path, process: int) -> list[str]:
    """The whole trace: strace writes on for a moment after the process has ended."""
    for _ in range(SENDS_MAX):
        lines = trace.read_text(errors="replace").splitlines()
        if any(line.split(maxsplit=2)[:2] == [str(process), "+++"] for line in lines):
            return lines
        subprocess.run(["sync", "-d", str(trace)], check=True)
    raise AssertionError("strace has not ended")


def run(trace: Path, *command: object) -> list[str]:
    """A command to its end, and the calls that it made."""
    whole = traced(trace, [str(word) for word in command])
    with subprocess.Popen(
        whole, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, out + err
    return lines_of(trace, process.pid)


def send(url: str, body: bytes) -> None:
    urllib.request.urlopen(f"{url}/v1/topics/orders/messages", data=body, timeout=PATIENCE_S).close()


@contextmanager
def lived(data: Path, trace: Path) -> Iterator[tuple[Disk, list[str]]]:
    """After a service has sent, rolled, written sidecars and removed segments, call by call."""
    disk = Disk(data, ignored=IGNORED)
    with serving_alone(data, *SMALL, *RETENTION, trace=trace) as service:
        [first] = (data / "log").glob("*.log")
        for number in range(SENDS_MAX):
            send(service.url, b"%d" % number * 200)
            if number > 30 and not first.exists():
                break
        assert service.end(signal.SIGTERM).code == 0
    lines = lines_of(trace, service.process.pid)
    yield disk.run(lines), lines


def test_what_is_answered_renamed_or_removed_was_synced_before(tmp_path):
    with lived(tmp_path / "a" / "data", tmp_path / "trace") as (disk, lines):
        assert disk.broken == []
        assert disk.unsynced() == []
    assert disk.answers > 30
    assert disk.segments > 3
    assert disk.removed > 0
    kinds = {Path(path).suffix or Path(path).name for path in disk.renamed}
    assert kinds >= {".side", "start"}
    assert len([call for call in calls_of(lines) if call.name == "fdatasync"]) > 30


@pytest.mark.parametrize("messages", [1, 40])  # of one segment without a sidecar, and of several
def test_a_backup_that_says_it_is_done_is_on_the_disk_and_so_is_what_is_restored(tmp_path, messages):
    data, target = tmp_path / "data", tmp_path / "b" / "backup"
    with serving(data, *SMALL) as service:
        for number in range(messages):
            send(service.url, b"%d" % number * 200)
        assert service.end(signal.SIGTERM).code == 0
    for number in range(2):
        disk = Disk(target, ignored=IGNORED)
        words = ("backup", "create", target, "--data", data)
        lines = run(tmp_path / f"backup{number}", *COMMAND, *words)
        assert disk.run(lines).broken == []
        assert disk.unsynced() == []
        assert any(path.endswith("/backup/log") for path in disk.renamed)
    disk = Disk(tmp_path / "c" / "new", ignored=IGNORED)
    words = ("backup", "restore", target, "--data", tmp_path / "c" / "new")
    lines = run(tmp_path / "restore", *COMMAND, *words)
    assert disk.run(lines).broken == []
    assert disk.unsynced() == []
    assert any(path.endswith("/new/log") for path in disk.renamed)


SWAP = """
import sys
from pathlib import Path
from timerwheel.store.index import Index
from timerwheel.index.swap import new_path, swap_in
path = Path(sys.argv[1]) / "index"
for number in range(2):
    index = Index(new_path(path), 1 << 24)
    with index.write() as txn:
        txn.put("meta", b"key", b"%d" % number)
    index.close()
    swap_in(path)
"""


def test_an_index_is_on_the_disk_before_it_takes_the_place_of_the_old_one(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    disk = Disk(data)
    lines = run(tmp_path / "trace", sys.executable, "-c", SWAP, data)
    assert disk.run(lines).broken == []
    assert disk.unsynced() == []
    assert disk.renamed.count(f"{data}/index") == 2


def test_the_tokens_are_on_the_disk_before_their_secret_is_shown(tmp_path):
    disk = Disk(tmp_path / "data")
    words = ("tokens", "create", "one", "--scope", "admin", "--data", tmp_path / "data")
    lines = run(tmp_path / "trace", *COMMAND, *words)
    shown = next(n for n, line in enumerate(lines) if " write(1<" in line and "tw_" in line)
    assert disk.run(lines[:shown]).broken == []
    assert disk.unsynced() == []
