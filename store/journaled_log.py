"""A commit log whose bytes are durable in a journal; its segments are a copy of the runs there.

    units -> runs -> Journal.append -> segments, neither synced nor padded -> the caller is answered

Invariants, beside those of `timerwheel.store.log` that are about the contents of segments:
1. The copy has nothing that the journal does not have, at the same log offsets, byte for byte.
2. What `append` reported stored is in the journal, and is durable there.
3. The mark `journal` beside the segments names the journal, and a log offset up to which the copy is synced,
   with the position in the journal at which the log goes on. Behind it, the copy is worth nothing after a
   crash: the next start drops that part, and takes it from the journal again.
4. A directory with segments but without a mark has a log of its own, and is never changed.

Why a subclass: segments, rolling, readers and retention are those of the commit log; only where bytes become
durable is another place.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from timerwheel.store.errors import (
    NO_SPACE,
    CopyFullError,
    CorruptionError,
    FormatError,
    JournalAwayError,
    JournalFencedError,
    JournalMismatchError,
    LogFailedError,
    NoSpaceError,
    is_for_space,
)
from timerwheel.store.files import Files, ReadFiles, read_whole
from timerwheel.store.journal import (
    FENCE,
    Extent,
    Journal,
    Parts,
    Placed,
    Run,
    RunKind,
    counts,
    in_parts,
    is_empty,
)
from timerwheel.store.log import Appended, CommitLog
from timerwheel.store.log_reader import START_FILE
from timerwheel.store.record import FLAG_MORE, FLAGS_AT
from timerwheel.store.sealed_json import SealError, check_seal, seal
from timerwheel.store.segment import SEGMENT_HEADER_SIZE, encode_header

MARK_FILE = "journal"
SPACE_BYTES = 1 << 20
"""Free space that an append needs beside its own bytes, so that the copy does not fail after the journal."""

SPARE_CHECK_BYTES = 1 << 20
"""How much a copy grows at most between two looks at the free space."""
FOLLOW_RUNS_MAX = 1_000
"""How many runs `follow` copies at once."""


class Mark(msgspec.Struct, frozen=True):
    """Names the journal that a directory copies, and how far the copy is synced: `offset` of the log.

    The runs behind that offset are at `position` in the journal and after it. An offset of 0 stands for an
    empty copy.
    """

    journal: str
    offset: int
    position: int


def read_mark(files: ReadFiles, directory: Path) -> Mark | None:
    """Return the mark of a copy, None for a log of its own. A damaged one stands for an empty copy."""
    raw = read_whole(files, directory / MARK_FILE)
    if raw is None:
        return None
    try:
        check_seal(raw, required=True)
        return msgspec.json.decode(raw, type=Mark)
    except (SealError, msgspec.DecodeError, UnicodeDecodeError):
        return Mark("", 0, 0)


def write_mark(files: Files, directory: Path, mark: Mark) -> None:
    """Make the directory a copy, or say how far it is one; durable when this returns."""
    files.write_whole(directory / MARK_FILE, seal(msgspec.json.encode(mark)))


class JournaledLog(CommitLog):
    """See the module. `claim`, `attach` and `catch_up` first, then as a `CommitLog`."""

    def __init__(self, directory: Path, files: Files, segment_size_bytes: int, journal: Journal) -> None:
        super().__init__(directory, files, segment_size_bytes)
        self._journal = journal
        self._name = ""
        self.lost: JournalAwayError | JournalFencedError | CopyFullError | None = None
        """Why the log has failed, if the journal does not answer, another process has claimed it, or its copy
        found no space."""
        self.spare_bytes = 0
        """Copying ends with a NoSpaceError before less is free."""
        self._unmeasured_bytes = SPARE_CHECK_BYTES
        self._position = 0  # of the next run in the journal
        self._attached = Extent("", 0, 0)
        self._following: Generator[Placed | int, None, None] | None = None
        self._has_news = False  # whether a manifest came
        self._marked: Mark | None = None
        self._headers: dict[
            int, int
        ] = {}  # the positions of segments' headers, as far as this process met them
        self._parts = Parts()
        self._parts_at: int | None = None  # where a manifest begins of which not all parts have come

    # ------------------------------------------------------------------ copying

    def extent(self) -> Extent:
        """Return what the journal has now. It is made if it is missing, unless the directory has a log.

        In that case it was deleted, or the address is wrong: the next node with an empty directory would take
        an empty journal for the right one. JournalMismatchError.
        """
        return self._journal.extent(make=self._may_make_journal())

    def claim(self) -> Extent:
        """Become the leader of the journal; `attach` and `catch_up` to its end come before an `append`.

        It is made as by `extent`.
        """
        self.unfollow()
        extent = self._journal.claim(make=self._may_make_journal())
        self.unit_bytes_max = self._journal.run_bytes_max
        return extent

    def _may_make_journal(self) -> bool:
        """Whether a journal that is missing may be made: there is no log here that was in one."""
        self.files.make_dir(self.directory)
        bases = self._found_bases()
        self._refuse_own_log(bases)
        return not bases

    def _refuse_own_log(self, bases: Sequence[int]) -> None:
        """Raise JournalMismatchError if the log in the directory, with these segments, is in no journal."""
        has_start = read_whole(self.files, self.directory / START_FILE) is not None
        if (bases or has_start) and read_mark(self.files, self.directory) is None:
            raise JournalMismatchError(
                f"{self.directory} has a log of its own, which is in no journal; start without --journal, or "
                "put it there with `timerwheel cluster fill`, or give an empty directory with --data"
            )

    def lacks_dropped(self, extent: Extent) -> bool:
        """Whether the directory has a part of the log, and lacks one that the journal has no more.

        Then `attach` removes the copy and begins again at the journal's beginning.
        """
        mark = read_mark(self.files, self.directory)
        if mark is None or not mark.offset or mark.journal != extent.name:
            return False
        return mark.position < extent.start

    def attach(self, extent: Extent) -> None:
        """Make the directory a copy of this journal, which ends where the copy was synced, or is empty.

        Raises JournalMismatchError if the directory or the journal must not be used for this, and
        JournalAwayError.
        """
        self._attached, self._parts_at = extent, None
        self._name = extent.name
        self.files.make_dir(self.directory)
        self.bases = self._found_bases()
        mark = self._own_mark(extent)
        if mark is None or not self._cut_to(mark, extent):
            self._clear()

    def follows(self, extent: Extent) -> bool:
        """Whether the copy is attached, and lacks nothing that was dropped from the journal."""
        return self._name == extent.name and extent.start <= self._position <= extent.end

    def catch_up(self, end: int, progress: Callable[[int, int], None] | None = None) -> bool:
        """Copy up to a position, durably; `progress` gets two positions, at and end.

        Returns whether another manifest came with it. `open` follows if there are segments.
        """
        self._has_news = is_headless = False
        for placed in self._journal.read(self._position, end):
            self._copy(placed)
            is_headless |= not self.bases and placed.run != FENCE
            if progress is not None:
                progress(placed.position + 1, end)
        if not self.bases and is_headless:
            raise JournalMismatchError(
                f"the journal {self._name} does not begin with a segment: records were deleted from it"
            )
        self._position = max(end, self._position)
        if self.bases:
            self.sync()
        return self._has_news

    def follow(self) -> bool:
        """Copy what another leader has appended by now, not durably; returns as `catch_up` does."""
        self._has_news = False
        if self._following is None:
            self._following = self._journal.follow(self._position)
        for placed in islice(self._following, FOLLOW_RUNS_MAX):
            if isinstance(placed, int):
                self._position = placed
                break
            self._copy(placed)
        return self._has_news

    def _copy(self, placed: Placed) -> None:
        """Take a run, if enough stays free. After a NoSpaceError, what was copied is durable if possible."""
        try:
            if placed.run.data:
                self._keep_spare(len(placed.run.data))
            self._take(placed)
        except NoSpaceError:
            self.unfollow()
            if self.bases and self._failed is None:
                with contextlib.suppress(NoSpaceError):
                    self.sync()
            raise

    def _keep_spare(self, more_bytes: int) -> None:
        """Raise NoSpaceError if less than `spare_bytes` would stay free."""
        self._unmeasured_bytes += more_bytes
        if not self.spare_bytes or self._unmeasured_bytes < SPARE_CHECK_BYTES:
            return
        free = self.files.free_bytes(self.directory)
        if free < self.spare_bytes + more_bytes:
            raise NoSpaceError(
                f"{self.directory}: {free} bytes are free, and a copy leaves {self.spare_bytes} of them"
            )
        self._unmeasured_bytes = 0

    def unfollow(self) -> None:
        """Let go of what `follow` holds."""
        if self._following is not None:
            self._following.close()
            self._following = None

    @property
    def journal_name(self) -> str:
        """What tells the journal from all others; known once the copy is attached."""
        return self._name

    @property
    def position(self) -> int:
        """Position of the next run in the journal."""
        return self._position

    def _own_mark(self, extent: Extent) -> Mark | None:
        """Return the mark if the directory has one; JournalMismatchError if the two must not be joined."""
        mark = read_mark(self.files, self.directory)
        if mark is None:
            self._refuse_own_log(self.bases)
            return None
        if self.bases and is_empty(self._journal, extent):
            raise JournalMismatchError(
                f"the journal {extent.name} is empty, but {self.directory} is a copy of one: keep this copy, "
                "and look at the brokers. `timerwheel cluster fill --from-copy` puts a copy into an empty "
                "journal; or give an empty directory with --data"
            )
        if not mark.offset:
            return None
        if mark.journal != extent.name:
            raise JournalMismatchError(
                f"{self.directory} is a copy of the journal {mark.journal}, not of {extent.name}; give an "
                "empty directory with --data. If the topic was made again by mistake, keep this copy"
            )
        if mark.position > extent.end:
            raise JournalMismatchError(
                f"the journal {extent.name} ends at {extent.end}, but {self.directory} is a copy of it up to "
                f"{mark.position}: the brokers have lost records. Keep this copy, and look at the brokers"
            )
        return mark

    def _cut_to(self, mark: Mark, extent: Extent) -> bool:
        """Drop what is behind the mark; returns False if the copy cannot be used."""
        kept = tuple(base for base in self.bases if base < mark.offset)
        if not kept or mark.position < extent.start:
            return False
        try:
            self.log_id = self._log_id_of(kept)
            ends = [base + self.file(base).size() for base in kept]
        except (CorruptionError, FormatError):
            return False
        if list(kept[1:]) != ends[:-1] or ends[-1] < mark.offset:
            return False
        for base in reversed(self.bases[len(kept) :]):
            self._forget(base)
        last = self.file(kept[-1])
        self._unlink_derived(kept[-1])
        last.truncate(mark.offset - kept[-1])
        last.sync()
        self.bases, self.tail, self.synced = kept, mark.offset, mark.offset
        self._position, self._marked = mark.position, mark
        return not self.survey(kept[-1]).gaps

    def _clear(self) -> None:
        """Begin an empty copy. It is marked first: a crash must not leave segments that look like a log."""
        self._position = self._attached.start
        self._put_mark(0)
        for base in reversed(self.bases):
            self._forget(base)
        self.files.unlink(self.directory / START_FILE)
        self.files.sync_dir(self.directory)
        self.bases, self.tail, self.synced = (), 0, 0

    def _take(self, placed: Placed) -> None:
        """Write a run of the journal to the copy, if it counts."""
        position, run = placed
        if run.kind is not RunKind.START:
            self._parts_at = None
        elif run.part == 0:
            self._parts_at = position
        if counts(run, self.tail if self.bases else None):
            if run.kind is RunKind.SEGMENT:
                if self.bases:
                    self._end_segment()
                self._headers[run.base] = position
                self._create(run.base, run.data)
            elif run.kind is RunKind.RECORDS:
                self._write(run.data, ahead=False)
            if (manifest := self._parts.add(run)) is not None:
                with _space_wanted(self.directory):
                    super().write_start(manifest)
                self._has_news, self._parts_at = True, None
        self._position = position + 1

    # ------------------------------------------------------------------ writing

    def append(self, units: Sequence[list[bytes]], *, sync: bool, now_ms: int) -> Appended:
        """Store units in order in the journal, then in the copy. `sync` has to be True.

        Raises LogFailedError, JournalAwayError and JournalFencedError among it: whether the units are stored,
        the next start knows.
        """
        assert sync, "a journal stores nothing later"
        if self._failed is not None:
            raise LogFailedError(self._failed)
        runs = _Runs(self, now_ms)
        offsets = [runs.add(unit) for unit in units]
        wanted = sum(len(run.data) for run in runs.done()) + SPACE_BYTES
        if self.files.free_bytes(self.directory) < wanted:
            return Appended(
                [],
                NoSpaceError(
                    f"{self.directory}: no space for {wanted} bytes; free some, or let another node lead: "
                    "`timerwheel cluster move`"
                ),
            )
        self._store(runs.done())
        return Appended(offsets, None)

    def _store(self, runs: Sequence[Run]) -> None:
        """Append runs to the journal, and then write them to the copy."""
        try:
            positions = self._journal.append(runs)
            for position, run in zip(positions, runs, strict=True):
                self._take(Placed(position, run))
        except BaseException as error:
            self._fail(error)
            if isinstance(self.lost, CopyFullError):
                raise self.lost from error
            raise

    def _fail(self, error: BaseException) -> None:
        self._failed = str(error) or type(error).__name__
        if isinstance(error, JournalAwayError | JournalFencedError):
            self.lost = error
        elif is_for_space(error):
            self.lost = CopyFullError(
                f"the log is in the journal, but its copy could not be written: {error}"
            )

    def rest(self) -> None:
        """Let the journal tidy up between appends: call it every second."""
        if self._failed is None:
            try:
                self._journal.rest()
            except BaseException as error:
                self._fail(error)
                raise

    def check_journal(self) -> None:
        """Look whether the journal may still be trusted, as a claim does. Any thread may call.

        Raises JournalMismatchError if messages would be lost. If it does not answer, an append will tell.
        """
        with contextlib.suppress(JournalAwayError):
            self._journal.check()

    def confirm(self) -> None:
        """Store a run without bytes: when this returns, no other process had claimed the journal at its call.

        Raises as `append`.
        """
        if self._failed is not None:
            raise LogFailedError(self._failed)
        self._store([Run(RunKind.RECORDS, self.tail, b"")])

    def sync(self) -> None:
        """Make the copy durable, and note its end in the mark."""
        try:
            super().sync()
        except LogFailedError as error:
            if self.lost is None:
                self._fail(error)
            raise
        self._put_mark(self.tail)

    def _put_mark(self, offset: int) -> None:
        mark = Mark(self._name, offset, self._position if self._parts_at is None else self._parts_at)
        if mark != self._marked:
            with _space_wanted(self.directory):
                write_mark(self.files, self.directory, mark)
            self._marked = mark

    def _begin_segment(self, base: int, now_ms: int) -> None:
        self._store([Run(RunKind.SEGMENT, base, encode_header(base, self.log_id, now_ms))])

    def write_start(self, raw: bytes) -> None:
        """Write the manifest to the journal, and to the copy."""
        self._store(in_parts(self.tail, raw, self._journal.run_bytes_max))

    def trim(self, before: int) -> None:
        """Drop the journal's part before the segment with this base; any thread may call.

        If this process has not met that segment in the journal, it reads the part that goes.
        Raises JournalAwayError; then the next call drops it.
        """
        position = self._headers.get(before)
        if position is None:
            position = self._find_header(before)
        if position is not None:
            self._journal.trim(position)

    def _find_header(self, base: int) -> int | None:
        tail: int | None = None
        for position, run in self._journal.read(self._attached.start, self._attached.end):
            if counts(run, tail):
                if run.kind is RunKind.SEGMENT and run.base >= base:
                    return position
                tail = run.end
        return None

    def close(self) -> None:
        """Release every descriptor and the journal; does not sync."""
        self.unfollow()
        super().close()
        self._journal.close()


@contextlib.contextmanager
def _space_wanted(directory: Path) -> Iterator[None]:
    """Raise NoSpaceError if a block fails for lack of space: it may be tried again."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise NoSpaceError(f"{directory}: {error.strerror}") from error


