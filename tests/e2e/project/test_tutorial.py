"""The commands of doc/tutorial.md, run as they stand, and what they should have come to.

Fenced blocks with the info string `sh` are run top to bottom in one bash with `set -e`, in an empty directory
with a service beside it, started as the page says, whose data is `./data` there. The ports of the page stand
for free ones. Blocks with any other info string (`console`) are not run.
"""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.harness.ports import reserved_port
from tests.harness.processes import PATIENCE_S, ROOT, RunningService, environment, serving, timerwheel
from tests.harness.shell import commands_in

PAGE = ROOT / "doc" / "tutorial.md"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVICE_PORT, HOOK_PORT = "8686", "9000"


def script_for(service: RunningService) -> str:
    blocks = _BLOCK.findall(PAGE.read_text())
    assert blocks, "doc/tutorial.md has no ```sh block"
    script = "\n".join(blocks).replace(f":{SERVICE_PORT}", service.url[service.url.rindex(":") :])
    assert f'("127.0.0.1", {HOOK_PORT})' in script
    return re.sub(rf"\b{HOOK_PORT}\b", str(reserved_port()), script)


def run(script: str, cwd: Path, variables: dict[str, str]) -> str:
    """Run a script, and end all that it started; what it printed."""
    (cwd / "script").write_text(script)
    with subprocess.Popen(
        ["bash", "-e", "-x", "-o", "pipefail", "script"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env=variables,
        start_new_session=True,
    ) as process:
        try:
            told, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"it hangs:\n{process.communicate()[0]}")
        if process.returncode:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it left in the background
            pytest.fail(told)
    return told


def test_the_commands_of_the_tutorial_work_as_they_stand_and_do_what_it_says(tmp_path):
    assert "timerwheel serve --push-private-targets\n" in PAGE.read_text()
    with (
        serving("data", "--push-private-targets", cwd=tmp_path) as service,
        commands_in(tmp_path / ".commands", PATIENCE_S) as path,
    ):
        told = run(script_for(service), tmp_path, environment(PATH=path, TIMERWHEEL_URL=service.url))

        closed = (tmp_path / "closed.txt").read_text().splitlines()
        assert sorted(closed) == ["close order 13: done at attempt 2", "close order 17: done at attempt 1"]
        assert "order 20 is paid" in (tmp_path / "booked.txt").read_text().splitlines()
        printed = {line for line in told.splitlines() if not line.startswith("+")}
        assert "too late: order 17 is closed, the money goes back" in printed
        assert "refused: this is not for a web site to say" in printed
        assert "there is no order 0" in told
        states = {
            key: timerwheel("get", "--key", "orders", key, "--url", service.url, "--json").json["state"]
            for key in ("order-17", "order-18", "order-19")
        }
        assert states == {"order-17": "delivered", "order-18": "recalled", "order-19": "scheduled"}
        assert "winter sale" in told.partition("slots --at")[2]
        story = told.partition("+ timerwheel explain")[2].partition("+ timerwheel groups show")[0]
        for step in (
            "sent",
            "delivered",
            "attempt 1",
            "nacked by its consumer",
            "attempt 2",
            "acknowledged",
        ):
            assert step in story
        assert (tmp_path / "backup" / "log").is_dir()
        raised = re.findall(r"^(\w+Error): ", (tmp_path / "closer.log").read_text(), re.MULTILINE)
        assert raised.count("ConnectionError") == 1
        assert set(raised) == {"ConnectionError", "ValueError"}
