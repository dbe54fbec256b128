"""Reading a data directory from outside, and the check of log and wheel against each other."""

import asyncio
import contextlib
import errno
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import lmdb
import msgspec
import numpy as np
import pytest

from tests.harness.processes import timerwheel
from timerwheel.groups.config import Exponential, GroupConfig, GroupTerms
from timerwheel.index.writer import STATE_KEY, read_state
from timerwheel.model.messages import Outgoing
from timerwheel.offline.fsck import fsck
from timerwheel.offline.snapshot import open_log, open_snapshot, read_past_retention, read_records
from timerwheel.runtime.registers import LOOK_MS
from timerwheel.store.errors import CorruptionError, FormatError, IndexDamagedError
from timerwheel.store.files import DiskFiles
from timerwheel.store.index import INDEX_FORMAT, Index
from timerwheel.store.lock import DirectoryLock
from timerwheel.store.segment import (
    REGISTER_SUFFIX,
    SEGMENT_HEADER_SIZE,
    SIDECAR_SUFFIX,
    encode_header,
    segment_name,
)
from timerwheel.wheel.slot_table import ENTRY_DTYPE

ROOT = Path(__file__).resolve().parents[3]
DELAYS_MS = [500, 1_500, 30_000, 400_000, 9_000_000, 900_000_000]

OUTSIDE = """
import json, sys
from pathlib import Path
from timerwheel.offline.fsck import fsck
from timerwheel.groups.config import Exponential, GroupConfig
from timerwheel.offline.snapshot import open_snapshot
data = Path(sys.argv[1])
with open_snapshot(data) as snapshot:
    wheel = snapshot.wheel()
    seen = {
        "pending": [m.id for m in snapshot.pending(None, None, None, 10_000)],
        "count": wheel.pending,
        "levels": sum(level.count for level in wheel.levels),
        "records": sum(1 for _ in snapshot.records()),
    }
report = fsck(data)
seen |= {"ok": report.ok, "fsck": [report.pending, report.visible, report.records]}
seen["findings"] = [[f.code, f.detail] for f in report.findings]
print(json.dumps(seen))
"""

FSCK = """
import json, sys
from pathlib import Path
from timerwheel.offline.fsck import fsck
print(json.dumps([finding.code for finding in fsck(Path(sys.argv[1])).findings]))
"""

PAUSED = """
import os, sys
name, left, real = sys.argv[2], int(sys.argv[3]), os.open
def paused(path, *rest):
    global left
    if str(path).endswith(name):
        left -= 1
        if left == 0:
            print("paused", flush=True)
            sys.stdin.readline()
    return real(path, *rest)
os.open = paused
"""


@pytest.fixture
def on_disk(world):
    world.files = DiskFiles()
    return world


def look_from_outside(directory, program=OUTSIDE):
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def filled(world):
    """Timers on every level, deliveries, a recall, a reschedule, several segments."""
    engine = await world.open()
    ids = await world.send_ids(*DELAYS_MS, *DELAYS_MS, body=b"b" * 300)
    await world.send(*[0] * 15, body=b"v" * 300)
    await engine.recalls.recall(ids[4])
    await engine.recalls.reschedule(ids[5], {"TIMER_DELAY_MS": "60000"})
    await world.advance(500)
    return engine


def codes(report):
    return sorted({finding.code for finding in report.findings})


async def test_snapshot_and_fsck_agree_with_the_stopped_engine(on_disk):
    engine = await filled(on_disk)
    pending, wheel = await on_disk.pending_ids(), await engine.messages.wheel()
    visible = engine.queues.topic("orders").visible
    await engine.close()
    with open_snapshot(on_disk.directory) as snapshot:
        assert [m.id for m in snapshot.pending(None, None, None, 1_000)] == pending
        assert [m.id for m in snapshot.pending("orders", None, None, 3)] == pending[:3]
        assert snapshot.pending("never", None, None, 3) == []
        assert snapshot.wheel().pending == wheel.pending
        assert snapshot.wheel().levels == wheel.levels
        kinds = [record.kind for record in snapshot.records()]
        assert (kinds.count("cancel"), kinds.count("timer")) == (1, 13)
    report = fsck(on_disk.directory)
    assert (report.ok, report.findings) == (True, [])
    assert (report.pending, report.visible) == (wheel.pending, visible)
    assert report.segments > 1


