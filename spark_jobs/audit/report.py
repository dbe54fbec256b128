"""The report of an audit: one self-contained HTML page, light and dark, for screens of any width."""

import datetime as dt
import platform
from collections.abc import Mapping
from importlib import metadata

import jinja2
import msgspec

from timerwheel.model.durations import format_duration, format_ms
from timerwheel.model.text import printable
from timerwheel.spark_jobs.audit.findings import MEANING, Rule
from timerwheel.spark_jobs.audit.job import Audit
from timerwheel.spark_jobs.audit.lateness import Lateness
from timerwheel.spark_jobs.audit.plots import hours_plot, lateness_plot
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
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("timerwheel.spark_jobs.audit"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _FILTERS
    return environment.get_template("audit.html").render(
        audit=audit,
        run=run,
        lateness_plot=lateness_plot(audit.histogram),
        hours_plot=hours_plot(audit.hours),
    )


def _many(number: int) -> str:
    return f"{number:,}"


def _time(ms: int) -> str:
    # The page says once that its times are UTC.
    return format_ms(ms, dt.UTC).replace("T", " ").removesuffix("+00:00")


def _hour(ms: int) -> str:
    return _time(ms)[: len("2026-12-24 17:00")]


def _meaning(rule: str) -> str:
    return MEANING[Rule(rule)]


def _late(lateness: Lateness) -> list[str]:
    """Percentiles as cells of a table."""
    if not lateness.count:
        return ["-"] * 5
    values = (lateness.p50_ms, lateness.p90_ms, lateness.p99_ms, lateness.p999_ms, lateness.max_ms)
    return [format_duration(ms) for ms in values]


_FILTERS = {
    "shown": printable,
    "many": _many,
    "time": _time,
    "hour": _hour,
    "span": format_duration,
    "late": _late,
    "meaning": _meaning,
}
