"""A new index in the place of an old one, and what a start makes of what a crash left in between."""

import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from timerwheel.index import swap
from timerwheel.index.swap import aside_path, new_path, swap_in
from timerwheel.index.writer import read_state
from timerwheel.runtime.recovery import INDEX_DIRECTORY, REBUILD_MARK, recover
from timerwheel.settings import Settings
from timerwheel.state.log_manifest import LOG_DIRECTORY
from timerwheel.store.files import DiskFiles
from timerwheel.store.index import Index
from timerwheel.store.log import CommitLog
from timerwheel.store.record import Kind, encode
from timerwheel.wheel.slot_table import ENTRY_DTYPE, TABLE, net

NOW_MS = 1_750_000_000_000
SEGMENT_BYTES = 4096
MAP_SIZE_BYTES = 1 << 24
OLD_TIMERS, NEW_TIMERS = 30, 20
TIMERS = OLD_TIMERS + NEW_TIMERS


class CrashError(Exception):
    """Ends a swap as a killed process would."""


def store(data, count):
    """Append timers to the log, which is made if it is not there."""
    log = CommitLog(data / LOG_DIRECTORY, DiskFiles(), SEGMENT_BYTES)
    log.open(new_log_id=bytes(16), now_ms=NOW_MS)
    timers = [
        encode(
            *(Kind.TIMER, b"orders", b"", b"body"),
            store_ms=NOW_MS,
            due_ms=NOW_MS + number * 977_000,
            enqueue_ms=NOW_MS,
        )
        for number in range(count)
    ]
    log.append([[timer] for timer in timers], sync=True, now_ms=NOW_MS)
    log.close()


def start(data):
    """What a start makes of a data directory: why the index was made anew, replayed records, timers left."""
    settings = Settings(data=data, segment_size_bytes=SEGMENT_BYTES, index_map_size_bytes=MAP_SIZE_BYTES)
    found = recover(settings, DiskFiles(), NOW_MS)
    with found.writer.index.read() as txn:
        parts = [value.rows(ENTRY_DTYPE) for _, value in txn.pages(TABLE, b"")]
    left = len(net(np.concatenate(parts)))
    assert found.state.pending == left
    found.writer.index.close()
    found.log.close()
    return found.rebuilt, found.replayed_records, left


