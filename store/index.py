"""The index: one LMDB environment of paged tables and some single values, all derived from the log.

Invariants:
1. The checkpoint is written in the transaction of the changes that it covers.
2. Commits contain only changes from durable log offsets (the caller ensures this, in one place).
3. An index that is damaged, of another format or of another log is moved away, never repaired.
4. Each value has a check over table, key and value (`timerwheel.store.pages`), verified on every read.
5. The row `tables` of `meta` has the number of entries of each other table, and a digest: the sum, modulo
   2^64, of a mix of their checks. It changes in the transaction that changes the tables. So `prove` finds a
   missing, duplicate or stale entry, which no check of a value can.

LMDB runs with its default full sync but without the extra sync of the meta page: a power cut may undo
the newest commit, and recovery replays a little more log. One thread writes; readers use short transactions,
since a long one keeps LMDB from reusing pages.
"""

import contextlib
import errno
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import lmdb
import msgspec
import numpy as np
from lmdb import verify

from timerwheel.store import pages
from timerwheel.store.errors import NO_SPACE, IndexBusyError, IndexDamagedError, NoSpaceError, NotAFileError
from timerwheel.store.files import FILE_MODE, make_directory, open_binary, open_descriptor
from timerwheel.store.keys import sequence_key, sequence_of
from timerwheel.store.pages import Page, Raw

INDEX_FORMAT = 5
"""The only format that is read: a table that another one lacks would look like an empty table."""
TABLES = (
    *("meta", "wheel", "queues", "topics", "marks", "segments"),
    *("control", "groups", "leases", "dead", "keys", "key_ends", "key_parts"),
)
DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
READERS_MAX = 256
READERS_KEPT = 8  # reader slots that a service reserves at its start: more than its reading threads
LOCK_BYTES = READERS_MAX * 64 + 4096  # a cache line for each reader, after the header
ROOM_BYTES = 1 << 20  # that occur although the file system is not full
_META_SPACING = 4096
_META = struct.Struct("<16xI20xI92xQQ")  # magic, page size (md_pad of the first tree), last page, txn id
_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.PageNotFoundError,
)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM)
_NO_ROOM_IN_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

SUMS_KEY = b"tables"


