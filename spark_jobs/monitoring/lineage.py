"""OpenLineage events of a job: when it starts and how it ends, what it reads and what it writes.

They are sent if a variable of OpenLineage's client says where to (`OPENLINEAGE_URL` and others). The names of
datasets are those of https://openlineage.io/docs/spec/naming: `file` and a path, `s3://bucket` and a key.
"""

import contextlib
import datetime as dt
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from timerwheel.clock import SystemClock
from timerwheel.spark_jobs.storage import has_magic, is_local, normal, shown
from timerwheel.store.errors import StoreError

NAMESPACE = "timerwheel"
PRODUCER = "https://pypi.org/project/timerwheel"
_PREFIX = "OPENLINEAGE_"
_NAMESPACE_VARIABLE = "OPENLINEAGE_NAMESPACE"
_DISABLED_VARIABLE = "OPENLINEAGE_DISABLED"

_CLOSE_TIMEOUT_S = 10.0
_PROBLEM = "OpenLineage was not informed: "

Warn = Callable[[str], None]


class Dataset(NamedTuple):
    """A dataset by its OpenLineage name."""

    namespace: str
    name: str


def dataset_of(url: str) -> Dataset:
    """The dataset at a path or URL that fsspec reads; a password in it is left out."""
    if is_local(url):
        return Dataset("file", normal(url))
    parts = urlsplit(shown(url))
    return Dataset(f"{parts.scheme}://{parts.netloc}", parts.path.strip("/") or "/")


def known_datasets(given: "Sequence[str | Dataset]") -> list[Dataset]:
    """What is known of these paths and URLs before anybody looked at them: patterns say nothing yet."""
    found: list[Dataset] = []
    for one in given:
        if isinstance(one, Dataset):
            found.append(one)
        elif not has_magic(one):
            with contextlib.suppress(StoreError):  # of a URL that is wrong, which the job will say
                found.append(dataset_of(one))
    return found


def topic_of(url: str, topic: str | None) -> Dataset:
    """A topic of a service, or all of them."""
    return Dataset(f"timerwheel://{urlsplit(shown(url)).netloc}", topic or "*")


@contextlib.contextmanager
def lineage(job: str, reads: Sequence[Dataset], writes: Sequence[Dataset], warn: Warn) -> Iterator[None]:
    """Report the block as a run of this job; `warn` is called with what goes wrong with the reports.

    The last event has what `reads` and `writes` are then.
    """
    reports = _reports(job, reads, writes, warn)
    if reports is None:
        yield
        return
    try:
        reports.emit("START")  # a signal in the middle of it ends the run, too
        yield
    except Exception as error:
        reports.end("FAIL", str(error))
        raise
    except BaseException:  # a signal
        reports.end("ABORT")
        raise
    reports.end("COMPLETE")


def _reports(job: str, reads: Sequence[Dataset], writes: Sequence[Dataset], warn: Warn) -> "_Reports | None":
    if not any(name.startswith(_PREFIX) for name in os.environ) or _is_disabled():
        return None
    if importlib.util.find_spec("openlineage") is None:
        warn(f"{_PROBLEM}openlineage-python is missing: `pip install 'timerwheel[lineage]'`")
        return None
    return _Reports(job, reads, writes, warn)


class _Reports:
    """The events of one run. Problems with them are warnings: the job matters more than its reports."""

    def __init__(self, job: str, reads: Sequence[Dataset], writes: Sequence[Dataset], warn: Warn) -> None:
        from openlineage.client.uuid import generate_new_uuid  # noqa: PLC0415 - an extra

        self._job = job
        self._reads = reads
        self._writes = writes
        self._warn = warn
        self._run_id = str(generate_new_uuid())
        self._clock = SystemClock()
        self._client: Any = None

    def emit(self, state: str, problem: str | None = None) -> None:
        from openlineage.client import OpenLineageClient  # noqa: PLC0415 - an extra

        try:
            self._client = self._client or OpenLineageClient()
            self._client.emit(self._event(state, problem))
        except Exception as error:  # noqa: BLE001 - of any transport
            self._warn(f"{_PROBLEM}{state}: {error}")

    def end(self, state: str, problem: str | None = None) -> None:
        """Emit the last event, and wait for a transport that sends in the background."""
        self.emit(state, problem)
        try:
            if self._client is not None and not self._client.close(_CLOSE_TIMEOUT_S):
                self._warn(f"{_PROBLEM}not every event was sent within {_CLOSE_TIMEOUT_S:.0f} s")
        except Exception as error:  # noqa: BLE001 - of any transport
            self._warn(f"{_PROBLEM}{error}")

    def _event(self, state: str, problem: str | None) -> Any:  # noqa: ANN401 - an extra
        from openlineage.client import event_v2  # noqa: PLC0415 - an extra
        from openlineage.client.facet_v2 import error_message_run, job_type_job  # noqa: PLC0415

        kind = job_type_job.JobTypeJobFacet("BATCH", "TIMERWHEEL", "JOB", producer=PRODUCER)
        facets: dict[str, Any] = {}
        if problem is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                problem, "python", producer=PRODUCER
            )
        namespace = os.environ.get(_NAMESPACE_VARIABLE, NAMESPACE)
        return event_v2.RunEvent(
            eventType=event_v2.RunState[state],
            eventTime=dt.datetime.fromtimestamp(self._clock.now_ms() / 1_000, dt.UTC).isoformat(),
            run=event_v2.Run(self._run_id, facets),
            job=event_v2.Job(namespace, self._job, {"jobType": kind}),
            inputs=[event_v2.InputDataset(one.namespace, one.name) for one in self._reads],
            outputs=[event_v2.OutputDataset(one.namespace, one.name) for one in self._writes],
            producer=PRODUCER,
        )


def _is_disabled() -> bool:
    return os.environ.get(_DISABLED_VARIABLE, "").lower() in {"true", "1"}
