"""`timerwheel serve` as a process."""

import re
import signal
import socket
import subprocess
import sys

import orjson
import pytest

from tests.harness.processes import ROOT, Result, serving, serving_alone, started, timerwheel
from timerwheel.cli.configuration import OPTIONS
from timerwheel.cli.table import TABLE


def test_serve_says_in_one_line_that_it_is_ready_and_where(tmp_path):
    with started("serve", "--port", 0, "--data", tmp_path / "d", "--flush", "async") as process:
        line = process.stdout.readline()
        assert re.search(r"http://127\.0\.0\.1:[0-9]+", line)
        assert str(tmp_path / "d") in line
        assert "flush async" in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_service_with_exit_code_0_and_in_silence(tmp_path, number):
    with serving_alone(tmp_path / "d", "--log-level", "warning") as service:
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


@pytest.mark.parametrize("command", [["serve", "--port", 0], ["rebuild"]])
def test_no_command_takes_a_data_directory_whose_lock_file_was_deleted(tmp_path, command):
    with serving(tmp_path / "d") as service:
        (service.data / "lock").unlink()
        refused = timerwheel(*command, "--data", service.data)
        assert refused.code == 1
        assert (
            f"{service.data} is in use by another process, {service.process.pid}; stop it first"
            in refused.err
        )
        assert "lock" not in {path.name for path in service.data.iterdir()}
        created = timerwheel(
            "tokens", "create", "one", "--scope", "send", "--topic", "a", "--data", service.data
        )
        assert created.code == 0, created.err  # what takes no lock goes on


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
        (["--segment-size", "1"], "segment_size = 1B: must be from 4KiB to 1TiB (from --segment-size)"),
        (["--segment-size", "12 parsecs"], "12 parsecs"),
        (["--flush", "perhaps"], "perhaps"),
        (["--levels", "1s 2x"], "2x"),
        (["--port", "70000"], "--port"),
        (["--queues-per-topic", "many"], "--queues-per-topic"),
        (["--cors-origins", "shop.example"], "cors_origins"),
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
    shown = timerwheel("serve", "--help").out
    assert [name for name, option in OPTIONS.items() if f"{option.flag} " not in shown] == []


def test_the_help_cuts_no_flag_on_a_narrow_terminal():
    shown = timerwheel("serve", "--help", COLUMNS="80").out
    assert [name for name, option in OPTIONS.items() if f"{option.flag} " not in shown] == []


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
    as_module = subprocess.run(
        [sys.executable, "-m", "timerwheel", "--version"], capture_output=True, text=True, check=True
    )
    assert as_module.stdout == timerwheel("--version").out


def test_the_page_on_the_command_line_names_every_command():
    page = (ROOT / "doc" / "cli.md").read_text()
    for name, entry in TABLE.items():
        if isinstance(entry, str):
            assert f"| `{name}" in page
            continue
        for command in entry.commands:
            assert re.search(rf"\| `{name} [a-z\\|]*\b{command}\b", page), (name, command)
