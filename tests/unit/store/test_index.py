import contextlib
import gc
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.undone import UndoError, undone
from timerwheel.store import pages
from timerwheel.store.errors import IndexBusyError, IndexDamagedError
from timerwheel.store.index import LOCK_BYTES, LOCK_FILE, READERS_KEPT, READERS_MAX, SUMS_KEY, TABLES, Index
from timerwheel.store.keys import queue_prefix, sequence_key, slot_prefix

ROOT = Path(__file__).parents[3]
MAP_BYTES = 1 << 26
ROW = np.dtype([("a", "<u8")])


def rows(*values: int) -> np.ndarray:
    return np.array(values, np.uint64).view(ROW)


def filled(path: Path, count: int = 2000) -> Path:
    """An index of several hundred pages, closed; returns its data file."""
    index = Index(path, MAP_BYTES)
    with index.write() as txn:
        for number in range(count):
            txn.put_page("wheel", slot_prefix(0, number), number, rows(*range(400)))
        txn.put("meta", b"state", b"x")
    index.close()
    return path / "data.mdb"


def test_what_was_written_is_there_after_reopening(tmp_path):
    index = Index(tmp_path / "index", MAP_BYTES)
    with index.write() as txn:
        for table in TABLES:
            txn.put(table, b"key", table.encode())
    index.close()
    for readonly in (False, True):
        index = Index(tmp_path / "index", MAP_BYTES, readonly=readonly)
        with index.read() as txn:
            assert {t: txn.get(t, b"key") for t in TABLES} == {t: t.encode() for t in TABLES}
            assert txn.get("meta", b"other") is None
            assert [key for key, _ in txn.items("meta")] == [b"key", SUMS_KEY]
        index.close()


def test_transaction_that_fails_leaves_nothing(index):
    with undone(index) as txn:
        txn.put("meta", b"undone", b"x")
    with index.read() as txn:
        assert txn.get("meta", b"undone") is None


def test_reader_keeps_its_snapshot_while_a_writer_commits(tmp_path):
    index = Index(tmp_path / "index", MAP_BYTES)
    with index.read() as txn:
        assert txn.get("meta", b"k") is None
        command = (
            "import sys; from pathlib import Path; from timerwheel.store.index import Index\n"
            f"index = Index(Path(sys.argv[1]), {MAP_BYTES})\n"
            "with index.write() as txn: txn.put('meta', b'k', b'v')\n"
        )
        subprocess.run([sys.executable, "-c", command, index.path], check=True, cwd=ROOT)
        assert txn.get("meta", b"k") is None
    with index.read() as txn:
        assert txn.get("meta", b"k") == b"v"
    index.close()


def test_values_are_removed_and_missing_ones_are_no_error(index):
    with undone(index) as txn:
        for key in (b"a", b"b", b"c"):
            txn.put("meta", key, key)
        txn.delete("meta", b"a")
        txn.delete("meta", b"nothing")
        txn.remove("meta", [b"c", b"nothing"])
        assert list(txn.items("meta")) == [(b"b", b"b")]


KEYS = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 40))


@given(st.sets(KEYS, max_size=25), KEYS, KEYS)
def test_pages_are_found_as_in_a_sorted_list(index, keys, wanted, other):
    def key_of(key):
        return queue_prefix(key[0], key[1]) + sequence_key(key[2])

    ordered = sorted(keys)
    with undone(index) as txn:
        for number, key in enumerate(keys):
            txn.put_page(
                "queues", queue_prefix(key[0], key[1]), key[2], rows(*key), weight=-number, mask=number
            )
        found = {bytes(key): value.rows(ROW)["a"].tolist() for key, value in txn.pages("queues", b"")}
        assert found == {key_of(key): list(key) for key in ordered}
        assert list(found) == [key_of(key) for key in ordered]
        low, high = sorted((wanted, other))
        between = [key for key, _ in txn.pages("queues", key_of(low), key_of(high))]
        assert between == [key_of(key) for key in ordered if low <= key < high]
        under = [key for key, _ in txn.prefix("queues", queue_prefix(*wanted[:2]))]
        assert under == [key_of(key) for key in ordered if key[:2] == wanted[:2]]
        following = [key_of(key) for key in ordered if key >= wanted]
        assert txn.first_key("queues", key_of(wanted)) == (following[0] if following else None)
        before = [key for key in ordered if key[:2] == wanted[:2] and key[2] <= wanted[2]]
        page = txn.page_before("queues", queue_prefix(*wanted[:2]), wanted[2])
        if before:
            assert page[0] == before[-1][2]
            assert page[1].rows(ROW)["a"].tolist() == list(before[-1])
        else:
            assert page is None