@pytest.mark.parametrize("committed", [True, False])
async def test_snapshot_and_fsck_agree_with_the_live_engine(on_disk, committed):
    engine = await filled(on_disk)
    if committed:
        await engine.indexer.commit()
    pending = await on_disk.pending_ids()
    seen = look_from_outside(on_disk.directory)
    assert seen["pending"] == pending
    assert seen["count"] == seen["levels"] == len(pending)
    assert (seen["ok"], seen["findings"]) == (True, [])
    assert seen["fsck"] == [len(pending), engine.queues.topic("orders").visible, seen["records"]]
    await on_disk.send(0)  # the engine was not disturbed


async def test_snapshot_and_fsck_read_what_a_killed_engine_left(on_disk):
    engine = await filled(on_disk)
    pending = await on_disk.pending_ids()
    await engine.abandon()
    seen = look_from_outside(on_disk.directory)
    assert (seen["pending"], seen["ok"]) == (pending, True)


async def test_fsck_agrees_after_retention_moved_and_dropped(on_disk):
    engine = await on_disk.open(retention_ms=5_000)
    await on_disk.send(*[900_000_000] * 5, body=b"far")
    for _ in range(3):
        await on_disk.send(*[500] * 10, body=b"b" * 100)
        await on_disk.roll()
        await on_disk.advance(600)
        await on_disk.roll()
        await on_disk.advance(6_000)
        assert await on_disk.retention_turn() > 0
    await engine.indexer.tick()
    await engine.close()
    report = fsck(on_disk.directory)
    assert (report.ok, report.findings) == (True, [])
    assert report.pending == 5


@pytest.mark.parametrize(
    ("name", "nth"), [("/start", 1), ("/start", 2), ("/start", 4), (".log", 1), (".log", 4)]
)
async def test_retention_may_move_and_drop_while_another_process_opens_the_directory(on_disk, name, nth):
    """It comes just before that process opens, for the nth time, a file whose name ends so."""
    await on_disk.open(retention_ms=5_000)
    for turn in range(2):
        for delays in ([0] * 30, [900_000_000, 950_000_000], [0] * 30):
            await on_disk.send(*delays, body=b"v" * 300)
        await on_disk.engine.indexer.commit()
        for _ in range(10):
            await on_disk.advance(1_000)
        if not turn:
            assert await on_disk.retention_turn() > 0
    command = (sys.executable, "-c", PAUSED + OUTSIDE, str(on_disk.directory), name, str(nth))
    other = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT)
    assert await other.stdout.readline() == b"paused\n"
    assert await on_disk.retention_turn() > 0
    out, errors = await other.communicate(b"\n")
    assert other.returncode == 0, errors.decode()
    seen = json.loads(out)
    assert seen["pending"] == await on_disk.pending_ids()
    assert seen["ok"], seen["findings"]


FEW_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""


@pytest.mark.parametrize("program", [FSCK, FEW_DESCRIPTORS + FSCK])
async def test_retention_may_drop_segments_while_fsck_reads_them(on_disk, program):
    await on_disk.open(retention_ms=5_000)
    for _ in range(15):
        await on_disk.send(*[0] * 30, body=b"v" * 300)
    await on_disk.engine.indexer.commit()
    for _ in range(10):
        await on_disk.advance(1_000)
    command = (sys.executable, "-c", PAUSED + program, str(on_disk.directory), ".side", "1")
    other = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT)
    assert await other.stdout.readline() == b"paused\n"
    assert len(on_disk.engine.core.log.bases) > 12
    assert await on_disk.retention_turn() > 0
    out, errors = await other.communicate(b"\n")
    assert other.returncode == 0, errors.decode()
    assert json.loads(out) == []


