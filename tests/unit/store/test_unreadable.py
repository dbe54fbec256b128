"""Sectors that a disk cannot read: the records on them are damaged, and no others."""

import random
from pathlib import Path

import numpy as np
import pytest

from tests.harness.faulty import PAGE, FaultyFiles
from timerwheel.store import register
from timerwheel.store.errors import CorruptionError, LogDamagedError
from timerwheel.store.log import CommitLog, OnDamage
from timerwheel.store.record import Kind, encode
from timerwheel.store.register import Draft, Register

LOG_ID = bytes(range(16))
DIRECTORY = Path("/data/log")


def record(number: int, body_bytes: int) -> bytes:
    body = bytes((number + i) % 250 + 1 for i in range(body_bytes))
    return encode(Kind.TIMER, b"orders", b"", body, 1_000 + number, 5_000, 1_000 + number)


def opened(files: FaultyFiles, size: int = 8 << 20) -> CommitLog:
    log = CommitLog(DIRECTORY, files, size)
    log.open(new_log_id=LOG_ID, now_ms=7)
    return log


def filled(
    files: FaultyFiles, sizes: list[int], segment_bytes: int = 8 << 20
) -> tuple[CommitLog, np.ndarray]:
    """A log of records with these body sizes, and their offsets and sizes."""
    log = opened(files, segment_bytes)
    records = [record(number, size) for number, size in enumerate(sizes)]
    done = log.append([[one] for one in records], sync=True, now_ms=9)
    places = np.zeros(len(records), [("offset", np.uint64), ("size", np.uint32)])
    places["offset"], places["size"] = done.offsets, [len(one) for one in records]
    return log, places


def are_lost(places: np.ndarray, positions: list[int]) -> np.ndarray:
    """Which records of the first segment lie on a page that has one of these positions."""
    first, last = places["offset"] // PAGE, (places["offset"] + places["size"] - 1) // PAGE
    return np.any([(first <= at // PAGE) & (at // PAGE <= last) for at in positions], axis=0)


@pytest.mark.parametrize("seed", range(8))
def test_a_record_is_damaged_exactly_if_a_page_of_it_cannot_be_read(seed):
    dice = random.Random(seed)
    files = FaultyFiles()
    log, places = filled(files, [dice.choice((10, 300, 2_000, 9_000)) for _ in range(120)])
    bad = [dice.randrange(PAGE, int(places["offset"][-1])) for _ in range(3)]
    files.unreadable = [(log.path(0).name, at) for at in bad]
    lost = are_lost(places, bad)
    found = log.read_many(places["offset"], places["size"])
    assert [isinstance(one, CorruptionError) for one in found] == lost.tolist()
    for one, offset, is_lost in zip(found, places["offset"].tolist(), lost.tolist(), strict=True):
        if is_lost:
            assert "the disk cannot read it" in str(one)
            with pytest.raises(CorruptionError, match="the disk cannot read it"):
                log.read(offset)
        else:
            assert log.read(offset) == one
    files.unreadable = []
    assert all(isinstance(one, bytes) for one in log.read_many(places["offset"], places["size"]))


def test_a_scan_passes_over_what_cannot_be_read():
    files = FaultyFiles()
    log, places = filled(files, [3_000] * 40)
    bad = [int(places["offset"][10]) + 1_000, int(places["offset"][30])]
    files.unreadable = [(log.path(0).name, at) for at in bad]
    gaps: list[tuple[int, int]] = []
    scanned = [offset for block in log.blocks(0, lost=gaps) for offset, _ in block.records()]
    assert scanned == places["offset"][~are_lost(places, bad)].tolist()
    assert len(gaps) == 2
    with pytest.raises(CorruptionError, match="the disk cannot read it"):
        list(log.scan(0))


class Passing(list[tuple[str, int]]):
    """Pages that cannot be read for so many times, and then can."""

    def __init__(self, pages: list[tuple[str, int]], times: int) -> None:
        super().__init__(pages)
        self.times = times

    def __iter__(self):
        self.times -= 1
        return super().__iter__() if self.times >= 0 else iter(())


@pytest.mark.parametrize("times", range(1, 8))
def test_what_remains_of_a_record_is_what_the_disk_has_and_nothing_made_up(times):
    files = FaultyFiles()
    log, places = filled(files, [100] * 60)
    offset, size = int(places["offset"][0]), int(places["size"][0])
    stored = log.read_exact(offset, size)
    files.unreadable = Passing([(log.path(0).name, offset)], times)
    places["offset"], places["size"] = offset, size
    [found] = log.read_many(places["offset"][:1], places["size"][:1])
    remains = found.remains if isinstance(found, CorruptionError) else found
    assert remains in (b"", stored[: len(remains)])


@pytest.mark.parametrize("where", ["at the end", "before others"])
def test_what_cannot_be_read_is_never_cut(where):
    """It may be readable again: the start is refused, and nothing changes."""
    files = FaultyFiles()
    log, places = filled(files, [100, *[6_000] * 6])
    place = -1 if where == "at the end" else 3
    files.unreadable = [(log.path(0).name, int(places["offset"][place]) + 3_000)]
    before = files.contents()
    again = opened(files)
    with pytest.raises(CorruptionError, match="the disk cannot read it"):
        again.recover_tail(0, now_ms=9)
    assert files.contents() == before
    if where == "before others":
        with pytest.raises(LogDamagedError, match="--salvage"):
            opened(files).recover_tail(0, now_ms=9)
        assert opened(files).recover_tail(0, now_ms=9, on_damage=OnDamage.SALVAGE) is None
    files.unreadable = []
    log = opened(files)
    assert log.recover_tail(0, now_ms=9) is None
    assert [offset for offset, _ in log.scan(0)] == places["offset"].tolist()


def test_a_header_that_cannot_be_read_is_damage_that_a_start_names():
    files = FaultyFiles()
    log, _ = filled(files, [6_000] * 10, segment_bytes=20_000)
    files.unreadable = [(log.path(log.bases[1]).name, 8)]
    with pytest.raises(CorruptionError, match="the segment header is damaged"):
        opened(files)


def test_a_sidecar_that_cannot_be_read_is_done_without():
    files = FaultyFiles()
    log, places = filled(files, [500] * 100, segment_bytes=20_000)
    base = log.bases[1]
    log.write_sidecar(base, None)
    files.unreadable = [(log.sidecar_path(base).name, 100)]
    offsets = np.concatenate([table.rows["offset"] for table in log.tables(0)])
    assert offsets.tolist() == places["offset"].tolist()


def test_a_register_that_cannot_be_read_is_missing():
    files = FaultyFiles()
    path = DIRECTORY / "0.keys"
    register.write(files, path, Draft(0, 100))
    assert Register.open(files, path, 0, 100) is not None
    files.unreadable = [(path.name, 0)]
    assert Register.open(files, path, 0, 100) is None