# ---------------------------------------------------------------------- damage

OPENER = """
import sys
from pathlib import Path
import numpy as np
from timerwheel.store.errors import IndexBusyError, IndexDamagedError
from timerwheel.store.index import LOCK_BYTES, LOCK_FILE, READERS_KEPT, READERS_MAX, TABLES, Index
ROW = np.dtype([("a", "<u8")])
try:
    index = Index(Path(sys.argv[1]), 1 << 26, readonly=sys.argv[2] == "readonly")
    with index.read() as txn:
        txn.prove()
        for _, page in txn.pages("wheel", b""):
            page.rows(ROW)
except IndexDamagedError as error:
    print("damaged:", error)
    sys.exit(3)
"""


def reading(path: Path, how: str = "writable") -> subprocess.CompletedProcess:
    """Read all of an index in another process, which damage may kill."""
    return subprocess.run(
        [sys.executable, "-c", OPENER, str(path), how], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("how", ["writable", "readonly"])
@pytest.mark.parametrize("size", [1, 100, 4096, 5000, 8192, 40_960, 0.3, 0.5, 0.99, -4096, -1])
def test_index_cut_short_is_damaged(tmp_path, size, how):
    data = filled(tmp_path / "index")
    whole = data.stat().st_size
    os.truncate(data, int(whole * size) if isinstance(size, float) else size if size > 0 else whole + size)
    done = reading(data.parent, how)
    assert done.returncode != -signal.SIGBUS, "the process was killed by SIGBUS"
    assert done.returncode == 3, done.stderr
    assert str(data.parent) in done.stdout


def test_whole_index_is_never_taken_for_a_short_one(tmp_path):
    """LMDB need not write the last pages that it counts: a size below its page count may be sound."""
    chance = random.Random(1)
    index = Index(tmp_path / "index", MAP_BYTES)
    keys: list[bytes] = []
    for number in range(250):
        with index.write() as txn:
            for _ in range(chance.randrange(200)):
                if keys and chance.random() < 0.7:
                    txn.delete("wheel", keys.pop(chance.randrange(len(keys))))
                else:
                    keys.append(chance.randbytes(8))
                    txn.put("wheel", keys[-1], bytes(chance.choice([10, 500, 3000, 20_000])))
        copy = tmp_path / f"copy{number}"
        copy.mkdir()
        shutil.copy(tmp_path / "index" / "data.mdb", copy)
        other = Index(copy, MAP_BYTES)
        with other.read() as txn:
            assert {key for key, _ in txn.items("wheel")} == set(keys)
        other.close()
        shutil.rmtree(copy)
    index.close()


@pytest.mark.parametrize("content", [b"\0" * 100_000, b"\xa5" * 100_000, b"no lmdb file" * 1000, b"x"])
@pytest.mark.parametrize("readonly", [False, True])
def test_file_that_is_no_index_is_damaged(tmp_path, content, readonly):
    data = filled(tmp_path / "index", 1)
    data.write_bytes(content)
    with pytest.raises(IndexDamagedError) as caught:
        Index(data.parent, MAP_BYTES, readonly=readonly)
    assert str(data.parent) in str(caught.value)


def test_damaged_index_can_be_moved_aside_and_a_new_one_made_in_the_same_process(tmp_path):
    path = tmp_path / "index"
    filled(path, 1).write_bytes(b"garbage" * 1000)
    for number in range(3):
        with pytest.raises(IndexDamagedError):
            Index(path, MAP_BYTES)
        path.rename(tmp_path / f"aside{number}")
        index = Index(path, MAP_BYTES)
        with index.write() as txn:
            txn.put("meta", b"k", b"v")
        index.close()
        (path / "data.mdb").write_bytes(b"garbage" * 1000)


def test_readonly_index_without_its_tables_is_damaged(tmp_path):
    env = lmdb.open(str(tmp_path / "index"), max_dbs=2)
    env.close()
    with pytest.raises(IndexDamagedError, match="a table is missing"):
        Index(tmp_path / "index", MAP_BYTES, readonly=True)


def test_flipped_byte_of_a_stored_page_is_damage_when_it_is_read(tmp_path):
    path = tmp_path / "index"
    marked = rows(*([0x1122334455667788] * 20))
    index = Index(path, MAP_BYTES)
    with index.write() as txn:
        txn.put_page("wheel", slot_prefix(1, 60_000), 1, rows(1, 2, 3))
        txn.put_page("wheel", slot_prefix(2, 60_000), 1, marked)
    index.close()
    data = path / "data.mdb"
    raw = data.read_bytes()
    needle = marked.tobytes()
    assert needle in raw
    data.write_bytes(raw.replace(needle, needle[:77] + b"\0" + needle[78:]))
    index = Index(path, MAP_BYTES)
    with index.read() as txn:
        found = [value for _, value in itertools.islice(txn.pages("wheel", b""), 2)]
        assert found[0].rows(ROW)["a"].tolist() == [1, 2, 3]
        with pytest.raises(IndexDamagedError):
            found[1].rows(ROW)
    index.close()


def raw(path: Path, table: str, change) -> None:
    """Change a table behind the back of `Index`, as LMDB allows it."""
    env = lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=len(TABLES))
    db = env.open_db(table.encode())
    with env.begin(write=True, db=db) as txn:
        change(txn, sorted(key for key in txn.cursor().iternext(values=False)))
    env.close()


