"""The sums of an audit in a checkpoint: what was counted so far, for each log by itself.

The files hold rows of `tallies.TALLIES`, in which a log is named by its id: nodes may be renamed. Nothing
that is pending is in them, since later records change that. Hours before the last ones of a log are one row
without an hour, so that the sums do not grow with the age of a log.
"""

import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from timerwheel.spark_jobs.audit.checkpoint import CHANGED, Generation, JudgedLog, Sums
from timerwheel.spark_jobs.audit.findings import Finding
from timerwheel.spark_jobs.audit.tallies import SCHEMA, TALLIES
from timerwheel.spark_jobs.storage import read_bytes, write_atomically
from timerwheel.spark_jobs.tasks import map_numbers
from timerwheel.store.errors import CorruptionError

# Where a tally is from: this run; an earlier one; an earlier one, about a log that this run does not read.
NEW, EARLIER, ABSENT = range(3)
SOURCE = "source"
CHANGING = ("pending", "overdue")  # tallies of timers that later records change
KEYS = ["lease", "topic", "sort", "what", "hour_ms", "bucket"]


class KeptFinding(NamedTuple):
    """A finding as a tally has it: see `spark_jobs.audit.tallies`."""

    source: int
    node: str
    at: int
    finding: bytes


class Keep(NamedTuple):
    """How a task stores its sums.

    `log_ids` has the id for each node of this run. `unfolded` has for each node the first hour that keeps
    rows of its own. A log that this run does not read has its id for a node.
    """

    to: Generation
    log_ids: dict[str, str]
    unfolded: dict[str, int]

    def write(self, rows: pa.Table, findings: Sequence[KeptFinding], task: int) -> Sums:
        """Write the sums of a task: tallies without what changes, and findings."""
        rows = rows.filter(pc.invert(pc.is_in(rows["what"], pa.array(CHANGING))))
        for node, hour_ms in self.unfolded.items():
            old = pc.and_(pc.equal(rows["node"], node), pc.less(rows["hour_ms"], hour_ms))
            none = pa.scalar(None, pa.int64())
            folded = pc.if_else(pc.fill_null(old, fill_value=False), none, rows["hour_ms"])
            rows = rows.set_column(rows.schema.get_field_index("hour_ms"), "hour_ms", folded)
        listed = pa.table(
            {
                "node": pa.array([one.node for one in findings], pa.string()),
                "sort": pa.array(["finding"] * len(findings), pa.string()),
                "at": pa.array([one.at for one in findings], pa.int64()),
                "count": pa.array([1] * len(findings), pa.int64()),
                "finding": pa.array([one.finding for one in findings], pa.binary()),
            }
        )
        found = pa.concat_tables([added(rows, ["node", *KEYS]), listed], promote_options="default")
        ids = [self.log_ids.get(node, node) for node in found["node"].to_pylist()]
        found = found.set_column(found.schema.get_field_index("node"), "node", pa.array(ids, pa.string()))
        sink = pa.BufferOutputStream()
        pq.write_table(found.select(SCHEMA.names).cast(SCHEMA), sink, compression="zstd")
        data = sink.getvalue()
        path = self.to.sums_path(task)
        write_atomically(self.to.file(path), data)
        return Sums(path, data.size, hashlib.sha256(data).hexdigest())


def read_sums(url: str, sums: Sums, nodes: dict[str, str], absent: Sequence[str]) -> pa.Table:
    """Rows of TALLIES with their source; `nodes` has the name for each log id, other logs are left out.

    Logs in `absent` keep their ids. Raises CorruptionError if it is not the file that was written.
    """
    try:
        data = read_bytes(url)
    except FileNotFoundError:
        data = b""
    if len(data) != sums.bytes or hashlib.sha256(data).hexdigest() != sums.sha256:
        raise CorruptionError(url, 0, f"the file {CHANGED}")
    rows = pq.read_table(io.BytesIO(data), schema=SCHEMA)
    ids = rows["node"].to_pylist()
    sources = np.array(
        [EARLIER if one in nodes else ABSENT if one in absent else NEW for one in ids], np.int32
    )
    names = [nodes.get(one, one) for one in ids]
    findings = [
        None if one is None else _renamed(one, nodes.get(log_id))
        for one, log_id in zip(rows["finding"].to_pylist(), ids, strict=True)
    ]
    columns = {name: rows[name] for name in SCHEMA.names}
    columns["node"] = pa.array(names, pa.string())
    columns["finding"] = pa.array(findings, pa.binary())
    found = pa.table(columns).append_column(SOURCE, pa.array(sources))
    return found.filter(pa.array(sources != NEW))


def pending_before(logs: Mapping[str, JudgedLog]) -> pa.Table:
    """Rows of TALLIES, with their source, of the open timers in a checkpoint; `logs` are by node."""
    counts: Counter[tuple[str, bool, str]] = Counter()
    for node, log in logs.items():
        for one in log.open:
            for topic, lease, count in one.counts:
                counts[node, lease, topic] += count
    rows = [
        {"node": node, "lease": lease, "topic": topic, "sort": "timer", "what": "pending", "count": count}
        for (node, lease, topic), count in counts.items()
    ]
    return pa.Table.from_pylist(rows, SCHEMA).append_column(
        SOURCE, pa.array(np.full(len(rows), EARLIER, np.int32))
    )


def earlier_tallies(
    spark: SparkSession,
    files: Sequence[tuple[str, Sums]],
    pending: pa.Table,
    nodes: dict[str, str],
    absent: Sequence[str],
) -> DataFrame:
    """All that earlier audits counted: these files, read by executors (`read_sums`), and what was pending."""

    def read(number: int) -> Iterator[pa.RecordBatch]:
        found = pending if number == len(files) else read_sums(*files[number], nodes, absent)
        yield from found.to_batches()

    return map_numbers(spark, len(files) + 1, read, f"{TALLIES}, {SOURCE} int")


def _renamed(finding: bytes, node: str | None) -> bytes:
    if node is None:
        return finding
    found = msgspec.msgpack.decode(finding, type=Finding)
    return msgspec.msgpack.encode(msgspec.structs.replace(found, node=node))


def first_findings(findings: Iterable[KeptFinding], count_max: int) -> list[KeptFinding]:
    """The first of each node: enough of them, also if a later run leaves some nodes out."""
    counts: Counter[str] = Counter()
    found = []
    for one in sorted(findings, key=lambda one: (one.node, one.at, one.finding)):
        counts[one.node] += 1
        if counts[one.node] <= count_max:
            found.append(one)
    return found


def added(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Rows with equal keys become one."""
    found = rows.group_by(keys).aggregate([("count", "sum"), ("most_ms", "max")])
    return found.rename_columns({"count_sum": "count", "most_ms_max": "most_ms"})