VERIFYING = """
import builtins, sys
from lmdb import verify
class Paused:
    def __init__(self, path, mode):
        self.file, self.left = builtins.open(path, mode), int(sys.argv[2])
    def read(self, size):
        self.left -= 1
        if self.left == 0:
            print("paused", flush=True)
            sys.stdin.readline()
        return self.file.read(size)
    def __getattr__(self, name):
        return getattr(self.file, name)
    def __enter__(self):
        return self
    def __exit__(self, *_):
        self.file.close()
verify.open = Paused
"""


@pytest.mark.parametrize("page", [2, 4, 6])
async def test_a_service_may_start_and_write_while_another_process_verifies_its_index(on_disk, page):
    async def fill():
        for number in range(20):
            await on_disk.send(*range(1_000_000, 50_000_000, 1_000_000), topic=f"topic-{number}")
            await on_disk.engine.indexer.commit()

    await on_disk.open()
    await fill()
    await on_disk.engine.close()
    command = (sys.executable, "-c", VERIFYING + OUTSIDE, str(on_disk.directory), str(page))
    other = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT)
    assert await other.stdout.readline() == b"paused\n"
    await on_disk.open()
    await fill()
    out, errors = await other.communicate(b"\n")
    assert other.returncode == 0, errors.decode()
    seen = json.loads(out)
    assert seen["pending"] == await on_disk.pending_ids()
    assert seen["ok"], seen["findings"]


LOOKING = """
import sys, time
from pathlib import Path
from timerwheel.offline.snapshot import open_index
def sleep(seconds):
    print("paused", flush=True)
    sys.stdin.readline()
time.sleep = sleep
with open_index(Path(sys.argv[1])) as txn:
    print(bytes(txn.get("control", b"kept")).decode(), flush=True)
"""


async def test_another_process_waits_for_the_last_page_of_an_index_that_is_being_written(tmp_path):
    """LMDB does not write that page if it is free, so the service extends the file after each commit."""
    with DirectoryLock(tmp_path, purpose="serve", now_text="now"):
        index = Index(tmp_path / "index", 1 << 24)
        with index.write() as txn:
            txn.put("control", b"kept", b"value")
            txn.put("control", b"large", b"x" * 50_000)
            txn.delete("control", b"large")
        index.close()
        file = tmp_path / "index" / "data.mdb"
        whole = file.stat().st_size
        os.truncate(file, whole - 4096)
        command = (sys.executable, "-c", LOOKING, str(tmp_path))
        other = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT)
        assert await other.stdout.readline() == b"paused\n"
        os.truncate(file, whole)
        out, errors = await other.communicate(b"\n")
    assert (out, other.returncode) == (b"value\n", 0), errors.decode()


class LookedAt:
    """An environment of LMDB; calls `look` before it makes some of its tables."""

    def __init__(self, env, look):
        self._env = env
        self._look = look

    def open_db(self, name, *, create):
        if name in (b"meta", b"wheel", b"key_parts"):
            self._look()
        return self._env.open_db(name, create=create)

    def __getattr__(self, name):
        return getattr(self._env, name)


async def test_no_process_sees_an_index_without_all_its_tables(on_disk, monkeypatch):
    """A start makes an index in several steps; another process looks at the directory before each."""
    seen = []
    lmdb_open = lmdb.open

    def look():
        seen.append(look_from_outside(on_disk.directory, FSCK))

    def looked_at(path, **options):
        look()
        return LookedAt(lmdb_open(path, **options), look)

    monkeypatch.setattr(lmdb, "open", looked_at)
    await on_disk.open()
    assert seen == [["index_missing"]] * 8, "made under another name, then opened under its own"


def change_index(world, change):
    index = Index(world.directory / "index", 1 << 28)
    with index.write() as txn:
        change(txn)
    index.close()


