"""Ctrl-C while a command is only loading its modules."""

import signal
import subprocess
import sys

import pytest

from tests.harness.processes import environment

PATIENCE_S = 60
STANDS_STILL = "import sys\nprint('loading', flush=True)\nsys.stdin.read()\n"


@pytest.fixture
def loading(tmp_path):
    """Start a command whose modules do not come to an end of loading."""
    (tmp_path / "typer.py").write_text(STANDS_STILL)
    started = []

    def start(**more):
        command = [sys.executable, "-m", "timerwheel", "levels"]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(PYTHONPATH=str(tmp_path)),
            **more,
        )
        started.append(process)
        assert process.stdout.readline() == "loading\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_ctrl_c_ends_a_command_quietly_from_the_first_moment(loading):
    process = loading()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE_S) == ("", "")
    assert process.returncode == -signal.SIGINT


def test_a_command_that_is_to_outlive_its_terminal_still_does(loading):
    process = loading(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)  # stdin ends, and with it the import
    assert "ModuleNotFoundError" in err  # what stood still is not the whole of typer
    assert process.returncode == 1
