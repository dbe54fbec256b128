"""A Python that has loaded what Spark's workers need before it forks them.

Spark starts one Python for each sort of worker and forks it for each of their jobs: to make a source, to plan
a read, to run tasks. Each child loads its modules again and, after each job, collects garbage among all of
their objects: both take longer than the work of most tests. So the Python of these tests, `python_for_spark`,
loads them first and spares the collector, and is otherwise the one that runs the tests.
"""

import gc
import importlib
import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORKS = "pyspark.daemon"
_PROGRAM = """\
#!{python}
import sys

sys.path[0] = {root!r}
from tests.harness.loaded_python import main

main()
"""
_MODULES = (
    *("numpy", "pandas", "pyarrow.parquet", "fsspec", "pyspark.worker", "timerwheel.spark_jobs.formats"),
    *(
        f"pyspark.sql.worker.{name}"
        for name in ("create_data_source", "plan_data_source_read", "write_into_data_source")
    ),
)


def python_for_spark(directory: Path) -> str:
    """Write a program for `PYSPARK_PYTHON` into a directory; its path."""
    program = directory / "python"
    program.write_text(_PROGRAM.format(python=sys.executable, root=str(ROOT)))
    program.chmod(0o755)
    return str(program)


def main() -> None:
    """Be `python -m MODULE ARGUMENT...`, loaded if it forks; be Python for any other arguments."""
    if sys.argv[1] != "-m":
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path.cwd())
    if sys.argv[0] == FORKS:  # others run one job: they load what it needs
        for name in _MODULES:
            importlib.import_module(name)
        gc.freeze()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