def lose_an_entry(txn, keys) -> None:
    txn.delete(keys[1])


def add_an_entry(txn, keys) -> None:
    txn.put(keys[1] + b"\0", txn.get(keys[1]))


def give_an_entry_another_key(txn, keys) -> None:
    txn.put(keys[1][:-1] + b"\xfe", txn.pop(keys[1]))


def exchange_two_values(txn, keys) -> None:
    one, other = txn.get(keys[0]), txn.get(keys[1])
    txn.put(keys[0], other)
    txn.put(keys[1], one)


def go_back_to_an_older_value(txn, keys) -> None:
    txn.put(keys[0], txn.get(keys[0])[:4] + b"older")


@pytest.mark.parametrize("table", [name for name in TABLES if name != "meta"])
@pytest.mark.parametrize(
    "change",
    [
        lose_an_entry,
        add_an_entry,
        give_an_entry_another_key,
        exchange_two_values,
        go_back_to_an_older_value,
    ],
)
def test_a_table_that_does_not_hold_what_was_put_is_not_proved(tmp_path, table, change):
    path = tmp_path / "index"
    index = Index(path, MAP_BYTES)
    with index.write() as txn:
        for name in TABLES:
            for number in range(3):
                if name in pages.PAGED_TABLES:
                    txn.put_page(name, b"a prefix", number, rows(number, number))
                else:
                    txn.put(name, b"key %d" % number, b"value %d" % number)
    with index.read() as txn:
        txn.prove()
    index.close()
    raw(path, table, change)
    index = Index(path, MAP_BYTES)
    with pytest.raises(IndexDamagedError, match=table), index.read() as txn:
        txn.prove()
    index.close()


def test_a_stale_value_that_was_once_true_is_not_proved(tmp_path):
    """As a disk leaves it that lost a write: the value is whole, and under its own key."""
    path = tmp_path / "index"
    index = Index(path, MAP_BYTES)
    for value in (b"first", b"second"):
        with index.write() as txn:
            txn.put("topics", b"key", value)
    index.close()
    first = pages.seal("topics", b"key", b"first")
    raw(path, "topics", lambda txn, keys: txn.put(keys[0], first))
    index = Index(path, MAP_BYTES)
    with index.read() as txn:
        assert txn.get("topics", b"key") == b"first"
    with pytest.raises(IndexDamagedError, match="does not have the entries"), index.read() as txn:
        txn.prove()
    index.close()


def test_a_table_of_another_name_is_damage_and_not_an_empty_table(tmp_path):
    data = filled(tmp_path / "index")
    content = data.read_bytes()
    assert content.count(b"wheel") >= 1
    data.write_bytes(content.replace(b"wheel", b"wheem"))
    for readonly in (False, True):
        with pytest.raises(IndexDamagedError, match="wheem"):
            Index(data.parent, MAP_BYTES, readonly=readonly)


