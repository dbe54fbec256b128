"""RocketMQ's C++ client against the real process: see `tests/clients/rocketmq-cpp`.

The package `rocketmq` on PyPI, of 2019, has it as a library for Linux on x86-64.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.grpc_clients import UNREACHED
from tests.harness.ports import reserved_address
from tests.harness.processes import PATIENCE_S, ROOT, serving, timerwheel

PROGRAM = ROOT / "tests" / "clients" / "rocketmq-cpp" / "scenarios.py"
CLIENT = "rocketmq==0.4.4"
ALL = ("send", "delays", "batch", "orderly", "tags", "retry", "pull")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="the library is for Linux on x86-64"
    ),
]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the client is installed."""
    folder = tmp_path_factory.mktemp("cpp")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, CLIENT],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode and any(sign in done.stderr for sign in (*UNREACHED, "No matching distribution")):
        pytest.skip(f"pip reaches no registry: {done.stderr[-500:]}")
    assert not done.returncode, done.stderr
    return folder


def run(library: Path, home: Path, address: str, *scenarios: str, token: str = "-") -> None:
    """Run scenarios; each must report that it is ok."""
    done = subprocess.run(
        [sys.executable, PROGRAM, address, token, *scenarios],
        cwd=home,  # not the repository, whose folder `rocketmq` is not the client's package
        env={**os.environ, "PYTHONPATH": str(library), "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"scenario"')]
    assert [(one["scenario"], one["problem"]) for one in results] == [(name, "") for name in scenarios], (
        done.stderr[-4_000:]
    )


def test_all_scenarios_of_the_cpp_client(library, tmp_path):
    address = reserved_address()
    with serving(tmp_path / "data", "--rocketmq", address, "--levels", "1s 5s 2s"):
        run(library, tmp_path, address, *ALL)


def test_a_cpp_client_gives_its_token_as_access_key(library, tmp_path):
    data, address = tmp_path / "data", reserved_address()
    scopes = (
        "--scope",
        "send",
        "--scope",
        "receive",
        "--topic",
        "cpp-send",
        "--topic",
        "%RETRY%cpp-send-readers",
    )
    made = timerwheel("tokens", "create", "shop", *scopes, "--data", data, "--json")
    with serving(data, "--rocketmq", address):
        run(library, tmp_path, address, "send", "refused", token=made.json["token"])
