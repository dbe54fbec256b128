"""The checkpoint of an audit: what was judged, and which timers were still open then.

    URL/checkpoint.json                  the document: written last, with a checksum
    URL/<generation>/open-000012.side    open timers of a judged piece of a log, as a sidecar
    URL/<generation>/dropped-000012.side records of it whose timers retention had removed
    URL/<generation>/sums-0.parquet      what was counted so far, as rows of `tallies.TALLIES`
    URL/_lock/                           who runs (`spark_jobs.run_lock`)

1. A file never changes. Every run writes files of a new generation, and names those of older ones that still
   hold. So a run that dies leaves the old document with all of its files.
2. Files that a document no longer names are removed only after it is in place.
3. A document counts, so a file that it does not name is not part of the checkpoint.
4. Every path follows a pattern, so none can lead out of the directory.

A `piece` is a segment, or the part of one that one run judged: the last segment of a log was not complete.

Steps for a change of the format, of the rules or of the tallies: raise FORMAT. A checkpoint of another format
is refused: what it counted would not fit.
"""

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import numpy as np
from pyspark.errors import PySparkException

from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.preflight import PROBE_PREFIX
from timerwheel.spark_jobs.run_lock import LOCKS, RunLock
from timerwheel.spark_jobs.segments import Damaged
from timerwheel.spark_jobs.storage import (
    files_below,
    join,
    make_directories,
    names_in,
    normal,
    read_bytes,
    remove,
    shown,
    write_atomically,
)
from timerwheel.store.sealed_json import check_seal, seal
from timerwheel.wheel.geometry import HOUR_MS

FORMAT = 1
DOCUMENT = "checkpoint.json"
LOCK = "audit"
CHANGED = "has changed since it was written"  # what the errors of files say, for `damaged`
_GENERATION = re.compile(r"[0-9a-f]{32}")
_LOG_ID = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PATH = r"[0-9a-f]{32}/(?:(?:open|dropped)-[0-9]{6,}\.side|sums-[0-9]+\.parquet)"
_FILE = re.compile(_PATH)
_OWN = re.compile(rf"{_PATH}|(?:{_PATH}|{re.escape(DOCUMENT)})\.[0-9a-f]{{32}}\.tmp")  # may be removed


class OpenTimers(msgspec.Struct, frozen=True):
    """The open timers of a piece [base, until) of the segment at `segment`.

    `counts` has topic, whether they are retries of a group, and how many; `least_due_ms` is the earliest.
    """

    path: str
    segment: int
    base: int
    until: int
    least_due_ms: int
    counts: list[tuple[str, bool, int]]


class DroppedTimers(msgspec.Struct, frozen=True):
    """Records of a piece [base, until) whose timers retention had removed before the audit began."""

    path: str
    base: int
    until: int


class Sums(msgspec.Struct, frozen=True):
    """A file of tallies; in them a log is named by its id."""

    path: str
    bytes: int
    sha256: str


class JudgedLog(msgspec.Struct, frozen=True, kw_only=True):
    """One log. It was judged from `began`, the base of a segment, up to `until`, after a complete unit."""

    log_id: str
    node: str
    began: int
    until: int
    last_base: int  # of the segment that holds `until`
    last_digest: str  # of its records before `until`
    segments: int
    records: int
    last_store_ms: int
    hours: list[tuple[int, int]]  # all hours with deliveries, as runs: hour since the epoch, how many
    damaged: list[Damaged]
    open: list[OpenTimers]
    dropped: list[DroppedTimers]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The whole checkpoint. `ended_ms` is when the last run ended."""

    format: int
    ended_ms: int
    logs: list[JudgedLog]
    sums: list[Sums]

    def paths(self) -> set[str]:
        """All files that it names."""
        lists: list[Sequence[Any]] = [self.sums]
        for log in self.logs:
            lists += [log.open, log.dropped]
        return {one.path for some in lists for one in some}


class _Format(msgspec.Struct):
    format: int


def encode_document(document: Document) -> bytes:
    """The bytes of a document."""
    return seal(msgspec.json.encode(document))


def decode_document(raw: bytes) -> Document:
    """A document that says nothing impossible. Raises ValueError with the reason."""
    check_seal(raw, required=True)
    try:
        found = msgspec.json.decode(raw, type=_Format).format
        if found != FORMAT:
            raise ValueError(f"it has format {found}, and this version of timerwheel reads {FORMAT}")
        document = msgspec.json.decode(raw, type=Document)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    for path in document.paths():
        if not _FILE.fullmatch(path):
            raise ValueError(f"{path!r} is not a file of a checkpoint")
    for sums in document.sums:
        if not _SHA256.fullmatch(sums.sha256):
            raise ValueError(f"{sums.sha256!r} is not a SHA-256")
    for log in document.logs:
        _check_log(log)
    return document


def _check_log(log: JudgedLog) -> None:
    if not _LOG_ID.fullmatch(log.log_id):
        raise ValueError(f"{log.log_id!r} is not the id of a log")
    if not 0 <= log.began <= log.last_base < log.until:
        raise ValueError(f"log {log.log_id} cannot have been judged from {log.began} to {log.until}")
    bases = [one.base for one in log.open]
    if bases != sorted(set(bases)):
        raise ValueError(f"the open timers of log {log.log_id} are not in order")


def hour_runs(hours: np.ndarray) -> list[tuple[int, int]]:
    """Hours as a document lists them, from their beginnings (epoch milliseconds, ascending)."""
    numbers = hours // HOUR_MS
    edges = np.flatnonzero(np.diff(numbers) != 1) + 1
    return [(int(run[0]), len(run)) for run in np.split(numbers, edges) if len(run)]


def hours_of(runs: Iterable[tuple[int, int]]) -> np.ndarray:
    """The beginnings of the hours in `hour_runs`."""
    parts = [np.arange(first, first + count, dtype=np.int64) for first, count in runs]
    return np.concatenate([np.zeros(0, np.int64), *parts]) * HOUR_MS


class Generation(NamedTuple):
    """The directory that one run writes to, by its URL and its name in there. Plain data for executors."""

    url: str
    name: str

    def file(self, path: str) -> str:
        """The URL of a file of the checkpoint."""
        return join(self.url, path)

    def open_path(self, piece: int) -> str:
        """The path of a piece's open timers."""
        return f"{self.name}/open-{piece:06d}.side"

    def dropped_path(self, piece: int) -> str:
        """The path of a piece's records whose timers retention had removed."""
        return f"{self.name}/dropped-{piece:06d}.side"

    def sums_path(self, task: int) -> str:
        """The path of the sums of one task."""
        return f"{self.name}/sums-{task}.parquet"


