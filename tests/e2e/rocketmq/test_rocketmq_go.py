"""RocketMQ's own Go client for remoting against the real process: see `tests/clients/rocketmq-go`."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from tests.harness.grpc_clients import UNREACHED
from tests.harness.ports import reserved_address
from tests.harness.processes import PATIENCE_S, ROOT, serving, timerwheel

PROJECT = ROOT / "tests" / "clients" / "rocketmq-go"
GO = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
SCENARIOS = (
    *("send", "delays", "batch", "consume", "tags", "orderly", "broadcast", "pull", "retry", "rebalance"),
    "transaction",
)
ASKING = ("--transaction-timeout", "1s", "--transaction-interval", "1s")

pytestmark = [pytest.mark.clients, pytest.mark.skipif(GO is None, reason="needs Go")]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the scenarios; skips the tests if Go cannot get the client."""
    assert GO is not None
    folder = shutil.copytree(PROJECT, tmp_path_factory.mktemp("rocketmq-go") / "project")
    command = [GO, "build", "-mod=mod", "-o", "scenarios", "."]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    if done.returncode and any(sign in done.stderr for sign in UNREACHED):
        pytest.skip("Go cannot get RocketMQ's client")
    assert not done.returncode, done.stderr
    return folder / "scenarios"


@pytest.fixture
def address() -> str:
    return reserved_address()


@contextmanager
def running(
    program: Path, home: Path, address: str, *scenarios: str, token: str = "-"
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [program, address, token, *scenarios],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOME": str(home)},  # where broadcasting consumers keep their offsets
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def problems(process: subprocess.Popen[str]) -> dict[str, str]:
    """What went wrong in each scenario; empty if nothing did."""
    out, err = process.communicate(timeout=PATIENCE_S)
    found = [orjson.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert not process.returncode, err[-4_000:]
    return {one["scenario"]: one["problem"] for one in found if "scenario" in one}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_of_the_go_client(program, address, tmp_path, scenario):
    with (
        serving(tmp_path / "data", "--rocketmq", address, *ASKING),
        running(program, tmp_path, address, scenario) as process,
    ):
        assert problems(process) == {scenario: ""}


def test_a_go_client_loses_nothing_when_the_service_is_killed(program, address, tmp_path):
    flags = ("--rocketmq", address)
    with (
        serving(tmp_path / "data", *flags) as service,
        running(program, tmp_path, address, "restart") as process,
    ):
        assert process.stdout is not None
        assert any("sending" in line for line in process.stdout)
        service.end(signal.SIGKILL)
        with serving(tmp_path / "data", *flags):
            assert problems(process) == {"restart": ""}


def test_a_go_client_gives_its_token_as_access_key(program, address, tmp_path):
    scopes = ("--scope", "send", "--scope", "receive", "--topic", "*")
    made = timerwheel("tokens", "create", "go", *scopes, "--data", tmp_path / "data", "--json")
    with serving(tmp_path / "data", "--rocketmq", address):
        with running(program, tmp_path, address, "send", "consume", token=made.json["token"]) as process:
            assert problems(process) == {"send": "", "consume": ""}
        with running(program, tmp_path, address, "batch") as process:
            assert problems(process)["batch"] != ""
