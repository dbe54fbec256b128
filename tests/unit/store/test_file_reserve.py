"""The log's descriptors are there when everything else has taken the others."""

import contextlib
import errno
import os
import resource
from pathlib import Path

import pytest

from timerwheel.api.connection_limit import FILES_MIN, OWN_FILES, FileLimitError, Shares
from timerwheel.store.file_reserve import FileReserve, ReservedFiles

COUNT = 6


@pytest.fixture
def few_descriptors():
    """A limit that little is left below."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 40, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def all_taken():
    """Every descriptor that can be had is taken."""
    taken = []

    def take_all():
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))

    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        take_all()
    try:
        yield
    finally:
        for fd in taken:
            os.close(fd)


@pytest.mark.usefixtures("few_descriptors")
def test_the_log_opens_files_when_all_other_descriptors_are_taken(tmp_path):
    reserve = FileReserve(COUNT)
    files = ReservedFiles(reserve)
    with all_taken():
        opened = [files.open(tmp_path / str(number), create=True) for number in range(COUNT - 1)]
        files.write_whole(tmp_path / "whole", b"x")
        files.sync_dir(tmp_path)
        assert files.names(tmp_path) == sorted([*map(str, range(COUNT - 1)), "whole"])
        opened.append(files.open(tmp_path / "last", create=True))
        with pytest.raises(OSError, match="Too many open files"):
            files.open_readonly(tmp_path / "whole")
        for _ in range(3):  # what is closed is there for the next
            opened.pop().close()
            opened.append(files.open_readonly(tmp_path / "whole"))
        for file in opened:
            file.close()
            file.close()
    reserve.close()


@pytest.mark.usefixtures("few_descriptors")
def test_a_reserve_that_could_not_be_filled_is_filled_later(tmp_path):
    files_of_its_own = len(list(Path("/proc/self/fd").iterdir()))
    with all_taken():
        reserve = FileReserve(COUNT)
        files = ReservedFiles(reserve)
        with pytest.raises(OSError, match="Too many open files"):
            files.open(tmp_path / "a", create=True)
    files.open(tmp_path / "a", create=True).close()
    assert len(list(Path("/proc/self/fd").iterdir())) == files_of_its_own + COUNT
    reserve.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == files_of_its_own


def test_a_file_that_cannot_be_opened_costs_no_descriptor(tmp_path):
    reserve = FileReserve(COUNT)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2 * COUNT):
        with pytest.raises(FileNotFoundError):
            ReservedFiles(reserve).open_readonly(tmp_path / "nothing")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    reserve.close()


@pytest.mark.parametrize("files", [FILES_MIN, 128, 256, 512, 1024, 4096, 1 << 20])
def test_all_shares_together_are_no_more_than_there_are(files):
    shares = Shares.of(files)
    assert min(shares) >= 1
    assert OWN_FILES + shares.log_files + 2 * shares.push_calls + shares.connections <= files
    assert shares.connections >= files // 2 or files < 512


def test_fewer_descriptors_than_it_needs_are_refused_with_what_to_do():
    with pytest.raises(FileLimitError, match=f"at least {FILES_MIN}.*LimitNOFILE"):
        Shares.of(FILES_MIN - 1)
