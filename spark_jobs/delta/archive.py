"""The records of an archive as a Delta table: the same Parquet files, named by a Delta log beside them.

    URL/records/_delta_log/      the table is URL/records, partitioned by date

Nothing is copied. A call adds the files of manifests that the table does not have, and removes those that no
manifest names any more, in one transaction. So it may be repeated at any time, and after a crash.

Files are the archive's, not the table's: a VACUUM must not delete those that the table does not name yet. So
its retention of such files is a hundred years.
"""

from typing import NamedTuple

import msgspec
import pyarrow as pa
from deltalake import Schema
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from timerwheel.clock import SystemClock
from timerwheel.spark_jobs.archive.job import STORED
from timerwheel.spark_jobs.archive.manifest import RECORDS, ArchivedFile
from timerwheel.spark_jobs.archive.store import Archive, ArchiveError
from timerwheel.spark_jobs.columns import COLUMNS
from timerwheel.spark_jobs.delta.tables import delta_errors, open_table, options_of, place_of_table
from timerwheel.spark_jobs.storage import join

DATE = "date"
_FORMAT = 2  # the first whose files have all columns but the date
_KEPT = {"delta.deletedFileRetentionDuration": "interval 36500 days"}


class Listed(NamedTuple):
    """What a call changed, and what the table has now."""

    table: str
    added: int
    removed: int
    files: int
    rows: int


def list_archive(url: str) -> Listed:
    """Make the Delta table of an archive name the files that the manifests name.

    Raises ArchiveError, also for chunks of format 1; DeltaTableError.
    """
    store = Archive(url)
    files = _files_of(store)
    place = place_of_table(join(store.url, RECORDS))
    table = open_table(place)
    known = set() if table is None else set(table.get_add_actions(flatten=True)["path"].to_pylist())
    now_ms = SystemClock().now_ms()
    adds = [_add(path, file, now_ms) for path, file in files.items() if path not in known]
    gone = sorted(known - files.keys())
    with delta_errors(place):
        if table is None:
            create_table_with_add_actions(
                place, _schema(), adds, partition_by=[DATE], configuration=_KEPT,
                name="timerwheel_records", storage_options=options_of(place),
            )  # fmt: skip
        elif adds or gone:
            removes = [RemoveAction(path, True, now_ms) for path in gone]  # noqa: FBT003 - it takes no names
            table.create_write_transaction([*adds, *removes], "append", _schema(), [DATE])
    rows = sum(file.rows for file in files.values())
    return Listed(place, len(adds), len(gone), len(files), rows)


def _files_of(store: Archive) -> dict[str, ArchivedFile]:
    """The files that manifests name, by their path in the table."""
    files: dict[str, ArchivedFile] = {}
    for log_id in store.log_ids():
        for chunk in store.chunks(log_id):
            if chunk.format < _FORMAT:
                raise ArchiveError(
                    f"{store.url} has chunks of format {chunk.format}, whose files lack columns: "
                    "they cannot be part of a Delta table; use read_archive"
                )
            for file in store.manifest(log_id, chunk.base).files:
                files[file.path.removeprefix(f"{RECORDS}/")] = file
    if not files:
        raise ArchiveError(f"{store.url} is not an archive: it has no manifest of a log")
    return files


def _add(path: str, file: ArchivedFile, now_ms: int) -> AddAction:
    stats = msgspec.json.encode({"numRecords": file.rows}).decode()
    return AddAction(path, file.bytes, {DATE: file.date}, now_ms, data_change=True, stats=stats)


def _schema() -> Schema:
    fields = [pa.field(name, pa.string() if name == "log_id" else COLUMNS[name].arrow) for name in STORED]
    return Schema.from_arrow(pa.schema([*fields, pa.field(DATE, pa.date32())]))
