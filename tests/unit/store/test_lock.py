import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from timerwheel.store.errors import LockedError, NotAFileError
from timerwheel.store.lock import DirectoryLock

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys
from pathlib import Path
from timerwheel.store.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]), purpose="serve", now_text="2026-01-01T00:00:00Z")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of `tmp_path` / "data"."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "data")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def taken(directory: Path, purpose: str = "fsck") -> DirectoryLock:
    return DirectoryLock(directory, purpose=purpose, now_text="now")


@contextmanager
def open_again(fd: int) -> Iterator[int]:
    other = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    try:
        yield other
    finally:
        os.close(other)


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_second_process_is_refused_and_learns_who_holds_the_lock(tmp_path, holder):
    with pytest.raises(LockedError) as caught:
        taken(tmp_path / "data")
    message = str(caught.value)
    assert f"process {holder.pid} (serve on " in message
    assert "since 2026-01-01T00:00:00Z" in message
    assert str(tmp_path / "data") in message


def test_refused_process_leaves_the_owner_named_and_no_descriptor_open(tmp_path, holder):
    before = open_descriptors()
    for _ in range(3):
        with pytest.raises(LockedError, match=f"process {holder.pid} "):
            taken(tmp_path / "data")
    assert open_descriptors() == before


def test_lock_is_free_once_its_owner_is_killed(tmp_path, holder):
    holder.kill()
    holder.wait()
    with taken(tmp_path / "data") as lock:
        assert str(os.getpid()).encode() in lock.path.read_bytes()


def test_lock_is_exclusive_within_one_process(tmp_path):
    with taken(tmp_path), pytest.raises(LockedError, match=f"process {os.getpid()} "):
        taken(tmp_path)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_process_that_only_looks_keeps_nobody_from_taking_a_lock(tmp_path, monkeypatch, times):
    looks: list[int] = []
    flock = fcntl.flock

    def looked_at(fd: int, how: int) -> None:
        """Each lock is looked at, so many times, just when it is being taken."""
        if how & fcntl.LOCK_EX and looks.count(os.fstat(fd).st_ino) < times:
            looks.append(os.fstat(fd).st_ino)
            with open_again(fd) as looker:
                flock(looker, fcntl.LOCK_SH | fcntl.LOCK_NB)
                flock(fd, how)
        else:
            flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", looked_at)
    with taken(tmp_path), pytest.raises(LockedError, match=f"process {os.getpid()} "):
        taken(tmp_path)
    assert len(looks) == 2 * times, "of the directory and of the file"


def test_released_lock_can_be_taken_again_and_released_twice(tmp_path):
    lock = taken(tmp_path, "a much longer purpose than the next one has")
    lock.release()
    lock.release()
    with taken(tmp_path, "b"), pytest.raises(LockedError, match=r"\(b on "):
        taken(tmp_path)
    assert (tmp_path / "lock").exists()


def test_a_deleted_lock_file_lets_no_second_process_in(tmp_path, holder):
    for _ in range(2):
        (tmp_path / "data" / "lock").unlink(missing_ok=True)
        with pytest.raises(LockedError, match=f"in use by another process, {holder.pid}; stop it first"):
            taken(tmp_path / "data")
    assert not (tmp_path / "data" / "lock").exists(), "a refused process leaves no file"


def test_a_lock_file_that_another_one_took_the_place_of_lets_no_second_process_in(tmp_path, holder):
    new = tmp_path / "data" / "other"
    new.write_bytes(b'{"pid": 1, "purpose": "serve", "host": "h", "since": "then"}')
    new.replace(tmp_path / "data" / "lock")
    with pytest.raises(LockedError, match=f"in use by another process, {holder.pid}; stop it first"):
        taken(tmp_path / "data")


def test_a_process_that_locks_the_file_alone_as_versions_before_did_is_owner_too(tmp_path):
    facts = b'{"pid": 7, "purpose": "serve", "host": "h", "since": "then"}'
    (tmp_path / "lock").write_bytes(facts)
    with (tmp_path / "lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for _ in range(2):
            with pytest.raises(LockedError, match=r"process 7 \(serve on h since then\)"):
                taken(tmp_path)
    taken(tmp_path).release()


def test_a_lock_is_a_file_of_the_directory_and_no_link_out_of_it(tmp_path):
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "lock").symlink_to(tmp_path / "mine")
    with pytest.raises(NotAFileError, match="not an ordinary file but a link"):
        taken(tmp_path / "data")
    assert (tmp_path / "mine").read_text() == "kept"


@pytest.mark.parametrize("text", [b"", b"not json", b"[]", b"7", b'{"pid": 1}'])
def test_lock_whose_owner_cannot_be_read_is_still_refused(tmp_path, text):
    with taken(tmp_path) as lock:
        lock.path.write_bytes(text)
        with pytest.raises(LockedError, match="in use by another process"):
            taken(tmp_path)


@pytest.mark.parametrize("opens_first", [True, False])
def test_a_directory_that_another_process_removes_before_it_is_locked_is_made_again(
    tmp_path, monkeypatch, opens_first
):
    """As a restore that fails does: it frees its lock, then removes the directory that it made."""
    data, real, removed = tmp_path / "data", os.open, []

    def open_and_remove(path, *rest):
        if path != data or removed:
            return real(path, *rest)
        removed.append(path)
        if not opens_first:
            data.rmdir()
        fd = real(path, *rest)
        if opens_first:
            data.rmdir()
        return fd

    monkeypatch.setattr(os, "open", open_and_remove)
    before = open_descriptors()
    lock = taken(data)
    assert removed
    assert lock.path.exists()
    lock.release()
    assert open_descriptors() == before


def test_directory_is_made_when_it_is_missing(tmp_path):
    with taken(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / "lock").is_file()


ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from timerwheel.store.errors import LockedError
from timerwheel.store.lock import DirectoryLock
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
with DirectoryLock(Path(sys.argv[1]), purpose="serve", now_text="now"):
    try:
        DirectoryLock(Path(sys.argv[1]), purpose="fsck", now_text="now")
    except LockedError as error:
        print(error)
"""


def test_on_a_full_disk_the_lock_holds_though_it_cannot_name_its_owner(tmp_path):
    run = [sys.executable, "-c", ON_A_FULL_DISK, str(tmp_path)]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "in use by another process" in done.stdout
