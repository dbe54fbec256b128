"""What reads logs in executors needs neither the index nor the service's HTTP: no LMDB, no aiohttp."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.processes import QUICK_JAVA, environment
from tests.harness.sample_log import make_sample

ROOT = Path(__file__).parents[2]
FORBIDDEN = {"lmdb", "aiohttp"}
DRIVER_ONLY = {"rebuild.job", "rebuild.index_build", "audit.report"}  # they write the index, and print
SENDING = {"schedule.sending", "schedule.job", "schedule.reach"}  # they call a service
IMPORT_EACH = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"timerwheel.spark_jobs.{name}")
    for heavy in ("lmdb", "aiohttp"):
        if sys.modules.pop(heavy, None):
            print(name, heavy)
"""


def test_modules_that_executors_import_pull_in_neither_index_nor_http():
    package = ROOT / "spark_jobs"
    names = {".".join(path.relative_to(package).with_suffix("").parts) for path in package.rglob("*.py")}
    assert names >= DRIVER_ONLY | SENDING
    asked = sorted(names - DRIVER_ONLY - SENDING)
    assert {"columns", "segments", "shuffle", "rebuild.index_rows", "forecast.job"} <= set(asked)
    command = [sys.executable, "-c", IMPORT_EACH, *asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == ""


LOOK = """
import sys
import pyarrow as pa
from timerwheel.spark_jobs.forecast.horizon import horizon_of
from timerwheel.spark_jobs.forecast.job import count_due, totals_of
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.segment_stats import ReadOptions, survey
from timerwheel.spark_jobs.session import session

data, directory = sys.argv[1:]

def look(_batches):
    yield pa.record_batch({"name": list(sys.modules)})

with session("imports", "local[2]") as spark:
    assert spark.read.format("commitlog").option("columns", "all").load(data).count()
    surveyed = survey(spark, find_logs([data]), ReadOptions(directory))
    horizon = horizon_of(1_800_000_000_000, 3_600_000)
    assert totals_of(count_due(spark, surveyed, horizon), horizon).per_second.sum() > 0
    for row in spark.range(0, 8, 1, 8).mapInArrow(look, "name string").distinct().collect():
        print(row.name)
"""


@pytest.mark.torture
def test_executors_that_did_the_work_of_jobs_have_imported_neither(tmp_path):
    # A process of its own: Spark uses its Python workers again, also those of tests that send messages.
    sample = asyncio.run(make_sample(tmp_path / "node-1"))
    command = [sys.executable, "-c", LOOK, str(sample.data), str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(**QUICK_JAVA), capture_output=True, text=True, check=True
    )
    names = set(done.stdout.split())
    assert "timerwheel.spark_jobs.segments" in names  # these workers did the work
    assert not names & FORBIDDEN
