"""The forms of `-o`, on a terminal of 80 columns and in a pipe."""

import os
import pty
import struct
import subprocess
import sys
from fcntl import ioctl
from functools import partial
from termios import TIOCSWINSZ

import pytest

from tests.harness.processes import environment, serving, timerwheel

BODY = "a body of many words, " * 12
LONG = "payments-of-all-the-shops-in-the-north"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A service with a message, a group and a topic of long names, a schedule and a subscription."""
    with serving(tmp_path_factory.mktemp("output") / "data", "--push-private-targets") as service:
        run = partial(timerwheel, TIMERWHEEL_URL=service.url)
        run("send", LONG, BODY, "--at", "2030-12-24 18:00", "--dedup-key", "k")
        run("groups", "put", LONG, f"readers-{LONG}")
        run("schedules", "put", "daily", LONG, "--cron", "0 9 * * *")
        run("subscriptions", "add", LONG, f"http://127.0.0.1:9/{LONG}", "--id", "books")
        yield service.url


@pytest.fixture
def run(url):
    return partial(timerwheel, TIMERWHEEL_URL=url)


def on_terminal(columns, *arguments, **variables):
    """What a command writes to a terminal of so many columns, as lines."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "timerwheel", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment(**variables), "TERM": "dumb", "COLUMNS": str(columns)},
    ) as process:
        os.close(theirs)
        told = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                break
            told += part
        os.close(ours)
    assert process.returncode == 0, told
    return told.decode().splitlines()


@pytest.mark.parametrize(
    "listing",
    [
        ["topics", "list"],
        ["groups", "list"],
        ["schedules", "list"],
        ["subscriptions", "list"],
        ["levels"],
    ],
    ids=" ".join,
)
def test_a_listing_fits_eighty_columns_and_splits_no_name(url, listing):
    lines = on_terminal(80, *listing, TIMERWHEEL_URL=url)
    assert all(len(line) <= 80 for line in lines), lines
    names = timerwheel(*listing, "-o", "id", TIMERWHEEL_URL=url).out.split()
    assert names
    assert all(any(name in line for line in lines) for name in names)


def test_messages_of_one_state_are_a_table_at_eighty_columns(url):
    for _ in range(2):
        timerwheel("send", "short", "x", "--delay", "11h11m", TIMERWHEEL_URL=url)
    heading, *lines = on_terminal(80, "messages", "list", "short", TIMERWHEEL_URL=url)
    assert heading.split() == ["time", "id", "topic", "body"]
    assert len(lines) == 2
    assert timerwheel("messages", "list", "short", "-o", "wide", TIMERWHEEL_URL=url).out.startswith("state")


def test_a_record_of_the_log_is_two_lines_where_one_would_be_broken(tmp_path):
    with serving(tmp_path / "data") as service:
        [made] = timerwheel("send", "t", "x", "-o", "id", TIMERWHEEL_URL=service.url).out.split()
    narrow = on_terminal(80, "log", "--data", str(tmp_path / "data"))
    assert max(map(len, narrow)) <= 80
    assert [made in line for line in narrow] == [True, False]
    assert [made in line for line in on_terminal(160, "log", "--data", str(tmp_path / "data"))] == [
        False,
        True,
    ]


def test_a_pipe_gets_whole_texts_without_colours(run):
    [_, line] = run("subscriptions", "list").out.splitlines()
    assert line.endswith(f"/{LONG}")
    assert "\x1b" not in line


def test_ids_are_printed_one_per_line_for_other_commands_to_take(run):
    made = run("send", "t", "x", "--delay", "1h", "-o", "id").out
    assert run("get", made.strip(), "--json").json["topic"] == "t"
    assert run("recall", made.strip(), "--json").json["state"] == "recalled"
    assert run("groups", "list", LONG, "-o", "id").out.splitlines() == ["push-books", f"readers-{LONG}"]
    for pair in run("groups", "list", "-o", "id").out.splitlines():
        assert run("groups", "show", *pair.split(), "-o", "id").out.strip() == pair.split()[1]
    assert run("dlq", "list", "nobody", "-o", "id").out == ""


def test_json_is_the_same_with_either_flag_and_keeps_epoch_milliseconds(run):
    [schedule] = run("schedules", "list", "-o", "json").json["schedules"]
    assert run("schedules", "list", "--json").json["schedules"] == [schedule]
    assert isinstance(schedule["next_run_ms"], int)


def test_the_wide_form_has_more_columns_and_exact_times(run):
    assert "parked" not in run("groups", "list").out
    assert "parked" in run("groups", "list", "-o", "wide").out
    wide = run("get", "--key", LONG, "k", "-o", "wide", "--utc").out
    assert "Tue 24 Dec 2030 18:00:00 UTC" in wide


def test_times_are_short_for_people_and_iso_on_demand(run):
    assert " 09:00 UTC, in " in run("schedules", "runs", "daily", "--utc").out
    assert "T09:00:00.000+00:00" in run("schedules", "runs", "daily", "--utc", "--iso").out


def test_a_form_that_a_command_does_not_have_is_refused_before_it_does_anything(run):
    for arguments, words in (
        (["groups", "list", "-o", "yaml"], "give table, wide, json or id"),
        (["groups", "ack", LONG, "g", "r", "-o", "id"], "give table, wide or json"),
        (["groups", "list", "--json", "-o", "wide"], "contradict"),
    ):
        refused = run(*arguments)
        assert (refused.code, refused.out) == (2, ""), arguments
        assert words in " ".join(refused.err.replace("│", " ").split())