@pytest.mark.parametrize("other", [INDEX_FORMAT - 1, INDEX_FORMAT + 1])
async def test_an_index_of_another_format_is_refused_and_no_damage(on_disk, other):
    await filled(on_disk)
    await on_disk.engine.close()

    def set_format(txn):
        state = msgspec.structs.replace(read_state(txn), format=other)
        txn.put("meta", STATE_KEY, msgspec.msgpack.encode(state))

    change_index(on_disk, set_format)
    words = f"index format {other}; this program reads {INDEX_FORMAT}"
    with pytest.raises(IndexDamagedError, match=words), open_snapshot(on_disk.directory):
        pass
    report = fsck(on_disk.directory)
    assert (report.ok, codes(report)) == (True, ["index_missing"])
    assert words in report.findings[0].detail


async def test_fsck_lets_go_of_the_index_before_it_reads_the_log(on_disk):
    """LMDB opens an index once in a process, so nothing holds the index that can be opened."""
    await filled(on_disk)
    await on_disk.engine.close()
    looks = 0

    def look(_at, _end):
        nonlocal looks
        lmdb.open(str(on_disk.directory / "index"), readonly=True, max_dbs=20).close()
        looks += 1

    report = fsck(on_disk.directory, look)
    assert (report.ok, report.findings) == (True, [])
    assert looks > 1


@pytest.mark.parametrize("suffix", [SIDECAR_SUFFIX, REGISTER_SUFFIX])
async def test_fsck_goes_on_where_the_disk_cannot_read_a_file_beside_a_segment(on_disk, monkeypatch, suffix):
    await filled(on_disk)
    await on_disk.advance(LOOK_MS)
    await on_disk.engine.close()
    pread, beside = os.pread, {path.stat().st_ino for path in on_disk.directory.rglob(f"*{suffix}")}
    assert beside

    def reading(fd, size, position):
        if os.fstat(fd).st_ino in beside:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, position)

    monkeypatch.setattr(os, "pread", reading)
    report = fsck(on_disk.directory)
    assert report.ok
    assert codes(report) == ["sidecar_stale" if suffix == SIDECAR_SUFFIX else "register_stale"]


async def test_fsck_finds_a_wheel_page_that_was_deleted(on_disk):
    await filled(on_disk)
    await on_disk.engine.close()

    def delete_last(txn):
        txn.delete("wheel", list(txn.items("wheel"))[-1][0])

    change_index(on_disk, delete_last)
    report = fsck(on_disk.directory)
    assert (report.ok, codes(report)) == (False, ["timer_missing"])


async def test_fsck_finds_an_entry_that_the_log_does_not_know(on_disk):
    await filled(on_disk)
    await on_disk.engine.close()

    def add(txn):
        entry = np.zeros(1, ENTRY_DTYPE)
        entry["due_ms"], entry["root"], entry["offset"], entry["size"] = 2 * 10**12, 8, 8, 88
        txn.put_page("wheel", list(txn.items("wheel"))[-1][0][:-8], 1 << 40, entry, weight=1)

    change_index(on_disk, add)
    report = fsck(on_disk.directory)
    assert (report.ok, codes(report)) == (False, ["timer_extra"])
    assert report.findings[0].offset == 8


async def test_fsck_finds_a_timer_that_lies_in_the_wheel_twice(on_disk):
    """It would be re-injected twice."""
    await filled(on_disk)
    await on_disk.engine.close()

    def double(txn):
        key, value = list(txn.items("wheel"))[-1]
        txn.put("wheel", key[:-8] + (1 << 40).to_bytes(8, "big"), value)

    change_index(on_disk, double)
    assert not fsck(on_disk.directory).ok


async def test_fsck_finds_counts_that_differ(on_disk):
    """`count_differs` is a documented code."""
    await filled(on_disk)
    await on_disk.engine.close()

    def miscount(txn):
        for key, raw in list(txn.items("topics")):
            name, pending, queues = msgspec.msgpack.decode(raw)
            txn.put("topics", key, msgspec.msgpack.encode((name, pending + 3, queues)))

    change_index(on_disk, miscount)
    assert "count_differs" in codes(fsck(on_disk.directory))


