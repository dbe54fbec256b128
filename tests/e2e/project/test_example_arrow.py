"""The example of bulk sends and receives in Arrow, against a service in a process of its own."""

import subprocess
import sys

import pytest

from tests.harness.processes import PATIENCE_S, ROOT, environment, serving

PROGRAM = ROOT / "examples" / "bulk_arrow.py"


def _run(*arguments):
    return subprocess.run(
        [sys.executable, PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_books_of_many_reminders_balance(tmp_path):
    with serving(tmp_path / "data") as service:
        done = _run("--url", service.url, "--messages", 12_345)
    assert done.returncode == 0, done.stderr
    assert "sent      12345" in done.stdout
    assert "The books balance" in done.stdout
    assert done.stderr == ""


def test_a_service_that_is_not_there_is_one_line_and_exit_code_1():
    done = _run("--url", "http://127.0.0.1:1", "--messages", 1)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


@pytest.mark.parametrize("arguments", [["--messages", 0], ["--messages", "x"]])
def test_wrong_usage_is_exit_code_2(arguments):
    assert _run(*arguments).returncode == 2
