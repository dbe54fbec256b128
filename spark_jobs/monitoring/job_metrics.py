"""The metrics of a job's last run, as a file for the textfile collector of Prometheus' node exporter.

    timerwheel_job_success{job="audit",run="nightly"} 1

`run` is the name of the file without `.prom`, so that several jobs of one kind may share a directory. The
file is replaced as a whole, also after a run that failed; only the time of the last success is carried over.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from timerwheel.clock import SystemClock
from timerwheel.errors import SettingsError
from timerwheel.store.files import create_file

SUFFIX = ".prom"
LAST_SUCCESS = "timerwheel_job_last_success_timestamp_seconds"
_MODE = 0o644  # the node exporter is another user; there is nothing in it but numbers


class JobMetrics:
    """The gauges of one run."""

    def __init__(self, job: str, run: str) -> None:
        self._labels = {"job": job, "run": run}
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}

    def set(self, name: str, documentation: str, value: float, **labels: str) -> None:
        """Set a gauge; every call with this name has the same labels."""
        labels |= self._labels
        gauge = self._gauges.get(name)
        if gauge is None:
            gauge = self._gauges[name] = Gauge(name, documentation, sorted(labels), registry=self._registry)
        gauge.labels(**labels).set(value)

    def set_each(self, name: str, documentation: str, label: str, values: Mapping[str, float]) -> None:
        """Set one gauge for each value of a label."""
        for key, value in values.items():
            self.set(name, documentation, value, **{label: key})

    def text(self) -> bytes:
        """The gauges in Prometheus' text format."""
        return generate_latest(self._registry)


@contextlib.contextmanager
def job_metrics(
    job: str, path: Path | None, stages: Mapping[str, float], warn: Callable[[str], None]
) -> Iterator[JobMetrics]:
    """The metrics of the block, written to `path` at its end, whatever that is.

    `stages` are the seconds of each stage, which the block fills in. Raises SettingsError, before anything
    else happens, for a path that the node exporter would not read. `warn` is called if writing fails.
    """
    if path is not None:
        _check(path)
    clock = SystemClock()
    metrics = JobMetrics(job, path.stem if path is not None else "")
    began_ms = clock.now_ms()
    is_done = False
    try:
        yield metrics
        is_done = True
    finally:
        if path is not None:
            ended_ms = clock.now_ms()
            metrics.set("timerwheel_job_success", "Whether the last run came to its end", is_done)
            metrics.set("timerwheel_job_end_timestamp_seconds", "When the last run ended", ended_ms / 1_000)
            seconds = (ended_ms - began_ms) / 1_000
            metrics.set("timerwheel_job_duration_seconds", "How long the last run took", seconds)
            metrics.set_each(
                "timerwheel_job_stage_duration_seconds", "How long each stage took", "stage", stages
            )
            last = ended_ms / 1_000 if is_done else _last_success(path)
            if last is not None:
                metrics.set(LAST_SUCCESS, "When the last run that came to its end ended", last)
            try:
                _write(path, metrics.text())
            except OSError as error:
                warn(f"the metrics of this run are not written: {error}")


def _check(path: Path) -> None:
    if path.suffix != SUFFIX:
        raise SettingsError(f"--metrics {path}: the node exporter reads only names that end in {SUFFIX}")
    if not path.parent.is_dir():
        raise SettingsError(f"--metrics {path}: there is no directory {path.parent}")


def _last_success(path: Path) -> float | None:
    try:
        for family in text_string_to_metric_families(path.read_text()):
            for sample in family.samples:
                if sample.name == LAST_SUCCESS:
                    return sample.value
    except (OSError, ValueError):
        pass  # no earlier run, or a file that is none of ours
    return None


def _write(path: Path, text: bytes) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(create_file(new), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(text)
        new.chmod(_MODE)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