async def test_fsck_finds_a_queue_that_lost_a_page(on_disk):
    await filled(on_disk)
    await on_disk.engine.close()
    change_index(on_disk, lambda txn: txn.delete("queues", next(iter(txn.items("queues")))[0]))
    report = fsck(on_disk.directory)
    assert (report.ok, codes(report)) == (False, ["queue_differs"])


async def test_fsck_finds_a_flipped_byte_in_a_sealed_segment_and_reads_on_behind_it(on_disk):
    await filled(on_disk)
    await on_disk.engine.close()
    whole = fsck(on_disk.directory).records
    path = min((on_disk.directory / "log").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[64 + 100] ^= 1
    path.write_bytes(data)
    report = fsck(on_disk.directory)
    assert not report.ok
    damaged = [finding for finding in report.findings if finding.code == "log_damaged"]
    assert [(finding.path, finding.offset) for finding in damaged] == [(str(path), 64)]
    assert report.records == whole - 1


async def test_fsck_counts_what_waits_although_the_timer_of_a_delivered_message_is_damaged(on_disk):
    await on_disk.open()
    await on_disk.send(500, 900_000, body=b"b" * 300)
    await on_disk.advance(500)
    await on_disk.roll()
    await on_disk.engine.close()
    path = min((on_disk.directory / "log").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[64 + 100] ^= 1
    path.write_bytes(data)
    report = fsck(on_disk.directory)
    assert report.pending == 1
    assert "log_damaged" in codes(report)
    shutil.rmtree(on_disk.directory / "index")
    assert fsck(on_disk.directory).pending == 1


async def test_fsck_reports_a_torn_tail_that_a_start_would_cut(on_disk):
    await filled(on_disk)
    await on_disk.engine.abandon()
    path = max((on_disk.directory / "log").glob("*.log"))
    end = on_disk.engine.core.log.tail
    with path.open("r+b") as file:
        file.seek(end - int(path.stem))
        file.write(b"\x60\0\0\0torn")
    report = fsck(on_disk.directory)
    assert (report.ok, codes(report)) == (True, ["log_torn"])
    assert report.findings[0].offset == end
    await on_disk.open()
    assert on_disk.engine.recovered.truncation is not None


async def test_fsck_names_a_stale_sidecar_and_a_missing_index_as_harmless(on_disk):
    await filled(on_disk)
    await on_disk.engine.close()
    min((on_disk.directory / "log").glob("*.side")).unlink()
    (on_disk.directory / "index").rename(on_disk.directory / "gone")
    report = fsck(on_disk.directory)
    assert (report.ok, codes(report)) == (True, ["index_missing", "sidecar_stale"])


async def test_fsck_compares_registers_with_what_their_segments_say(on_disk):
    await filled(on_disk)
    await on_disk.send(60_000)
    await on_disk.roll()
    await on_disk.engine.registers.advance(1 << 30)
    await on_disk.engine.close()
    first, *_, last = sorted((on_disk.directory / "log").glob("*.keys"))
    assert codes(fsck(on_disk.directory)) == []
    first.unlink()  # as in a directory of an earlier version
    assert codes(fsck(on_disk.directory)) == []
    data = last.read_bytes()
    last.write_bytes(data[:30] + bytes([data[30] ^ 1]) + data[31:])
    report = fsck(on_disk.directory)
    assert (report.ok, codes(report)) == (True, ["register_stale"])


async def test_fsck_finds_a_segment_that_is_missing_between_others(on_disk):
    await filled(on_disk)
    await on_disk.engine.close()
    middle = sorted((on_disk.directory / "log").glob("*.log"))[1]
    middle.unlink()
    middle.with_suffix(".side").unlink()
    report = fsck(on_disk.directory)
    assert not report.ok
    assert "log_gap" in codes(report)


def segments(world):
    return sorted((world.directory / "log").glob("*.log"))


def found_at(report, code):
    return [(finding.path, finding.offset) for finding in report.findings if finding.code == code]


async def test_a_log_whose_first_segment_is_missing_is_read_only_from_an_offset_that_is_given(on_disk):
    await filled(on_disk)
    await on_disk.engine.close()
    first, second, *_ = segments(on_disk)
    first.unlink()
    shutil.rmtree(on_disk.directory / "index")  # which would have timers that the log has not
    report = fsck(on_disk.directory)
    assert (report.ok, found_at(report, "log_gap")) == (False, [(str(first.parent), 0)])
    with contextlib.closing(open_log(on_disk.directory)) as log:
        with pytest.raises(CorruptionError, match="must begin at 0: a segment is missing"):
            next(read_records(log))
        assert next(read_records(log, int(second.stem))).offset == log.start


async def test_fsck_reads_on_behind_a_damaged_header_of_a_segment(on_disk):
    await filled(on_disk)
    await on_disk.engine.close()
    whole = fsck(on_disk.directory).records
    for path in (segments(on_disk)[1], segments(on_disk)[-1]):
        data = bytearray(path.read_bytes())
        data[20] ^= 1
        path.write_bytes(data)
    report = fsck(on_disk.directory)
    expected = [(str(path), int(path.stem)) for path in (segments(on_disk)[1], segments(on_disk)[-1])]
    assert (report.ok, found_at(report, "log_damaged")) == (False, expected)
    assert report.records == whole


async def test_fsck_names_a_segment_of_another_log_and_does_not_count_its_records(on_disk):
    await filled(on_disk)
    await on_disk.engine.close()
    whole = fsck(on_disk.directory).records
    path = segments(on_disk)[1]
    data = path.read_bytes()
    path.write_bytes(encode_header(int(path.stem), bytes(16), 0) + data[SEGMENT_HEADER_SIZE:])
    report = fsck(on_disk.directory)
    assert (report.ok, found_at(report, "log_damaged")) == (False, [(str(path), int(path.stem))])
    assert report.records < whole
    with pytest.raises(CorruptionError, match="belongs to log 00000000"):
        open_log(on_disk.directory)


async def test_fsck_finds_bytes_behind_the_records_of_a_sealed_segment(on_disk):
    await filled(on_disk)
    await on_disk.engine.close()
    first, second, *_ = segments(on_disk)
    with first.open("ab") as file:
        file.write(b"more")
    report = fsck(on_disk.directory)
    assert (report.ok, found_at(report, "log_damaged")) == (False, [(str(first), int(second.stem))])


async def test_an_index_that_is_ahead_of_its_log_tells_of_the_missing_end(on_disk):
    await filled(on_disk)
    await on_disk.engine.close()
    segments(on_disk)[-1].unlink()
    report = fsck(on_disk.directory)
    [finding] = [finding for finding in report.findings if finding.code == "index_damaged"]
    assert not report.ok
    assert f"the log ends at {report.log_end}: the end of the log is missing" in finding.detail
    with (
        pytest.raises(IndexDamagedError, match="the end of the log is missing; start"),
        open_snapshot(on_disk.directory),
    ):
        pass


async def test_a_directory_that_is_none_of_ours_is_refused(tmp_path):
    with pytest.raises(FormatError, match="not a data directory"), open_snapshot(tmp_path):
        pass
    with pytest.raises(FormatError):
        fsck(tmp_path)


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        (lambda _data: None, "there is no such directory"),
        (lambda data: data.touch(), "it is a file"),
        (lambda data: data.mkdir(), "it has no log/"),
        (lambda data: (data.mkdir(), (data / "log").touch()), "d/log is a file"),
    ],
)
def test_the_error_for_another_directory_says_what_to_give(tmp_path, made, wrong):
    made(tmp_path / "d")
    with pytest.raises(
        FormatError, match=f"d is not a data directory of timerwheel: .*{wrong}; give .* --data"
    ):
        open_log(tmp_path / "d")


