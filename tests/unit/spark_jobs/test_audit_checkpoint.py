"""The pure parts of an audit's checkpoint, and its storage with a failure at every call."""

import itertools
import random

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from fsspec import register_implementation
from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.spark_jobs.audit.checkpoint import (
    DOCUMENT,
    FORMAT,
    Checkpoint,
    Document,
    JudgedLog,
    OpenTimers,
    Sums,
    decode_document,
    encode_document,
    hour_runs,
    hours_of,
    open_checkpoint,
)
from timerwheel.spark_jobs.audit.findings import Finding, Rule
from timerwheel.spark_jobs.audit.ledger import (
    OF_TIMER,
    PENDING,
    RECALLED,
    Bounds,
    Ledger,
    earlier_references,
    references_of,
)
from timerwheel.spark_jobs.audit.plan import digest_of
from timerwheel.spark_jobs.audit.sums import (
    EARLIER,
    NEW,
    Generation,
    Keep,
    KeptFinding,
    first_findings,
    read_sums,
)
from timerwheel.spark_jobs.audit.tallies import SCHEMA
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.storage import StorageError
from timerwheel.store.errors import CorruptionError
from timerwheel.store.record import Kind
from timerwheel.store.sealed_json import seal
from timerwheel.store.table import ROW_DTYPE, Table
from timerwheel.wheel.geometry import HOUR_MS

GENERATION = "0" * 31 + "1"
LOG = JudgedLog(
    log_id="ab" * 16,
    node="node-1",
    began=0,
    until=4_096,
    last_base=2_048,
    last_digest="cd" * 32,
    segments=2,
    records=9,
    last_store_ms=1_800_000_000_000,
    hours=[(500_000, 2)],
    damaged=[],
    open=[OpenTimers(f"{GENERATION}/open-000000.side", 0, 0, 2_048, 1, [("orders", False, 2)])],
    dropped=[],
)


def document(*files: str, **fields: object) -> Document:
    sums = [Sums(path, 1, "ef" * 32) for path in files]
    return Document(**{"format": FORMAT, "ended_ms": 1, "logs": [], "sums": sums, **fields})


# ---------------------------------------------------------------------- the document


def test_a_document_is_read_as_it_was_written():
    written = document(f"{GENERATION}/sums-0.parquet", logs=[LOG])
    assert decode_document(encode_document(written)) == written
    assert written.paths() == {f"{GENERATION}/sums-0.parquet", f"{GENERATION}/open-000000.side"}


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_in_a_document_is_refused(seed):
    raw = bytearray(encode_document(document(logs=[LOG])))
    chance = random.Random(seed)
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(7)
    with pytest.raises(ValueError):  # noqa: PT011 - the reasons differ
        decode_document(bytes(raw))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (document(format=FORMAT + 1), "this version of timerwheel reads 1"),
        (document("../sums-0.parquet"), "is not a file of a checkpoint"),
        (document(f"{GENERATION}/../../sums-0.parquet"), "is not a file of a checkpoint"),
        (document(logs=[msgspec.structs.replace(LOG, log_id="..")]), "is not the id of a log"),
        (document(logs=[msgspec.structs.replace(LOG, until=2_048)]), "cannot have been judged"),
        (document(logs=[msgspec.structs.replace(LOG, open=LOG.open * 2)]), "not in order"),
    ],
)
def test_a_document_that_says_something_impossible_is_refused(changed, reason):
    with pytest.raises(ValueError, match=reason):
        decode_document(encode_document(changed))


def test_a_document_that_is_something_else_is_refused():
    for raw in (b"", b"{}", b"[]", seal(b'{"format":1}'), b"\xff" * 20):
        with pytest.raises(ValueError):  # noqa: PT011 - the reasons differ
            decode_document(raw)


@given(st.sets(st.integers(0, 40)))
def test_hours_are_listed_as_runs_and_read_as_hours(numbers):
    hours = np.array(sorted(numbers), np.int64) * HOUR_MS
    runs = hour_runs(hours)
    assert hours_of(runs).tolist() == hours.tolist()
    assert all(first + count < after for (first, count), (after, _) in itertools.pairwise(runs))


# ---------------------------------------------------------------------- its files, with failures


