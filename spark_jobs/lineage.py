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
from timerwheel.spark_jobs.storage import is_local, normal, shown

NAMESPACE = "timerwheel"
PRODUCER = "https://pypi.org/project/timerwheel"
_PREFIX = "OPENLINEAGE_"
_NAMESPACE_VARIABLE = "OPENLINEAGE_NAMESPACE"
_DISABLED_VARIABLE = "OPENLINEAGE_DISABLED"

_PROBLEM = "OpenLineage was not informed: "

Emit = Callable[[str, str | None], None]
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


def topic_of(url: str, topic: str | None) -> Dataset:
    """A topic of a service, or all of them."""
    return Dataset(f"timerwheel://{urlsplit(shown(url)).netloc}", topic or "*")


@contextlib.contextmanager
def lineage(job: str, reads: Sequence[Dataset], writes: Sequence[Dataset], warn: Warn) -> Iterator[None]:
    """Report the block as a run of this job; `warn` is called with what goes wrong with the reports."""
    emit = _emitter(job, reads, writes, warn)
    if emit is None:
        yield
        return
    emit("START", None)
    try:
        yield
    except Exception as error:
        emit("FAIL", str(error))
        raise
    except BaseException:  # a signal
        emit("ABORT", None)
        raise
    emit("COMPLETE", None)


def _emitter(job: str, reads: Sequence[Dataset], writes: Sequence[Dataset], warn: Warn) -> Emit | None:
    if not any(name.startswith(_PREFIX) for name in os.environ) or _is_disabled():
        return None
    if importlib.util.find_spec("openlineage") is None:
        warn(f"{_PROBLEM}openlineage-python is missing: `pip install 'timerwheel[lineage]'`")
        return None
    from openlineage.client import OpenLineageClient, event_v2  # noqa: PLC0415 - an extra
    from openlineage.client.facet_v2 import error_message_run, job_type_job  # noqa: PLC0415
    from openlineage.client.uuid import generate_new_uuid  # noqa: PLC0415

    clock = SystemClock()
    run_id = str(generate_new_uuid())
    kind = job_type_job.JobTypeJobFacet("BATCH", "TIMERWHEEL", "JOB", producer=PRODUCER)
    namespace = os.environ.get(_NAMESPACE_VARIABLE, NAMESPACE)
    client: Any = None

    def emit(state: str, problem: str | None) -> None:
        nonlocal client
        facets: dict[str, Any] = {}
        if problem is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                problem, "python", producer=PRODUCER
            )
        event = event_v2.RunEvent(
            eventType=event_v2.RunState[state],
            eventTime=dt.datetime.fromtimestamp(clock.now_ms() / 1_000, dt.UTC).isoformat(),
            run=event_v2.Run(run_id, facets),
            job=event_v2.Job(namespace, job, {"jobType": kind}),
            inputs=[event_v2.InputDataset(one.namespace, one.name) for one in reads],
            outputs=[event_v2.OutputDataset(one.namespace, one.name) for one in writes],
            producer=PRODUCER,
        )
        try:
            client = client or OpenLineageClient()
            client.emit(event)
        except Exception as error:  # noqa: BLE001 - of any transport; the job matters more than its report
            warn(f"{_PROBLEM}{state}: {error}")

    return emit


def _is_disabled() -> bool:
    return os.environ.get(_DISABLED_VARIABLE, "").lower() in {"true", "1"}
