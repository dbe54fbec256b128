"""Writes that the kernel carries out while the caller goes on; skipped where it gives no ring."""

import errno
import multiprocessing
import os
import select
from pathlib import Path

import pytest

from timerwheel.store.files import SECTOR_BYTES, DiskFiles
from timerwheel.store.write_ring import BUFFER_BYTES, WriteRing

SECTORS = 200


@pytest.fixture
def files(tmp_path):
    try:
        DiskFiles().open_ring(tmp_path).close()
    except OSError as error:
        pytest.skip(str(error))
    return DiskFiles()


@pytest.fixture
def ring(files, tmp_path):
    ring = files.open_ring(tmp_path)
    yield ring
    ring.close()


@pytest.fixture
def file(files, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(SECTORS * SECTOR_BYTES))
    file = files.open(path, direct=True)
    yield file
    file.close()


def sector(number: int) -> bytes:
    return bytes([number % 250 + 1]) * SECTOR_BYTES


def test_writes_one_after_the_other_are_read_back_in_their_places(ring, file):
    for number in range(SECTORS):  # more than either queue of the ring holds
        assert file.begin(ring, number * SECTOR_BYTES, sector(number))
        assert ring.in_flight
        assert ring.wait() == SECTOR_BYTES
        assert not ring.in_flight
    assert file.read(0, file.size()) == b"".join(map(sector, range(SECTORS)))


def test_the_descriptor_is_readable_from_the_end_of_a_write_until_it_is_taken(ring, file):
    watched = select.poll()
    watched.register(ring.fd, select.POLLIN)
    assert ring.ended() is None
    assert watched.poll(0) == []
    for number in range(3):
        file.begin(ring, 0, sector(number))
        assert watched.poll() == [(ring.fd, select.POLLIN)]
        assert ring.ended() == SECTOR_BYTES
        assert watched.poll(0) == []


def test_a_write_may_fill_the_buffer(ring, file):
    data = bytes(range(256)) * (BUFFER_BYTES // 256)
    assert file.begin(ring, SECTOR_BYTES, data)
    assert ring.wait() == BUFFER_BYTES
    assert file.read(SECTOR_BYTES, BUFFER_BYTES) == data


def test_an_error_is_the_end_of_its_write_and_the_next_one_works(ring, file):
    with Path(os.devnull).open("rb") as read_only:
        assert ring.begin(read_only.fileno(), 0, sector(1))
        assert ring.wait() == -errno.EBADF
    assert file.begin(ring, 0, sector(1))
    assert ring.wait() == SECTOR_BYTES


def test_a_file_without_direct_writes_takes_none(ring, files, tmp_path):
    (tmp_path / "other").write_bytes(bytes(SECTOR_BYTES))
    other = files.open(tmp_path / "other")
    assert not other.begin(ring, 0, sector(1))
    other.close()


def test_closing_waits_for_the_write_in_flight_and_gives_back_all_descriptors(files, file, tmp_path):
    before = sorted(Path("/proc/self/fd").iterdir())
    ring = files.open_ring(tmp_path)
    file.begin(ring, 0, sector(7))
    ring.close()
    assert file.read(0, SECTOR_BYTES) == sector(7)
    ring.close()
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_trying_out_leaves_no_file_behind(files, tmp_path):
    (tmp_path / "direct.probe").write_bytes(b"left over")
    files.open_ring(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_that_drops_a_ring_does_not_wait_for_the_write_of_its_parent(ring, file):
    file.begin(ring, 0, sector(1))
    child = multiprocessing.get_context("fork").Process(target=ring.close)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert ring.wait() == SECTOR_BYTES


@pytest.mark.parametrize(("field", "value"), [("platform", "darwin"), ("byteorder", "big")])
def test_other_systems_have_no_ring(monkeypatch, field, value):
    monkeypatch.setattr(f"timerwheel.store.write_ring.sys.{field}", value)
    with pytest.raises(OSError, match="no io_uring"):
        WriteRing()