class FailingFileSystem(MemoryFileSystem):
    """A file system that fails at one of its calls, and at every later one: its client has died."""

    protocol = "failing"
    store: dict = {}  # noqa: RUF012 - of fsspec: all instances share it
    pseudo_dirs: list = [""]  # noqa: RUF012
    calls = 0
    fails_at: int | None = None

    @classmethod
    def step(cls) -> None:
        cls.calls += 1
        if cls.fails_at is not None and cls.calls >= cls.fails_at:
            raise OSError("the client has died")

    def pipe_file(self, *args, **more):
        self.step()
        return super().pipe_file(*args, **more)

    def cat_file(self, *args, **more):
        self.step()
        return super().cat_file(*args, **more)

    def makedirs(self, *args, **more):
        self.step()
        return super().makedirs(*args, **more)

    def mv(self, *args, **more):
        self.step()
        return super().mv(*args, **more)

    def rm(self, *args, **more):
        self.step()
        return super().rm(*args, **more)

    def open(self, *args, **more):
        self.step()
        return super().open(*args, **more)

    def find(self, *args, **more):
        self.step()
        return super().find(*args, **more)

    def ls(self, *args, **more):
        self.step()
        return super().ls(*args, **more)


register_implementation("failing", FailingFileSystem, clobber=True)
URL = "failing://checkpoint"
LOCK_FILE = "_lock/audit.json"


def run(number: int) -> None:
    """One audit: its files, one of the run before that still holds, and the document."""
    with open_checkpoint(URL, "now") as checkpoint:
        before = [] if checkpoint.document is None else checkpoint.document.sums[-1:]
        generation = checkpoint.new_generation()
        keep = Keep(generation, {}, {})
        rows = pa.Table.from_pylist(
            [{"node": "n", "sort": "log", "what": "unproved", "count": number}], SCHEMA
        )
        sums = [keep.write(rows, [], task) for task in range(2)]
        checkpoint.commit(document(logs=[], sums=[*before, *sums], ended_ms=number))


def check() -> int:
    """Reads every file that the document names; returns which run wrote it."""
    with open_checkpoint(URL, "now") as checkpoint:
        found = checkpoint.document
        for one in found.sums:
            read_sums(checkpoint.file(one.path), one, {"n": "n"}, [])
        return found.ended_ms


def free_lock() -> None:
    """The lock of a client that died stays in a store; the error says to delete it."""
    fs, root = url_to_fs(URL)
    for path in fs.find(f"{root}/_lock"):
        fs.rm_file(path)


def test_a_run_that_dies_at_any_call_to_the_storage_leaves_the_old_checkpoint_or_the_new_one():
    FailingFileSystem.store.clear()
    FailingFileSystem.fails_at = None
    run(0)
    FailingFileSystem.calls = 0
    run(1)
    calls = FailingFileSystem.calls
    assert calls > 10
    last = 1
    for place in range(1, calls + 1):
        FailingFileSystem.calls, FailingFileSystem.fails_at = 0, place
        with pytest.raises((StorageError, OSError), match="died"):
            run(2 * place)
        FailingFileSystem.fails_at = None
        free_lock()
        assert check() in (last, 2 * place)
        run(2 * place + 1)
        assert check() == (last := 2 * place + 1)
        fs, root = url_to_fs(URL)
        names = {name.removeprefix(f"{root}/") for name in fs.find(root)}
        with open_checkpoint(URL, "now") as checkpoint:
            assert names - {LOCK_FILE} == {DOCUMENT, *checkpoint.document.paths()}, (
                "nothing of dead runs is left"
            )


def test_a_checkpoint_needs_a_directory_of_its_own(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(JobError, match="is a file; give --checkpoint a directory"),
        open_checkpoint(str(tmp_path / "file"), "now"),
    ):
        pass
    with (
        pytest.raises(JobError, match="it has file; give --checkpoint a new or empty directory"),
        open_checkpoint(str(tmp_path), "now"),
    ):
        pass


def test_what_is_not_of_a_checkpoint_is_never_removed(tmp_path):
    with open_checkpoint(str(tmp_path), "now") as checkpoint:
        checkpoint.commit(document())
        (tmp_path / "README").touch()
        (tmp_path / GENERATION).mkdir()
        (tmp_path / GENERATION / "open-000000.side").touch()
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "open-000000.side").touch()
        checkpoint.commit(document())
    assert {path.name for path in tmp_path.iterdir()} == {DOCUMENT, "_lock", "README", "mine"}
    assert (tmp_path / "mine" / "open-000000.side").exists()


