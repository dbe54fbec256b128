"""The DAG for Airflow compiles, and runs commands that exist, with their options, one after the other.

Airflow itself is not installed for the tests: classes with the same parameters stand for its two.
"""

import re
import runpy
import shlex
import sys
from datetime import datetime, timedelta
from types import ModuleType
from zoneinfo import ZoneInfo

import pytest
import typer.main

from tests.harness.processes import ROOT
from timerwheel.cli.main import app

DAG_FILE = ROOT / "examples" / "airflow" / "timerwheel_nightly.py"
TEMPLATE = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")


class Dag:
    """Collects the tasks of its block."""

    current = None

    def __init__(self, dag_id, *, schedule, start_date, catchup, max_active_runs, default_args):
        self.dag_id, self.schedule, self.start_date = dag_id, schedule, start_date
        self.catchup, self.max_active_runs, self.default_args = catchup, max_active_runs, default_args
        self.tasks = {}

    def __enter__(self):
        Dag.current = self
        return self

    def __exit__(self, *_):
        Dag.current = None


class Bash:
    """A task that runs a command."""

    def __init__(self, *, task_id, bash_command):
        self.task_id, self.bash_command, self.after = task_id, bash_command, []
        Dag.current.tasks[task_id] = self

    def __rshift__(self, other):
        other.after.append(self.task_id)
        return other


def _instant(year, month, day, *, tz):
    return datetime(year, month, day, tzinfo=ZoneInfo(tz))


@pytest.fixture
def dag(monkeypatch):
    modules = {
        "pendulum": {"datetime": _instant},
        "airflow": {},
        "airflow.sdk": {"DAG": Dag},
        "airflow.providers": {},
        "airflow.providers.standard": {},
        "airflow.providers.standard.operators": {},
        "airflow.providers.standard.operators.bash": {"BashOperator": Bash},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    return runpy.run_path(str(DAG_FILE))["dag"]


def test_the_nightly_dag_archives_and_then_audits(dag):
    assert {name: task.after for name, task in dag.tasks.items()} == {"archive": [], "audit": ["archive"]}
    assert (dag.dag_id, dag.max_active_runs, dag.catchup) == ("timerwheel_nightly", 1, False)
    assert dag.default_args["retry_delay"] > timedelta(0)


def test_its_commands_and_their_options_exist(dag):
    commands = typer.main.get_command(app).commands
    for name, task in dag.tasks.items():
        program, command, *words = shlex.split(TEMPLATE.sub("2026-11-27", task.bash_command))
        assert (program, command) == ("timerwheel", name)
        known = {flag: one for one in commands[command].params for flag in one.opts}
        flags = [word for word in words if word.startswith("--")]
        assert set(flags) <= set(known)
        values = [word for word in words if not word.startswith("--")]
        assert len(values) == sum(not known[flag].is_flag for flag in flags)


def test_an_attempt_never_finds_the_output_of_the_one_before(dag):
    assert set(TEMPLATE.findall(dag.tasks["audit"].bash_command)) == {"ds", "ti.try_number"}


def test_all_that_the_commands_need_beside_their_options_is_in_their_environment(dag):
    assert set(dag.default_args["env"]) == {"TIMERWHEEL_DATA", "TIMERWHEEL_SPARK_MASTER"}
    assert dag.default_args["append_env"] is True
