"""The report of an audit: one self-contained HTML page, light and dark, for screens of any width."""

import platform
from collections.abc import Mapping
from importlib import metadata

import msgspec

from timerwheel.spark_jobs.audit.findings import MEANING, Rule
from timerwheel.spark_jobs.audit.job import Audit
from timerwheel.spark_jobs.audit.kafka import KAFKA_MEANING, KafkaRule
from timerwheel.spark_jobs.audit.plots import hours_plot, lateness_plot
from timerwheel.spark_jobs.pages.page import page
from timerwheel.spark_jobs.storage import join, write_atomically

PAGE = "report.html"
DOCUMENT = "audit.json"
_PACKAGES = ("timerwheel", "pyspark", "pyarrow", "numpy")


class Run(msgspec.Struct, frozen=True):
    """How a job was run: its command, when it ended, seconds per stage, versions."""

    command: str
    ended_ms: int
    seconds: Mapping[str, float]
    versions: Mapping[str, str]
    out: str


def versions() -> dict[str, str]:
    """Versions of the software that a job runs on; a package that is not installed has none."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "unknown"
    return found


def write_audit(out: str, audit: Audit, run: Run) -> None:
    """Write the page and then `audit.json` into a directory or URL."""
    write_atomically(join(out, PAGE), audit_page(audit, run).encode())
    write_atomically(join(out, DOCUMENT), msgspec.json.encode(msgspec.to_builtins(audit) | {"run": run}))


def audit_page(audit: Audit, run: Run) -> str:
    """The page as text. Whatever comes from a log is escaped."""
    return page(
        "audit.html",
        {"meaning": _meaning},
        audit=audit,
        run=run,
        lateness_plot=lateness_plot(audit.histogram),
        hours_plot=hours_plot(audit.hours),
    )


def _meaning(rule: str) -> str:
    return MEANING[Rule(rule)] if rule in set(Rule) else KAFKA_MEANING[KafkaRule(rule)]
