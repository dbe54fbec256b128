"""Audits with and without a checkpoint, and what has to be equal in their results."""

from pathlib import Path
from typing import Any

import msgspec

from timerwheel.spark_jobs.audit.checkpoint import open_checkpoint
from timerwheel.spark_jobs.audit.job import Audit, audit, audit_since
from timerwheel.spark_jobs.live_logs import LiveLogs
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.segment_stats import ReadOptions, survey

ENDED_MS = 1_800_000_000_000


def whole(spark: Any, data: str, staging: Path, **options: bool) -> Audit:
    """The audit of all that these logs have now."""
    found = survey(spark, find_logs([data]), ReadOptions(str(staging), **options))
    return audit(spark, JobProgress(spark, show=False), found, None)


def incremental(
    spark: Any, data: str | list[str], checkpoint: str, staging: Path, out: str | None = None, **options: Any
) -> Audit:
    """The audit of what is new since the checkpoint, which it brings up to date."""
    progress = JobProgress(spark, show=False)
    live = LiveLogs(spark, find_logs([data] if isinstance(data, str) else data))
    with open_checkpoint(checkpoint, "now") as found:
        reading = ReadOptions(str(staging), **options)
        result, following = audit_since(live, progress, found, reading, out, now_ms=ENDED_MS)
        found.commit(following)
    return result


def same(audit: Audit) -> dict[str, Any]:
    """A result without what it says about reading, and without where the logs are."""
    found: dict[str, Any] = msgspec.to_builtins(audit)
    del found["reading"]
    for node in found["nodes"]:
        del node["sidecars"]
    for name in ("damaged", "torn"):
        found[name] = [(node, Path(path).name, *rest) for node, path, *rest in found[name]]
    return found


def reading(audit: Audit) -> dict[str, str | None]:
    """Why each node was read from its beginning."""
    assert audit.reading is not None
    return {one.node: one.why_whole for one in audit.reading.nodes}
