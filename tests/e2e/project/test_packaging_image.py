"""The container image, made and run without Docker: see `tests.harness.dockerfile` for how and how far."""

import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from tests.harness.dockerfile import Image, carry_out
from tests.harness.installed import ROOT
from tests.harness.processes import PATIENCE_S, timerwheel

LINKED = ("api", "rocketmq", "spark_jobs", "store")
# A test must not be reached from other machines, nor meet other tests.
HERE = {
    "TIMERWHEEL_HOST": "127.0.0.1",
    "TIMERWHEEL_PORT": "0",
    "TIMERWHEEL_DISK_RESERVE": "0",
    "TIMERWHEEL_LOG_LEVEL": "warning",
}


def build_context(to: Path) -> Path:
    """What is sent to the builder: the file .dockerignore leaves out all but what it names."""
    first, *rest = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"
    ]
    assert (first, rest.pop()) == ("*", "**/__pycache__")
    to.mkdir()
    for line in rest:
        assert line.startswith("!"), line
        source = ROOT / line[1:]
        if source.is_dir():
            shutil.copytree(source, to / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, to)
    return to


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> Image:
    scratch = tmp_path_factory.mktemp("image")
    return carry_out(ROOT / "Dockerfile", build_context(scratch / "context"), scratch)


def run(image: Image, *arguments: str, **changed: str) -> subprocess.CompletedProcess[str]:
    """A container with a command of ours, to its end."""
    return subprocess.run(
        image.argv(*arguments),
        cwd=image.root,
        env={**image.env, **changed},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@contextmanager
def container(image: Image) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The image's own command, with the URL at which it says that it is ready."""
    with subprocess.Popen(
        image.argv(),
        cwd=image.root,
        env={**image.env, **HERE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            line = process.stdout.readline()
            found = re.search(r"http://[0-9.]+:[0-9]+", line)
            assert found, f"not ready: {line!r} {process.stderr.read()}"
            yield process, found[0]
        finally:
            process.kill()


def health(image: Image, url: str) -> int:
    """The exit code of the image's check, asked of a service elsewhere than on the usual port."""
    argv = [word.replace("127.0.0.1:8686", url.removeprefix("http://")) for word in image.healthcheck_argv()]
    assert argv != image.healthcheck_argv()
    return subprocess.run(
        argv, env=image.env, capture_output=True, timeout=PATIENCE_S, check=False
    ).returncode


def test_the_image_holds_the_service_its_data_and_no_tools_to_build_with(image):
    assert {path.name for path in image.root.iterdir()} == {"opt", "var"}
    assert (image.root / "var/lib/timerwheel").stat().st_mode & 0o777 == 0o700
    programs = {path.name for path in (image.root / "opt/timerwheel/bin").iterdir()}
    assert "timerwheel" in programs
    assert not {name for name in programs if name.startswith(("pip", "wheel"))}
    [site] = image.root.glob("opt/timerwheel/lib/python*/site-packages")
    assert not {path.name for path in site.iterdir()} & {"pip", "setuptools", "wheel"}
    own = {path.name for path in site.iterdir()} & {"timerwheel", *LINKED}
    assert own == {"timerwheel"}
    linked = {f"{name}/{file}" for name in LINKED for file in _files(ROOT / name)}
    assert _files(site / "timerwheel") == _files(ROOT / "timerwheel") | linked


def _files(package: Path) -> set[str]:
    return {
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_by_itself_the_image_lets_nobody_in_without_tokens(image, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that it listens nowhere, whatever comes
        variables = {
            "TIMERWHEEL_HOST": image.env["TIMERWHEEL_HOST"],
            "TIMERWHEEL_PORT": str(taken.getsockname()[1]),
            "TIMERWHEEL_DATA": str(tmp_path),
        }
        refused = run(image, **HERE | variables)
    assert image.env["TIMERWHEEL_HOST"] == "0.0.0.0"
    assert refused.returncode != 0
    assert "timerwheel tokens create" in refused.stderr


def test_a_container_makes_a_token_keeps_messages_over_a_restart_and_tells_its_health(image):
    made = run(image, "tokens", "create", "operator", "--scope", "admin", "--json")
    token = {"TIMERWHEEL_TOKEN": orjson.loads(made.stdout)["token"]}
    with container(image) as (process, url):
        assert health(image, url) == 0
        send = ("send", "orders", "close order 17", "--delay", "1h", "--url", url, "--json")
        assert timerwheel(*send).code != 0
        sent = timerwheel(*send, **token).json
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out, err) == (0, "", "")
    assert health(image, url) != 0
    with container(image) as (_, url):
        assert timerwheel("get", sent["id"], "--url", url, "--json", **token).json["state"] == "scheduled"
