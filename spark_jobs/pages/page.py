"""Reports as HTML: self-contained pages, light and dark, for screens of any width."""

import datetime as dt
from collections.abc import Callable, Mapping

import jinja2

from timerwheel.model.durations import format_duration, format_ms
from timerwheel.model.text import printable
from timerwheel.spark_jobs.audit.lateness import Lateness


def page(template: str, filters: Mapping[str, Callable[..., object]], **values: object) -> str:
    """A page of `templates` as text. Whatever comes from a log is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("timerwheel.spark_jobs.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {**_FILTERS, **filters}
    return environment.get_template(template).render(**values)


def _many(number: int) -> str:
    return f"{number:,}"


def _time(ms: int) -> str:
    # The page says once that its times are UTC.
    return format_ms(ms, dt.UTC).replace("T", " ").removesuffix("+00:00")


def _hour(ms: int) -> str:
    return _time(ms)[: len("2026-12-24 17:00")]


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
}