# ---------------------------------------------------------------------- groups and settings


async def group_at_work(world):
    """A group with messages in every state, a dead letter, an ordered topic; the index is at a checkpoint."""
    engine = await world.open()
    config = GroupConfig(max_attempts=2, invisible_ms=5_000, backoff=Exponential(initial_ms=1_000))
    await engine.groups.put("orders", "g", config)
    await engine.topics.change("orders", ordered=True)
    for body in ("a1", "a2", "b1", "c1", "d1", "e1"):
        await engine.sender.send([Outgoing("orders", body.encode(), {"__SHARDINGKEY": body[0]})])
    got = await engine.groups.receive("orders", "g", count_max=2, terms=GroupTerms(create=True))
    await engine.groups.nack("orders", "g", [got[0].receipt], delay_ms=500)
    await world.advance(6_000)
    got = await engine.groups.receive("orders", "g", count_max=2, terms=GroupTerms(create=True))
    await world.advance(5_000)
    got = await engine.groups.receive("orders", "g", count_max=3, terms=GroupTerms(create=True))
    await engine.groups.ack("orders", "g", [got[0].receipt])
    await engine.groups.nack("orders", "g", [got[1].receipt], delay_ms=3_600_000)
    await engine.close()
    return engine


async def test_fsck_finds_nothing_wrong_with_a_group_at_work(on_disk):
    engine = await group_at_work(on_disk)
    report = fsck(on_disk.directory)
    assert [(f.code, f.detail) for f in report.findings] == []
    assert engine.groups.info("orders", "g").dead_letters == 2
    engine = await on_disk.open()
    await engine.groups.receive(
        "orders", "g", count_max=1, terms=GroupTerms(create=True)
    )  # behind the checkpoint
    await engine.abandon()
    assert fsck(on_disk.directory).ok


