"""The example of a worker against a service in a process of its own."""

import subprocess
import sys

from tests.harness.processes import PATIENCE_S, ROOT, environment, serving

PROGRAM = ROOT / "examples" / "worker.py"


def _run(*arguments):
    return subprocess.run(
        [sys.executable, PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PATIENCE_S,
        check=False,
    )


def test_every_job_is_done_but_the_poison_which_is_a_dead_letter(tmp_path):
    with serving(tmp_path / "data", "--redelivery-delay", "100ms") as service:
        done = _run("--url", service.url, "--jobs", 24)
    assert done.returncode == 0, done.stderr
    assert "done 20 in" in done.stdout
    assert "4 dead letters" in done.stdout
    assert "after 3 attempts: ValueError: this job cannot be done" in done.stdout
    assert done.stderr == ""


def test_a_service_that_is_not_there_is_one_line_and_exit_code_1():
    done = _run("--url", "http://127.0.0.1:1", "--jobs", 1)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