class Index:
    """An open environment."""

    def __init__(
        self, path: Path, map_size_bytes: int, *, readonly: bool = False, in_use: bool = False
    ) -> None:
        """Open it. Raises IndexDamagedError if LMDB's own structure is damaged.

        With `in_use` a service may be writing to it. That service verified the structure at its start; nobody
        else can verify it while it changes.
        """
        self.path = path
        self._on_damage: Callable[[str], None] | None = None
        self._readonly = readonly
        self._proved: set[bytes] = set()
        self._kept: list[lmdb.Transaction] = []  # ended, but LMDB frees the slot only with the object
        _refuse_cut_file(path)
        if not in_use:
            _prove_structure(path)
        if not readonly:
            _take_room_for_lock(path)
        try:
            self.env = lmdb.open(
                os.fsencode(path),  # a path need not be UTF-8, and LMDB takes no other text
                map_size=map_size_bytes,
                max_dbs=len(TABLES),
                max_readers=READERS_MAX,
                mode=FILE_MODE,
                metasync=False,
                readahead=False,
                readonly=readonly,
                create=not readonly,
                meminit=False,
            )
            self._dbs: dict[str, Any] = {}
            try:
                self._refuse_unknown_tables()
                self._open_tables()
            except (lmdb.Error, IndexBusyError, IndexDamagedError):
                self.env.close()  # otherwise this process could not open it again
                raise
        except _DAMAGE as error:
            raise IndexDamagedError(f"{path}: {error}") from error
        except lmdb.NotFoundError as error:
            reason = "a table is missing, as in an index of another format"
            raise IndexDamagedError(f"{path}: {reason}") from error
        except lmdb.ReadersFullError as error:
            raise self._busy() from error
        except lmdb.Error as error:
            raise self._unopened(error) from error

    def watch_damage(self, report: Callable[[str], None]) -> None:
        """Have this called with what is wrong when damage is found, on the thread that finds it."""
        self._on_damage = report

    def _unopened(self, error: lmdb.Error) -> Exception:
        """What it means that LMDB cannot open the index."""
        if self._readonly and error.code in _NOT_ALLOWED:
            return _forbidden(self.path)
        if self._readonly and error.code not in _NO_ROOM_IN_PROCESS:
            return IndexDamagedError(str(error))  # its text begins with the path
        if self._is_for_room(error):
            return NoSpaceError(f"{self.path}: {error}")
        return _system_error(error)

    def _refuse_unknown_tables(self) -> None:
        """Raise IndexDamagedError for a table of another name: the real one is missing then."""
        with self.env.begin() as txn, txn.cursor() as cursor:
            names = {key.decode(errors="replace") for key in cursor.iternext(values=False)}
        if foreign := names - set(TABLES):
            raise IndexDamagedError(f"{self.path}: unknown table {min(foreign)!r}")

    def _open_tables(self) -> None:
        for name in TABLES:
            self._dbs[name] = self.env.open_db(name.encode(), create=not self._readonly)
        if not self._readonly:
            # So that other processes cannot use up the reader slots that a service needs.
            for txn in [self._begin_read() for _ in range(READERS_KEPT)]:
                self._end_read(txn)

    @contextlib.contextmanager
    def read(self) -> Iterator["IndexTransaction"]:
        """A read snapshot; keep it short. IndexBusyError if other processes hold all reader slots.

        The slot is free again at the end of the block, even if an exception keeps the block's frames.
        """
        with self._guard():
            # No frame may hold LMDB's own transaction, which keeps its reader slot until it is deallocated.
            snapshot = IndexTransaction(self._begin_read(), self._dbs, self._proved)
            try:
                yield snapshot
            finally:
                self._end_read(snapshot.end())

    def _begin_read(self) -> lmdb.Transaction:
        try:
            return self.env.begin(buffers=True)
        except lmdb.ReadersFullError:
            self.env.reader_check()  # frees the slots of killed processes
        if self._kept:
            self._kept.pop()
        try:
            return self.env.begin(buffers=True)
        except lmdb.ReadersFullError as error:
            raise self._busy() from error

    def _end_read(self, txn: lmdb.Transaction) -> None:
        """End a transaction and free its slot, unless the reserve needs it."""
        txn.abort()
        if len(self._kept) < READERS_KEPT and not self._readonly:
            self._kept.append(txn)

    def _busy(self) -> IndexBusyError:
        return IndexBusyError(
            f"{self.path}: all reader slots are taken; try again, "
            "or stop other processes that read this data directory"
        )

    @contextlib.contextmanager
    def write(self) -> Iterator["IndexTransaction"]:
        """A write transaction, committed at the end of the block and aborted on an error."""
        with self._guard():
            with self.env.begin(write=True, buffers=True) as txn:
                changes = IndexTransaction(txn, self._dbs, self._proved)
                yield changes
                changes.sum_up()
            self._cover_last_page()

    def _cover_last_page(self) -> None:
        """Extend the file to LMDB's last page, which LMDB does not write if that page is free.

        Then a shorter file is a truncated one (`_refuse_cut_file`), and reading that would kill the process.
        """
        needed = (self.env.info()["last_pgno"] + 1) * self.env.stat()["psize"]
        data = self.path / DATA_FILE
        if data.stat().st_size < needed:
            # If it cannot grow now, the next start rebuilds the index, as for a truncated file.
            with contextlib.suppress(OSError):
                os.truncate(data, needed)

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except IndexDamagedError as error:
            self._tell_damage(str(error))
            raise
        except _DAMAGE as error:
            self._tell_damage(reason := f"{self.path}: {error}")
            raise IndexDamagedError(reason) from error
        except lmdb.Error as error:
            if not self._is_for_room(error):
                raise _system_error(error) from error
            raise NoSpaceError(f"{self.path}: {error}") from error

    def _tell_damage(self, reason: str) -> None:
        if self._on_damage is not None:
            self._on_damage(reason)

    def _is_for_room(self, error: lmdb.Error) -> bool:
        """Whether the error means a lack of space; the commit can be retried later."""
        if isinstance(error, lmdb.DiskError | lmdb.MapFullError) or error.code in NO_SPACE:
            return True
        # LMDB reports EIO for a write that a full disk cut short.
        return bool(error.code == errno.EIO) and self._has_no_room()

    def _has_no_room(self) -> bool:
        """Whether the data file cannot grow, tested by allocating space in its file system."""
        fd = os.open(self.path / DATA_FILE, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            os.posix_fallocate(fd, size, ROOM_BYTES)
            os.ftruncate(fd, size)
        except OSError as error:
            return error.errno in NO_SPACE
        finally:
            os.close(fd)
        return False

    def report_damage(self, reason: str) -> NoReturn:
        """Raise IndexDamagedError for content that cannot be right."""
        with self._guard():
            raise IndexDamagedError(f"{self.path}: {reason}")
        raise AssertionError

    def close(self) -> None:
        """Close the environment; every transaction must have ended."""
        self.env.close()


def _system_error(error: lmdb.Error) -> Exception:
    """The OSError behind an LMDB error about permissions or a disk; other errors unchanged."""
    number = error.code
    return OSError(number, f"{os.strerror(number)}: {error}") if number and number > 0 else error


def _forbidden(path: Path) -> PermissionError:
    """The error of a user who can read the index, but cannot write to its lock file."""
    reason = "reading the index needs write access to its lock file; run this as the service's user"
    return PermissionError(errno.EACCES, reason, str(path / LOCK_FILE))


def _prove_structure(path: Path) -> None:
    """Raise IndexDamagedError if the pages of the data file do not form valid trees.

    LMDB follows page numbers blindly, even out of the file, which kills the process. So the file is read
    here, not mapped, before LMDB opens it. About 4 µs per entry.
    """
    data = path / DATA_FILE
    try:
        if not data.stat().st_size:
            return
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        found: list[str] = verify.verify(str(data), subdir=False)  # type: ignore[no-untyped-call]
    except (OSError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - what a verifier trips over is damage, too
        found = [f"{type(error).__name__}: {error}"]
    if found:
        raise IndexDamagedError(f"{path}: {found[0]}")


def _take_room_for_lock(path: Path) -> None:
    """Allocate LMDB's lock file completely. Raises NoSpaceError, IndexDamagedError if it is not a file.

    LMDB creates it sparse and maps it: a write into a hole of a full disk is a SIGBUS.
    """
    try:
        make_directory(path)
        fd = open_descriptor(path / LOCK_FILE, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(fd, 0, LOCK_BYTES)
        finally:
            os.close(fd)
    except NotAFileError as error:
        raise IndexDamagedError(error.reason) from error
    except OSError as error:
        if error.errno in NO_SPACE:
            raise NoSpaceError(f"{path / LOCK_FILE}: {error.strerror}") from error
        raise


def _refuse_cut_file(path: Path) -> None:
    """Raise IndexDamagedError if the data file is shorter than its newest meta page says.

    LMDB maps the file without looking, and touching a missing page is a SIGBUS. The two meta pages are the
    first two pages; the layout is `MDB_meta` in LMDB's mdb.c.
    """
    try:
        with open_binary(path / DATA_FILE) as file:
            metas = file.read(2 * _META_SPACING)
            size = file.seek(0, os.SEEK_END)
    except (FileNotFoundError, NotADirectoryError):
        return
    except NotAFileError as error:
        raise IndexDamagedError(error.reason) from error
    if not size:
        return
    if size < 2 * _META_SPACING:
        raise IndexDamagedError(f"{path}: {size} bytes are too short for an index")
    found = [_META.unpack_from(metas, at) for at in (0, _META_SPACING)]
    _, page_size, last_page, _ = max(found, key=lambda meta: int(meta[3]))
    if size < (last_page + 1) * page_size:
        raise IndexDamagedError(f"{path}: the data file is truncated at {size} bytes")


class IndexTransaction:
    """Paged tables and single values within one LMDB transaction."""

    def __init__(self, txn: lmdb.Transaction, dbs: dict[str, Any], proved: set[bytes]) -> None:
        self._txn = txn
        self._dbs = dbs
        self._proved = proved
        self._walks: set[lmdb.Cursor] = set()
        self._added: dict[str, list[int]] = {}
        self._removed: dict[str, list[int]] = {}

    def end(self) -> lmdb.Transaction:
        """Close unfinished iterations and return LMDB's transaction; this object is unusable afterwards."""
        for cursor in self._walks:
            cursor.close()
        txn = self._txn
        del self._txn
        return txn

    @contextlib.contextmanager
    def _walk(self, table: str) -> Iterator[lmdb.Cursor]:
        """A cursor for a generator, which may never finish."""
        with self._txn.cursor(db=self._dbs[table]) as cursor:
            self._walks.add(cursor)
            try:
                yield cursor
            finally:
                self._walks.discard(cursor)

    def get(self, table: str, key: bytes) -> bytes | None:
        """A single value; IndexDamagedError if it fails its check."""
        stored = self._txn.get(key, db=self._dbs[table])
        return None if stored is None else bytes(pages.unseal(table, key, stored))

    def has_any(self, table: str, keys: list[bytes]) -> bool:
        """Whether a table has any of these keys, which are in order; their values are not looked at."""
        db = self._dbs[table]
        if not self._txn.stat(db)["entries"]:
            return False
        with self._txn.cursor(db=db) as cursor:
            return bool(cursor.getmulti(keys))

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set a value: a single one, or a page as `pages.pack` makes it."""
        db, check = self._dbs[table], pages.check_of(table, key, value)
        stored = pages.sealed(check, value)
        if not self._txn.put(key, stored, overwrite=False, db=db):  # most are new
            self._count_out(table, self._txn.get(key, b"", db=db))
            self._txn.put(key, stored, db=db)
        self._added.setdefault(table, []).append(check)

    def delete(self, table: str, key: bytes) -> None:
        """Remove a value if it exists."""
        db = self._dbs[table]
        if (before := self._txn.get(key, db=db)) is not None:
            self._count_out(table, before)
            self._txn.delete(key, db=db)
            self._proved.discard(table.encode() + key)

    def items(
        self, table: str, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values with start ≤ key < stop, in key order; IndexDamagedError at a damaged one."""
        for key, stored in self._stored(table, start, stop):
            yield key, bytes(pages.unseal(table, key, stored))

    def put_page(
        self,
        table: str,
        prefix: bytes,
        sequence: int,
        rows: np.ndarray,
        *,
        weight: int = 0,
        mask: int = 0,
    ) -> None:
        """Add one page."""
        self.put(table, prefix + sequence_key(sequence), pages.pack(rows, weight=weight, mask=mask))

    def put_column(self, table: str, key: bytes, rows: np.ndarray) -> None:
        """Add one column, under a key that no column ever had."""
        self.put(table, key, pages.pack_column(rows))

    def column(self, table: str, key: bytes, dtype: np.dtype[Any]) -> np.ndarray:
        """A column in place, valid until the transaction ends; IndexDamagedError.

        It is checked when it is read for the first time: it never changes.
        """
        stored = self._txn.get(key, db=self._dbs[table])
        if stored is None:
            raise IndexDamagedError(f"the entry {key.hex()} of table {table} is missing")
        name = table.encode() + key
        rows = pages.column_of(Page(table, key, stored), dtype, is_proved=name in self._proved)
        self._proved.add(name)
        return rows

    def pages(self, table: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, Page]]:
        """Keys and pages with start ≤ key < stop, in key order; valid until the transaction ends."""
        for key, stored in self._stored(table, start, stop):
            yield key, Page(table, key, stored)

    def prefix(self, table: str, prefix: bytes) -> Iterator[tuple[bytes, Page]]:
        """Keys and pages under a prefix."""
        for key, page in self.pages(table, prefix):
            if not key.startswith(prefix):
                return
            yield key, page

    def _stored(self, table: str, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, Raw]]:
        with self._walk(table) as cursor:
            if not cursor.set_range(start):
                return
            for key, stored in cursor.iternext():
                found = bytes(key)
                if stop is not None and found >= stop:
                    return
                yield found, stored

    def first_key(self, table: str, start: bytes) -> bytes | None:
        """The first key ≥ start."""
        with self._txn.cursor(db=self._dbs[table]) as cursor:
            return bytes(cursor.key()) if cursor.set_range(start) else None

    def page_before(self, table: str, prefix: bytes, sequence: int) -> tuple[int, Page] | None:
        """The page under `prefix` with the greatest sequence ≤ the one given: its sequence, and the page."""
        wanted = prefix + sequence_key(sequence)
        with self._txn.cursor(db=self._dbs[table]) as cursor:
            if cursor.set_range(wanted) and bytes(cursor.key()) == wanted:
                return sequence, Page(table, wanted, cursor.value())
            found = cursor.prev() if cursor.key() else cursor.last()
            if not found or not bytes(cursor.key()).startswith(prefix):
                return None
            key = bytes(cursor.key())
            return sequence_of(key), Page(table, key, cursor.value())

    def remove(self, table: str, keys: list[bytes]) -> None:
        """Remove these keys."""
        for key in keys:
            self.delete(table, key)

    # ------------------------------------------------------------------ sums over tables

    def _count_out(self, table: str, stored: Raw) -> None:
        self._removed.setdefault(table, []).append(pages.stored_check(stored))

    def _sums(self) -> dict[str, tuple[int, int]]:
        """The number of entries and the digest of each table that ever had an entry."""
        raw = self.get("meta", SUMS_KEY)
        return {} if raw is None else msgspec.msgpack.decode(raw, type=dict[str, tuple[int, int]])

    def sum_up(self) -> None:
        """Update the sums with the changes of this transaction."""
        changed = (self._added.keys() | self._removed.keys()) - {"meta"}
        if not changed:
            return
        sums = self._sums()
        for table in sorted(changed):
            count, digest = sums.get(table, (0, 0))
            added, removed = self._added.get(table, []), self._removed.get(table, [])
            digest = (digest + pages.digest_of(added) - pages.digest_of(removed)) % (1 << 64)
            sums[table] = (count + len(added) - len(removed), digest)
        self._added, self._removed = {}, {}
        self.put("meta", SUMS_KEY, msgspec.msgpack.encode(sums))

    def prove(self) -> dict[str, int]:
        """Check every entry but the rows of pages, and the sums; the total weight of each paged table.

        Raises IndexDamagedError. About 3 µs for an entry.
        """
        sums = self._sums()
        weights = dict.fromkeys(sorted(pages.PAGED_TABLES), 0)
        for table, db in self._dbs.items():
            if wrong := [name for name, is_set in db.flags(self._txn).items() if is_set]:
                raise IndexDamagedError(f"table {table} is flagged {wrong[0]}")
            checks = []
            for key, stored in self._stored(table, b"", None):
                pages.unseal(table, key, stored)
                if table in weights:
                    weights[table] += pages.weight_of(stored)
                if self._txn.get(key, db=db) is None:  # as damage to the keys of a branch page makes it
                    raise IndexDamagedError(f"the entry {key.hex()} of table {table} cannot be looked up")
                checks.append(pages.stored_check(stored))
            if table != "meta" and (len(checks), pages.digest_of(checks)) != tuple(sums.get(table, (0, 0))):
                raise IndexDamagedError(f"table {table} does not have the entries that were stored")
        return weights
