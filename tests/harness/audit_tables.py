"""What an audit leaves in its directory, made from deliveries without a log."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from timerwheel.spark_jobs.audit.auditor import FINDINGS, TIMERS, TIMERS_SCHEMA
from timerwheel.spark_jobs.audit.findings import SCHEMA as FINDINGS_SCHEMA
from timerwheel.spark_jobs.audit.lateness import buckets_of, top_ms
from timerwheel.spark_jobs.audit.summary import LATENESS_SCHEMA
from timerwheel.spark_jobs.audit.tallies import LATENESS

HOUR_MS = 3_600_000
START_MS = 1_795_219_200_000  # 2026-11-21T00:00:00Z


def write_audit(
    directory: Path,
    deliveries: Sequence[tuple[str, int, int]],
    *,
    node: str = "node-1",
    begin: int = 64,
    until: int = 1_000,
    files: int = 1,
    segment: int = 0,
    ended_ms: int = START_MS,
    since: int | None = None,
) -> str:
    """An audit of deliveries (topic, due_ms, late_ms), each a timer that was stored an hour before.

    All of them are in one segment. With `since`, it was made with a checkpoint and read from there.
    """
    groups: dict[tuple[str, int, int], list[int]] = {}
    for topic, due_ms, late_ms in deliveries:
        bucket = int(buckets_of(np.array([late_ms]))[0])
        groups.setdefault((topic, due_ms // HOUR_MS * HOUR_MS, bucket), []).append(late_ms)
    lateness = [
        {
            "node": node,
            "segment": segment,
            "topic": topic,
            "hour_ms": hour_ms,
            "bucket": bucket,
            "bucket_top_ms": top_ms(bucket),
            "delivered": len(late),
            "latest_ms": max(late),
        }
        for (topic, hour_ms, bucket), late in groups.items()
    ]
    timers = [
        {
            "node": node,
            "segment": segment,
            "offset": begin + number,
            "root": begin + number,
            "topic": topic,
            "queue": 0,
            "due_ms": due_ms,
            "stored_ms": due_ms - HOUR_MS,
            "outcome": "delivered",
            "ended_ms": due_ms + late_ms,
            "end_offset": until - 1,
            "lateness_ms": late_ms,
        }
        for number, (topic, due_ms, late_ms) in enumerate(deliveries)
    ]
    tables: list[tuple[str, list[dict[str, Any]], pa.Schema]] = [
        (LATENESS, lateness, LATENESS_SCHEMA),
        (TIMERS, timers, TIMERS_SCHEMA),
        (FINDINGS, [], FINDINGS_SCHEMA),
    ]
    for name, rows, schema in tables:
        (directory / name).mkdir(parents=True)
        for number in range(files):
            part = pa.Table.from_pylist(rows[number::files], schema)
            pq.write_table(part, directory / name / f"part-{number:06d}.parquet")
    nodes = [{"node": node, "begin": begin, "until": until}]
    document: dict[str, Any] = {"nodes": nodes, "run": {"ended_ms": ended_ms}}
    if since is not None:
        document["reading"] = {"nodes": [{"node": node, "since": since, "until": until}]}
    (directory / "audit.json").write_bytes(orjson.dumps(document))
    return str(directory)