class _Runs:
    """Places units behind the tail of a log: runs that end with a segment, or before they grow too long."""

    def __init__(self, log: JournaledLog, now_ms: int) -> None:
        self._log = log
        self._now_ms = now_ms
        self._base = log.bases[-1]
        self._tail = log.tail
        self._runs: list[Run] = []
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def add(self, records: Sequence[bytes]) -> int:
        """Place records that are in one segment; returns the log offset of the first."""
        used, size = self._tail + self._pending_bytes - self._base, sum(map(len, records))
        if used > SEGMENT_HEADER_SIZE and used + size > self._log.segment_size_bytes:
            self._end_run()
            self._base = self._tail
            self._put(RunKind.SEGMENT, encode_header(self._base, self._log.log_id, self._now_ms))
        first = self._tail + self._pending_bytes
        for unit in _units(records) if size > self._log.unit_bytes_max else (records,):
            unit_bytes = sum(map(len, unit))
            if self._pending_bytes + unit_bytes > self._log.unit_bytes_max:
                self._end_run()
            self._pending.extend(unit)
            self._pending_bytes += unit_bytes
        return first

    def _end_run(self) -> None:
        if self._pending:
            self._put(RunKind.RECORDS, b"".join(self._pending))
            self._pending, self._pending_bytes = [], 0

    def _put(self, kind: RunKind, data: bytes) -> None:
        self._runs.append(Run(kind, self._tail, data))
        self._tail += len(data)

    def done(self) -> list[Run]:
        """Return the runs of everything that was placed."""
        self._end_run()
        return self._runs


def _units(records: Sequence[bytes]) -> list[list[bytes]]:
    """Part records where a crash may part them."""
    found: list[list[bytes]] = [[]]
    for record in records:
        found[-1].append(record)
        if not record[FLAGS_AT] & FLAG_MORE:
            found.append([])
    return [unit for unit in found if unit]


def largest_unit_bytes(records: Sequence[bytes]) -> int:
    """Return the size of the largest part of these records that counts only as a whole."""
    return max(sum(map(len, unit)) for unit in _units(records))