@pytest.mark.parametrize(
    ("table", "code"),
    [("leases", "groups_differ"), ("groups", "groups_differ"), ("control", "settings_differ")],
)
async def test_fsck_tells_of_an_index_that_lost_what_a_group_holds(on_disk, table, code):
    await group_at_work(on_disk)

    def lose_one(txn):
        key, _ = next(iter(txn.items(table)))
        txn.delete(table, key)

    change_index(on_disk, lose_one)
    report = fsck(on_disk.directory)
    assert not report.ok
    assert code in {finding.code for finding in report.findings}


async def test_a_log_whose_beginning_is_gone_still_tells_of_groups_and_settings(on_disk):
    engine = await group_at_work(on_disk)
    before = engine.groups.info("orders", "g")
    await on_disk.open(retention_ms=0)
    await on_disk.roll()
    await on_disk.advance(1_000)
    for _ in range(3):
        await on_disk.engine.indexer.tick()
        await on_disk.retention_turn()
        await on_disk.roll()
        await on_disk.advance(10)
    assert on_disk.engine.core.log.start > 64
    kept = on_disk.engine.core.state.dump_settings()
    await on_disk.engine.close()
    assert fsck(on_disk.directory).findings == []
    await on_disk.lose_index(retention_ms=10**12)
    after = on_disk.engine.core.state.dump_settings()
    assert after.control == kept.control
    assert after.dead == kept.dead
    assert {name: sorted(map(tuple, group[1])) for name, group in after.groups.items()} == {
        name: sorted(map(tuple, group[1])) for name, group in kept.groups.items()
    }
    assert on_disk.engine.groups.info("orders", "g").config == before.config


LOG = """
import sys
from timerwheel.cli.main import app
sys.argv[1:] = ["log", "--json", "--data", sys.argv[1], *sys.argv[4:]]
app()
"""


async def delivered_and_due_to_go(on_disk):
    """A log whose delivered messages retention may drop, all but the last ones; returns its bases."""
    for _ in range(15):
        await on_disk.send(*[0] * 30, body=b"v" * 300)
    await on_disk.engine.indexer.commit()
    for _ in range(10):
        await on_disk.advance(1_000)
    bases = on_disk.engine.core.log.bases
    assert len(bases) > 12
    return bases


