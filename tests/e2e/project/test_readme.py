"""The commands of README.md, run as they stand.

Fenced blocks with the info string `sh` are run top to bottom in one bash with `set -e`, in an empty
directory with a service beside it, whose data is `./data` there; `localhost:8686` and `127.0.0.1:8686` stand
for that service. Blocks with any other info string (`console`) are not run.
"""

import re
import subprocess

import pytest

from tests.harness.processes import PATIENCE_S, ROOT, environment, serving
from tests.harness.shell import commands_in

README = ROOT / "README.md"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def service(tmp_path):
    with serving("data", cwd=tmp_path) as service:
        yield service


def test_the_commands_of_the_readme_work_as_they_stand(tmp_path, service):
    blocks = _BLOCK.findall(README.read_text())
    assert blocks, "README.md has no ```sh block"
    address = service.url.removeprefix("http://")
    script = re.sub(r"\b(localhost|127\.0\.0\.1):8686\b", address, "\n".join(blocks))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with commands_in(tmp_path / ".commands", PATIENCE_S) as path:
        done = subprocess.run(
            ["bash", "-e", "-x", "-o", "pipefail"],
            input=script,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(PATH=path, TIMERWHEEL_URL=service.url),
            timeout=2 * PATIENCE_S,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