def test_a_damaged_document_is_named_with_what_to_do(tmp_path):
    (tmp_path / DOCUMENT).write_bytes(b"{")
    with (
        pytest.raises(JobError, match=r"checkpoint\.json is not valid.*remove the directory"),
        open_checkpoint(str(tmp_path), "now"),
    ):
        pass


# ---------------------------------------------------------------------- sums


def late(node: str, hour: int, count: int = 1) -> dict[str, object]:
    values = {"node": node, "lease": False, "topic": "t", "sort": "lateness", "hour_ms": hour * HOUR_MS}
    return values | {"bucket": 3, "count": count, "most_ms": 3}


def test_old_hours_become_one_row_and_what_is_pending_is_not_kept(tmp_path):
    rows = [late("a", hour) for hour in range(5)] + [late("b", hour) for hour in range(5)]
    rows += [{"node": "a", "lease": False, "topic": "t", "sort": "timer", "what": "pending", "count": 4}]
    keep = Keep(Generation(str(tmp_path), GENERATION), {"a": "A", "b": "B"}, {"a": 3 * HOUR_MS})
    sums = keep.write(pa.Table.from_pylist(rows, SCHEMA), [], 0)
    found = read_sums(str(tmp_path / sums.path), sums, {"A": "renamed"}, []).to_pylist()
    assert sorted(((row["hour_ms"] or 0) // HOUR_MS, row["count"]) for row in found) == [
        (0, 3),
        (3, 1),
        (4, 1),
    ]
    assert {(row["node"], row["source"]) for row in found} == {("renamed", EARLIER)}
    absent = read_sums(str(tmp_path / sums.path), sums, {}, ["B"]).to_pylist()
    assert [row["hour_ms"] // HOUR_MS for row in absent] == list(range(5))
    assert {row["node"] for row in absent} == {"B"}


def test_sums_that_were_changed_or_removed_are_refused(tmp_path):
    keep = Keep(Generation(str(tmp_path), GENERATION), {}, {})
    sums = keep.write(pa.Table.from_pylist([late("a", 1)], SCHEMA), [], 0)
    path = tmp_path / sums.path
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptionError, match="has changed since it was written"):
        read_sums(str(path), sums, {"a": "a"}, [])
    path.unlink()
    with pytest.raises(CorruptionError, match="has changed since it was written"):
        read_sums(str(path), sums, {"a": "a"}, [])


def test_findings_are_kept_for_each_node_and_renamed_with_it(tmp_path):
    def finding(node: str, offset: int) -> KeptFinding:
        found = Finding(node, None, Rule.EARLY, False, "t", offset, None, 0, 0, "")
        return KeptFinding(NEW, node, offset, msgspec.msgpack.encode(found))

    findings = [finding(node, offset) for node in "ab" for offset in (7, 5, 6)]
    kept = first_findings(findings, 2)
    assert [(one.node, one.at) for one in kept] == [("a", 5), ("a", 6), ("b", 5), ("b", 6)]
    keep = Keep(Generation(str(tmp_path), GENERATION), {"a": "A", "b": "B"}, {})
    sums = keep.write(SCHEMA.empty_table(), kept, 0)
    found = read_sums(str(tmp_path / sums.path), sums, {"A": "new name"}, []).to_pylist()
    assert [msgspec.msgpack.decode(row["finding"], type=Finding).node for row in found] == ["new name"] * 2


# ---------------------------------------------------------------------- judging what is new


def rows_of(*rows: dict[str, int]) -> Table:
    found = np.zeros(len(rows), ROW_DTYPE)
    for place, row in enumerate(rows):
        values = {"origin": 2**64 - 1, "root": row["offset"], "kind": Kind.TIMER} | row
        for name, value in values.items():
            found[place][name] = value
    return Table(found, ["orders"])


NUMBERS = np.zeros(1, np.int32)


def bounds(**fields: object) -> Bounds:
    values = {"begin": 64, "whole": True, "last_ms": 0, "bases": np.zeros(1, np.int64), "damaged": []}
    return Bounds(**{**values, **fields})


def judge(table: Table, new: Table, limits: Bounds):
    """Judges open timers of an earlier piece by the references of new records."""
    received = pa.table(references_of(new.rows, NUMBERS, limits))
    received = received.filter(pa.array(received["sort"].to_numpy() == OF_TIMER))
    return Ledger(table, NUMBERS, ["orders"], limits, before=True).judge(received)


def cancel(offset: int, origin: int) -> dict[str, int]:
    return {"offset": offset, "origin": origin, "root": origin, "kind": Kind.CANCEL}


def test_open_timers_are_ended_by_new_records_and_not_judged_again():
    table = rows_of({"offset": 100}, {"offset": 200, "root": 1})  # the second would break a rule by itself
    found = judge(table, rows_of(cancel(1_000, 100)), bounds(since=900))
    assert found.outcomes.tolist() == [RECALLED, PENDING]
    assert (found.faults, found.strange, found.unproved) == ([], 0, 0)


def test_of_two_new_ends_of_an_open_timer_the_second_is_a_finding():
    found = judge(
        rows_of({"offset": 100}), rows_of(cancel(1_000, 100), cancel(1_100, 100)), bounds(since=900)
    )
    assert [(one.rule, one.offset) for one in found.faults] == [(Rule.ENDED_TWICE, 1_100)]
    assert found.strange == 0


@pytest.mark.parametrize(
    ("limits", "strange", "unproved", "rules"),
    [
        ({}, 1, 0, []),
        ({"kept_from": 500}, 0, 0, [Rule.UNKNOWN_ORIGIN]),
        ({"damaged": [(300, 400)]}, 0, 1, []),
        ({"since": 300}, 0, 0, [Rule.UNKNOWN_ORIGIN]),
    ],
)
def test_a_reference_to_no_open_timer_needs_a_whole_audit_unless_nothing_more_can_be_known(
    limits, strange, unproved, rules
):
    found = judge(rows_of({"offset": 100}), rows_of(cancel(1_000, 304)), bounds(**{"since": 900, **limits}))
    assert (found.strange, found.unproved, [one.rule for one in found.faults]) == (strange, unproved, rules)


def test_references_to_dropped_timers_are_compared_with_the_earlier_ones():
    limits = bounds(begin=500, whole=False, since=900)
    earlier = rows_of(cancel(600, 100), cancel(700, 200) | {"root": 150}, cancel(800, 300))
    new = rows_of(cancel(1_000, 100), cancel(1_100, 400) | {"root": 150})
    received = pa.table(references_of(new.rows, NUMBERS, limits))
    met = earlier_references(earlier.rows, NUMBERS, received)
    assert sorted(set(met["by"].to_pylist())) == [600, 700]
    every = pa.concat_tables([received, met.select(received.column_names)])
    table = Table(new.rows[:0], new.topics)
    found = Ledger(table, NUMBERS, ["orders"], limits).judge(every)
    assert sorted(one.offset for one in found.faults) == [1_000, 1_100]
    alone = Ledger(table, NUMBERS, ["orders"], limits).judge(received)
    assert alone.faults == []


def test_a_digest_does_not_depend_on_how_a_table_numbers_its_topics():
    one = rows_of({"offset": 100, "topic": 0}, {"offset": 200, "topic": 1}, {"offset": 300, "topic": 0})
    other = rows_of({"offset": 100, "topic": 2}, {"offset": 200, "topic": 0}, {"offset": 300, "topic": 2})
    digest = digest_of(Table(one.rows, ["a", "b"]))
    assert digest == digest_of(Table(other.rows, ["b", "unused", "a"]))
    assert digest != digest_of(Table(other.rows, ["b", "unused", "c"]))
    assert digest != digest_of(Table(one.rows, ["b", "a"]))
    one.rows["due_ms"][1] += 1
    assert digest != digest_of(Table(one.rows, ["a", "b"]))


def test_a_checkpoint_knows_no_document_before_the_first_audit(tmp_path):
    with open_checkpoint(str(tmp_path / "new"), "now") as checkpoint:
        assert isinstance(checkpoint, Checkpoint)
        assert checkpoint.document is None