async def test_a_log_that_retention_overtakes_is_printed_on_from_where_it_begins(on_disk):
    await on_disk.open(retention_ms=5_000)
    bases = await delivered_and_due_to_go(on_disk)
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4_096)  # the command waits for its reader, with a few records
    command = (sys.executable, "-c", FEW_DESCRIPTORS + LOG, on_disk.directory, "", "")
    with subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE, cwd=ROOT) as other:
        os.close(write)
        with open(read, "rb") as printed:  # noqa: PTH123 - a descriptor
            first = printed.readline()
            assert await on_disk.retention_turn() > 0
            offsets = [json.loads(line)["offset"] for line in (first, *printed)]
        errors = other.stderr.read().decode()
    assert other.returncode == 0, errors
    begin = on_disk.engine.core.log.bases[0]
    assert begin > bases[-10]
    assert offsets == sorted(set(offsets))
    [at] = [at for at, following in itertools.pairwise(offsets) if at < begin <= following]
    assert offsets[offsets.index(at) + 1 :] == [
        record.offset for record in read_past_retention(on_disk.directory, None, print)
    ]
    [line] = errors.splitlines()
    assert f" to {begin} before it was printed" in line


async def test_an_offset_that_retention_has_removed_is_reported_and_not_passed_over(on_disk):
    await on_disk.open(retention_ms=5_000)
    await delivered_and_due_to_go(on_disk)
    first = next(read_past_retention(on_disk.directory, None, print))
    assert await on_disk.retention_turn() > 0
    begin = on_disk.engine.core.log.bases[0]
    printed = timerwheel("log", "--data", on_disk.directory, "--from", first.offset, "--limit", 1, "--json")
    assert printed.lines[0]["offset"] > begin
    assert f"retention removed the log from offset {first.offset} to {begin} before" in printed.err
    end = on_disk.engine.core.log.tail
    assert timerwheel("log", "--data", on_disk.directory, "--from", end) == (0, "", "")


async def test_the_last_records_are_those_that_retention_left(on_disk):
    await on_disk.open(retention_ms=5_000)
    bases = await delivered_and_due_to_go(on_disk)
    program = PAUSED + FEW_DESCRIPTORS + LOG
    command = (sys.executable, "-c", program, str(on_disk.directory), segment_name(bases[-12]), "2")
    other = await asyncio.create_subprocess_exec(
        *command, "--tail", "1000", stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT
    )
    assert await other.stdout.readline() == b"paused\n"
    assert await on_disk.retention_turn() > 0
    out, errors = await other.communicate(b"\n")
    assert (other.returncode, errors) == (0, b"")
    assert json.loads(out.splitlines()[-1])["offset"] >= on_disk.engine.core.log.bases[0]


EXPLAIN = """
import json, sys
from pathlib import Path
from timerwheel.history.directory import offline_history
print(json.dumps(offline_history(Path(sys.argv[1]), sys.argv[4]).state))
"""


SLOT = """
import sys
from timerwheel.cli.main import app
app(["slots", "--data", sys.argv[1], "--at", sys.argv[4], "--json"])
"""


@pytest.mark.parametrize("program", [EXPLAIN, SLOT])
async def test_a_message_that_retention_moves_at_the_same_time_is_found(on_disk, program):
    await on_disk.open(retention_ms=5_000)
    [message_id] = await on_disk.send_ids(10**9)
    due_ms = (await on_disk.engine.messages.get(message_id)).due_ms
    await delivered_and_due_to_go(on_disk)
    name = segment_name(on_disk.engine.core.log.bases[0])
    command = (
        sys.executable,
        "-c",
        PAUSED + FEW_DESCRIPTORS + program,
        str(on_disk.directory),
        name,
        "2",
        message_id if program is EXPLAIN else str(due_ms),
    )
    other = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT)
    assert await other.stdout.readline() == b"paused\n"
    assert await on_disk.retention_turn() > 0
    out, errors = await other.communicate(b"\n")
    assert other.returncode == 0, errors.decode()
    if program is EXPLAIN:
        assert json.loads(out) == "scheduled"
    else:
        [message] = json.loads(out)["messages"]
        assert (message["id"], message.get("problem")) == (message_id, None)