class Checkpoint:
    """The checkpoint at a URL, while this run has its lock."""

    def __init__(self, url: str, lock: RunLock) -> None:
        self.url = url
        self.document = self._read()
        self._lock = lock

    def _read(self) -> Document | None:
        """The document; None if there is none yet."""
        try:
            raw = read_bytes(join(self.url, DOCUMENT))
        except FileNotFoundError:
            return None
        try:
            return decode_document(raw)
        except ValueError as error:
            raise damaged(self.url, f"{DOCUMENT} is not valid: {error}") from None

    def new_generation(self) -> Generation:
        """A directory in which nothing was written yet."""
        return Generation(self.url, uuid.uuid4().hex)

    def file(self, path: str) -> str:
        """The URL of a file."""
        return join(self.url, path)

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Turns the error of an executor about a file that is not the one written into one that says so."""
        try:
            yield
        except PySparkException as error:
            found = re.search(rf"{re.escape(self.url)}/([0-9a-f]+/[\w.-]+): .*{CHANGED}", str(error))
            if found is None:
                raise
            raise damaged(self.url, f"{found[1]} {CHANGED}, or is missing") from error

    def commit(self, document: Document) -> None:
        """Put a new document in place, then remove what it does not name. Its files must be there."""
        if not self._lock.is_held():
            raise JobError(
                f"{self.url}: this run no longer has the lock of the checkpoint, which therefore stays as it "
                "was; run the audit again when no other run is at work"
            )
        write_atomically(join(self.url, DOCUMENT), encode_document(document))
        self.document = document
        self._tidy(document.paths())

    def _tidy(self, named: set[str]) -> None:
        """Remove generations and files that are not named, also what a dead run was writing."""
        for name in names_in(self.url):
            if _GENERATION.fullmatch(name) and not any(path.startswith(f"{name}/") for path in named):
                remove(join(self.url, name))
        for path in files_below(self.url):
            if _OWN.fullmatch(path) and path not in named:
                remove(join(self.url, path))


@contextmanager
def open_checkpoint(url: str, now_text: str) -> Iterator[Checkpoint]:
    """Take the lock of a checkpoint and read it; the directory may be new or empty.

    Raises JobError if another run has the lock, if the checkpoint is not valid, or if the directory has
    something else.
    """
    url = normal(url.rstrip("/") or url)
    _refuse_others(url)
    make_directories(url)

    def taken(who: str) -> JobError:
        return JobError(f"{shown(url)}: another audit is at work with this checkpoint: {who}")

    with RunLock(url, LOCK, purpose="audit", now_text=now_text, taken=taken) as lock:
        yield Checkpoint(url, lock)


def _refuse_others(url: str) -> None:
    try:
        names = names_in(url)
    except NotADirectoryError:
        raise JobError(f"{shown(url)} is a file; give --checkpoint a directory") from None
    if DOCUMENT not in names and (
        strange := [
            name
            for name in names
            if name != LOCKS and not name.startswith(PROBE_PREFIX) and not _GENERATION.fullmatch(name)
        ]
    ):
        raise JobError(
            f"{shown(url)} is not the checkpoint of an audit: it has {strange[0]}; give --checkpoint a new "
            "or empty directory"
        )


def damaged(url: str, reason: str) -> JobError:
    """The error of a checkpoint that cannot be used."""
    return JobError(
        f"the checkpoint {shown(url)} cannot be used: {reason}; remove the directory, or choose another with "
        "--checkpoint, and the next audit reads the whole log"
    )