def test_the_sums_of_tables_are_those_of_their_entries_whatever_was_put_and_removed(tmp_path):
    chance = random.Random(5)
    index = Index(tmp_path / "index", MAP_BYTES)
    for _ in range(60):
        with index.write() as txn:
            for _ in range(20):
                table, key = chance.choice(TABLES[1:]), chance.randbytes(1)
                if chance.random() < 0.4:
                    txn.delete(table, key)
                else:
                    txn.put(table, key, pages.pack(rows(chance.randrange(9)), weight=chance.randrange(9)))
        with index.read() as txn:
            weights = txn.prove()
            found = sum(page.head().weight for _, page in txn.pages("wheel", b""))
        assert weights["wheel"] == found
    index.close()


def test_the_file_of_the_lock_has_no_hole_that_a_full_disk_could_not_fill(tmp_path):
    """It is mapped: to write into a hole without room is a SIGBUS."""
    Index(tmp_path / "index", 1 << 28).close()
    found = (tmp_path / "index" / LOCK_FILE).stat()
    assert found.st_blocks * 512 >= found.st_size == LOCK_BYTES


OPENING = """
import resource, sys
from pathlib import Path
from timerwheel.store.errors import NoSpaceError
from timerwheel.store.index import Index
path, size = Path(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
try:
    Index(path, 1 << 28)
except NoSpaceError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
Index(path, 1 << 28).close()
"""


@pytest.mark.parametrize(("size", "named"), [(0, "lock.mdb"), (LOCK_BYTES, "index")])
def test_an_index_that_finds_no_room_to_be_made_says_so_and_can_be_made_later(tmp_path, size, named):
    done = subprocess.run(
        [sys.executable, "-c", OPENING, str(tmp_path / "index"), str(size)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert named in done.stdout
    assert "File too large" in done.stdout


def fail(number: int) -> None:
    raise UndoError(number)


@pytest.fixture
def no_collection():
    """Nothing is freed but what nobody holds."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_an_exception_that_is_kept_holds_no_reader_slot(index):
    kept = []
    for number in range(2 * READERS_MAX):
        try:
            with index.read() as txn:
                txn.get("meta", b"state")
                fail(number)
        except UndoError as error:
            kept.append(error)
    assert kept[0].__traceback__ is not None
    assert index.env.info()["num_readers"] <= READERS_KEPT + 1


@pytest.mark.usefixtures("no_collection")
def test_a_walk_that_is_left_half_done_holds_no_reader_slot(index):
    with index.write() as txn:
        for number in range(3):
            txn.put_page("wheel", slot_prefix(0, 1), number, rows(number))
    left = []
    for _ in range(2 * READERS_MAX):
        with index.read() as txn:
            walk = txn.prefix("wheel", slot_prefix(0, 1))
            next(walk)
            left.append((walk, txn))
    with pytest.raises(lmdb.Error, match="closed"):
        next(left[0][0])
    assert index.env.info()["num_readers"] <= READERS_KEPT + 1


TAKE_ALL_READERS = """
import sys, lmdb
env = lmdb.open(sys.argv[1], max_readers=256, readonly=True, lock=True)
held = []
try:
    while True:
        held.append(env.begin())
except lmdb.ReadersFullError:
    print(len(held), flush=True)
sys.stdin.read()
"""


def test_other_processes_can_take_no_reader_slot_that_the_service_needs(tmp_path):
    index = Index(tmp_path / "index", MAP_BYTES)
    command = [sys.executable, "-c", TAKE_ALL_READERS, str(tmp_path / "index")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert int(other.stdout.readline()) >= READERS_MAX - READERS_KEPT
        with contextlib.ExitStack() as stack:
            for _ in range(READERS_KEPT):
                assert stack.enter_context(index.read()).get("meta", b"state") is None
            with pytest.raises(IndexBusyError, match="reader slots"), index.read():
                pass
            # A process that is killed leaves its slots behind; the next read frees them.
            other.kill()
            other.wait()
            assert stack.enter_context(index.read()).get("meta", b"state") is None
    index.close()


def test_an_index_without_a_free_reader_slot_is_not_reported_as_damaged(tmp_path):
    Index(tmp_path / "index", MAP_BYTES).close()
    command = [sys.executable, "-c", TAKE_ALL_READERS, str(tmp_path / "index")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        other.stdout.readline()
        with pytest.raises(IndexBusyError, match="try again"):
            Index(tmp_path / "index", MAP_BYTES, readonly=True)
        other.kill()