def checkpoint(index):
    """Up to where an index goes; None if there is none."""
    if not index.exists():
        return None
    found = Index(index, MAP_SIZE_BYTES, readonly=True)
    with found.read() as txn:
        until = read_state(txn).until
    found.close()
    return until


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A log with its index of an earlier time, and in `index.new` the one of now."""
    directory = tmp_path_factory.mktemp("swap")
    data = directory / "data"
    store(data, OLD_TIMERS)
    start(data)
    store(data, NEW_TIMERS)
    shutil.copytree(data / LOG_DIRECTORY, directory / "other" / LOG_DIRECTORY)
    start(directory / "other")
    shutil.copytree(directory / "other" / INDEX_DIRECTORY, new_path(data / INDEX_DIRECTORY))
    return data


@pytest.fixture
def index(pristine, tmp_path):
    """The path of the index in a copy of that directory."""
    return shutil.copytree(pristine, tmp_path / "data") / INDEX_DIRECTORY


@pytest.fixture
def old(pristine):
    return checkpoint(pristine / INDEX_DIRECTORY)


@pytest.fixture
def new(pristine):
    return checkpoint(new_path(pristine / INDEX_DIRECTORY))


def put_older_aside(index):
    aside_path(index).mkdir()
    for name in ("data.mdb", "older"):
        (aside_path(index) / name).write_bytes(b"of last year")


def no_exchange(*_):
    return False


@pytest.fixture(params=["one exchange", "two renames"])
def exchange(request, tmp_path):
    """The way in which directories change places: the real one, or that of a file system that cannot."""
    if request.param == "two renames":
        return no_exchange
    require_exchange(tmp_path)
    return swap.exchange


def require_exchange(directory):
    one, other = directory / "probe-one", directory / "probe-other"
    one.mkdir()
    other.mkdir()
    if not swap.exchange(one, other):
        pytest.skip("the file system of the tests cannot exchange names")


def test_without_an_index_the_new_one_takes_its_name_and_nothing_is_kept_aside(index, new):
    shutil.rmtree(index)
    assert swap_in(index) is None
    assert checkpoint(index) == new
    assert not new_path(index).exists()
    assert not aside_path(index).exists()


@pytest.mark.parametrize("older", [False, True])
def test_the_old_index_is_kept_aside_in_the_place_of_an_older_one(
    index, old, new, exchange, monkeypatch, older
):
    monkeypatch.setattr(swap, "exchange", exchange)
    if older:
        put_older_aside(index)
    assert swap_in(index) == aside_path(index)
    assert checkpoint(index) == new
    assert checkpoint(aside_path(index)) == old
    assert not (aside_path(index) / "older").exists()
    assert not new_path(index).exists()
    assert start(index.parent) == (None, 0, TIMERS)


def test_an_exchange_moves_both_whole_and_copies_nothing(index, old, new, tmp_path):
    require_exchange(tmp_path)
    numbers = [path.stat().st_ino for path in (index, new_path(index))]
    assert swap.exchange(new_path(index), index)
    assert [path.stat().st_ino for path in (new_path(index), index)] == numbers
    assert (checkpoint(index), checkpoint(new_path(index))) == (new, old)


def test_an_exchange_that_the_system_refuses_is_reported_and_changes_nothing(tmp_path):
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_bytes(b"there")
    # A directory cannot trade places with one inside it: the same errno as where exchanging is unknown.
    assert not swap.exchange(inner.parent, inner)
    assert (inner / "file").read_bytes() == b"there"


def test_an_exchange_with_nothing_is_an_error_that_names_both(index, tmp_path):
    require_exchange(tmp_path)
    shutil.rmtree(new_path(index))
    with pytest.raises(FileNotFoundError) as caught:
        swap.exchange(new_path(index), index)
    assert (caught.value.filename, caught.value.filename2) == (str(new_path(index)), str(index))
    assert index.exists()


def test_the_new_index_is_durable_before_it_takes_the_name(index, exchange, monkeypatch):
    done = []

    def recorded(act, name_of):
        def acting(*arguments):
            done.append(name_of(*arguments))
            return act(*arguments)

        return acting

    monkeypatch.setattr(os, "fsync", recorded(os.fsync, lambda fd: Path(f"/proc/self/fd/{fd}").readlink()))
    monkeypatch.setattr(swap, "exchange", recorded(exchange, lambda *_: "exchange"))
    new = new_path(index)
    swap_in(index)
    assert set(done[: done.index("exchange")]) >= {new / "data.mdb", new}
    assert done[-1] == index.parent


def crash_before(patched, step, exchange):
    """Let the swap end before its step of this number, counted from 0."""
    steps = itertools.count()

    def crashing(act):
        def acting(*arguments):
            if next(steps) == step:
                raise CrashError
            return act(*arguments)

        return acting

    patched.setattr(swap, "exchange", crashing(exchange))
    patched.setattr(shutil, "rmtree", crashing(shutil.rmtree))
    patched.setattr(Path, "rename", crashing(Path.rename))
    patched.setattr(DiskFiles, "sync_dir", crashing(DiskFiles.sync_dir))


OLD, NEW, NONE = "old", "new", "none"
# Which index has its name when the swap ends before: syncing the new one, the exchange, removing the older
# one, the renames, the last sync.
EXCHANGED = [OLD, OLD, NEW, NEW, NEW]
RENAMED = [OLD, OLD, OLD, OLD, NONE, NEW]


STEPS = [("one exchange", *step) for step in enumerate(EXCHANGED)]
STEPS += [("two renames", *step) for step in enumerate(RENAMED)]


def checkpoint_of(pristine, which):
    """The checkpoint by which an index is known as the old or the new one."""
    index = pristine / INDEX_DIRECTORY
    return None if which == NONE else checkpoint(index if which == OLD else new_path(index))


def next_rebuild(index, made):
    """Build and swap in once more, as a rebuild does: what is left of the one before is removed first."""
    shutil.rmtree(new_path(index), ignore_errors=True)
    shutil.copytree(made, new_path(index))
    assert swap_in(index) == aside_path(index)
    assert start(index.parent) == (None, 0, TIMERS)
    assert sorted(path.name for path in index.parent.glob("index*")) == ["index", "index.aside"]
    assert sorted(path.name for path in aside_path(index).iterdir()) == ["data.mdb", "lock.mdb"]


@pytest.mark.parametrize(("exchange", "step", "left"), STEPS, indirect=["exchange"])
def test_after_a_crash_at_any_step_a_start_has_every_timer_and_the_next_swap_succeeds(
    index, pristine, exchange, monkeypatch, step, left
):
    put_older_aside(index)
    with monkeypatch.context() as patched:
        crash_before(patched, step, exchange)
        with pytest.raises(CrashError):
            swap_in(index)
    assert checkpoint(index) == checkpoint_of(pristine, left)
    expected = {OLD: (None, NEW_TIMERS), NEW: (None, 0), NONE: ("the index was missing", TIMERS)}[left]
    assert start(index.parent) == (*expected, TIMERS)
    next_rebuild(index, new_path(pristine / INDEX_DIRECTORY))


def test_the_steps_of_a_swap_are_those_at_which_it_is_crashed(index, exchange, monkeypatch):
    put_older_aside(index)
    steps = RENAMED if exchange is no_exchange else EXCHANGED
    with monkeypatch.context() as patched:
        crash_before(patched, len(steps), exchange)
        assert swap_in(index) == aside_path(index)


def test_an_older_index_that_was_half_removed_harms_neither_a_start_nor_the_next_swap(
    index, new, pristine, exchange, monkeypatch
):
    put_older_aside(index)

    def remove_some(directory):
        (directory / "data.mdb").unlink()
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(swap, "exchange", exchange)
        patched.setattr(shutil, "rmtree", remove_some)
        with pytest.raises(CrashError):
            swap_in(index)
    was_new = checkpoint(index) == new
    assert was_new == (exchange is not no_exchange)
    assert start(index.parent) == (None, 0 if was_new else NEW_TIMERS, TIMERS)
    next_rebuild(index, new_path(pristine / INDEX_DIRECTORY))


@pytest.mark.parametrize(("step", "left"), list(enumerate([NONE, NONE, NEW])))
def test_a_crash_of_a_swap_where_no_index_was_leaves_none_or_the_new_one(
    index, pristine, monkeypatch, step, left
):
    shutil.rmtree(index)
    with monkeypatch.context() as patched:
        crash_before(patched, step, no_exchange)
        with pytest.raises(CrashError):
            swap_in(index)
    assert checkpoint(index) == checkpoint_of(pristine, left)
    expected = ("the index was missing", TIMERS) if left == NONE else (None, 0)
    assert start(index.parent) == (*expected, TIMERS)


def test_what_a_killed_rebuild_leaves_harms_no_start_and_is_removed_by_it(index):
    (new_path(index) / "data.mdb").write_bytes(b"half an index")
    staged = index.parent / "rebuild.tmp" / "rows" / "00000000.arrow"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"half a file")
    assert start(index.parent) == (None, NEW_TIMERS, TIMERS)
    assert not new_path(index).exists()
    assert not (index.parent / "rebuild.tmp").exists()


def test_a_new_index_that_is_still_marked_as_damaged_is_made_once_more(index, new):
    swap_in(index)
    # A rebuild that was killed before it took the mark away, which was meant for the index before.
    mark = index.parent / REBUILD_MARK
    mark.touch()
    rebuilt, replayed, left = start(index.parent)
    assert rebuilt == "damage was found while it was in use"
    assert replayed == left == TIMERS
    assert checkpoint(aside_path(index)) == new
    assert not mark.exists()
    assert start(index.parent) == (None, 0, TIMERS)
