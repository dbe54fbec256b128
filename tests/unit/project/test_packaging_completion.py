"""`timerwheel --show-completion`: the scripts of the shells, and what is answered when they ask."""

import shutil
import subprocess

import pytest
from typer.testing import CliRunner, Result

from timerwheel.cli.completion import SHELLS
from timerwheel.cli.main import app


def timerwheel(*arguments: str, **variables: str) -> Result:
    """Run the command within this process, by the name that shells know it by."""
    return CliRunner().invoke(app, arguments, env=variables, prog_name="timerwheel")


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_reads_its_script(tmp_path, shell):
    shown = timerwheel("--show-completion", shell)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "_TIMERWHEEL_COMPLETE" in shown.stdout
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    (tmp_path / "script").write_text(shown.stdout)
    read = subprocess.run(
        [program, "-n", "script"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (read.returncode, read.stderr) == (0, "")


def test_zsh_is_answered_with_commands_and_what_they_do():
    asked = {"_TIMERWHEEL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "timerwheel resch"}
    assert '"reschedule":"Change the due time of a scheduled' in timerwheel(**asked).stdout


def test_fish_is_answered_with_flags_and_what_they_do():
    asked = {
        "_TIMERWHEEL_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": "timerwheel serve --retention-in",
    }
    assert timerwheel(**asked).stdout.startswith("--retention-interval\tHow often")


def test_another_shell_is_wrong_usage_and_the_error_names_those_there_are():
    shown = timerwheel("--show-completion", "tcsh")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "'tcsh': give bash, zsh or fish" in shown.stderr
