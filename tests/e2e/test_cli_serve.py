"""`timerwheel serve` as a process; and how the other end-to-end tests start it and run commands."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import orjson
import pytest

from timerwheel.cli.main import app
from timerwheel.cli.serve import HELP, flag_of
from timerwheel.settings import Settings

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "timerwheel.cli.main"]
PATIENCE_S = 60


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document that stdout holds."""
        assert self.code == 0, self.err
        return orjson.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON documents that stdout holds, one a line."""
        assert self.code == 0, self.err
        return [orjson.loads(line) for line in self.out.splitlines()]


def environment(**changed: str) -> dict[str, str]:
    """This process's environment without settings of the machine that would change an answer."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIMERWHEEL_")}
    return {**kept, "PYTHONPATH": str(ROOT), "TZ": "UTC", "LC_ALL": "C.UTF-8", "COLUMNS": "200", **changed}


def timerwheel(*arguments: object, stdin: bytes = b"", **changed: str) -> Result:
    """Run one command to its end; keywords are environment variables."""
    done = subprocess.run(
        [*COMMAND, *map(os.fsencode, map(str, arguments))],
        input=stdin,
        capture_output=True,
        env=environment(**changed),
        timeout=PATIENCE_S,
        check=False,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


@contextmanager
def started(*arguments: object, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on by itself; it is killed if the test takes too long, and at the end."""
    with subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=cwd,
    ) as process:
        watchdog = threading.Timer(PATIENCE_S, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


class RunningService(NamedTuple):
    """A service that takes messages."""

    process: subprocess.Popen[str]
    url: str
    data: Path

    def end(self, number: int) -> Result:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        out, err = self.process.communicate()
        return Result(self.process.returncode, out, err)


@contextmanager
def serving(data: Path, *flags: object, cwd: Path | None = None) -> Iterator[RunningService]:
    """`timerwheel serve` on a free port, from when it says it is ready."""
    with started("serve", "--port", 0, "--data", data, "--disk-reserve", 0, *flags, cwd=cwd) as process:
        line = process.stdout.readline()
        found = re.search(r"http://[0-9.]+:[0-9]+", line)
        if found is None:
            process.kill()
            pytest.fail(f"not ready: {line!r} {process.stderr.read()}")
        yield RunningService(process, found[0], data)


def test_serve_says_in_one_line_that_it_is_ready_and_where(tmp_path):
    with started("serve", "--port", 0, "--data", tmp_path / "d", "--flush", "async") as process:
        line = process.stdout.readline()
        assert re.search(r"http://127\.0\.0\.1:[0-9]+", line)
        assert str(tmp_path / "d") in line
        assert "flush async" in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_service_with_exit_code_0_and_in_silence(tmp_path, number):
    with serving(tmp_path / "d") as service:
        assert service.end(number) == Result(0, "", "")


def test_serve_as_json_tells_where_it_is(tmp_path):
    with started("serve", "--port", 0, "--data", tmp_path / "d", "--json") as process:
        told = orjson.loads(process.stdout.readline())
        assert told["url"].startswith("http://127.0.0.1:")
        assert told == {**told, "data": str(tmp_path / "d"), "flush": "sync", "pid": process.pid}


def test_a_data_directory_in_use_is_one_line_that_names_the_owner(tmp_path):
    with serving(tmp_path / "d") as service:
        refused = timerwheel("serve", "--port", 0, "--data", service.data)
        assert refused.code == 1
        assert refused.out == ""
        assert len(refused.err.splitlines()) == 1
        assert f"process {service.process.pid}" in refused.err


def test_a_port_in_use_is_one_line_that_names_it(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = timerwheel("serve", "--port", port, "--data", tmp_path / "d")
    assert refused.code == 1
    assert len(refused.err.splitlines()) == 1
    assert f":{port}" in refused.err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--max-delay", "10x"], "10x"),
        (["--max-delay", "-1s"], "-1s"),
        (["--segment-size", "1"], "segment_size_bytes"),
        (["--segment-size", "12 parsecs"], "12 parsecs"),
        (["--flush", "perhaps"], "perhaps"),
        (["--levels", "1s 2x"], "2x"),
        (["--port", "70000"], "--port"),
        (["--queues-per-topic", "many"], "--queues-per-topic"),
        (["--no-such-flag"], "--no-such-flag"),
    ],
)
def test_a_bad_setting_is_named_and_is_wrong_usage(tmp_path, flags, named):
    refused = timerwheel("serve", "--port", 0, "--data", tmp_path / "d", *flags)
    assert refused.code == 2
    assert refused.out == ""
    assert named in refused.err


def test_a_data_directory_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    refused = timerwheel("serve", "--port", 0, "--data", tmp_path / "file" / "d")
    assert refused.code == 1
    assert len(refused.err.splitlines()) == 1


def test_every_setting_is_a_flag_with_a_help():
    fields = [field.name for field in msgspec.structs.fields(Settings)]
    assert HELP.keys() | {"data"} == set(fields)
    shown = timerwheel("serve", "--help").out
    assert [name for name in fields if f"{flag_of(name)} " not in shown] == []


def test_settings_are_given_with_units_and_taken(tmp_path):
    flags = ("--max-delay", "1y", "--levels", "1s 1d", "--body-size-max", "1KiB", "--retention", "3d")
    with serving(tmp_path / "d", *flags) as service:
        levels = timerwheel("levels", "--json", "--url", service.url).json["levels"]
        assert [level["delay_ms"] for level in levels] == [1_000, 86_400_000]
        assert timerwheel("send", "t", "--delay", "365d", "--url", service.url).code == 0
        assert timerwheel("send", "t", "--delay", "366d", "--url", service.url).code == 1
        assert timerwheel("send", "t", "x" * 1024, "--url", service.url).code == 0
        assert timerwheel("send", "t", "x" * 1025, "--url", service.url).code == 1


def test_of_two_equal_flags_the_later_one_counts(tmp_path):
    with serving(tmp_path / "first", "--data", tmp_path / "second"):
        assert not (tmp_path / "first").exists()
        assert (tmp_path / "second").exists()


def test_version_and_help_need_nothing():
    assert timerwheel("--version").out.startswith("timerwheel ")
    assert "serve" in timerwheel("--help").out


def test_the_page_on_the_command_line_names_every_command():
    page = (ROOT / "doc" / "cli.md").read_text()
    for command in app.registered_commands:
        assert f"| `{command.name}" in page
    for group in app.registered_groups:
        for command in group.typer_instance.registered_commands:
            assert re.search(rf"\| `{group.name} [a-z\\|]*\b{command.name}\b", page), (
                group.name,
                command.name,
            )
