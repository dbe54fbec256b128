"""`top`: the live view, in a terminal as narrow as it may be, in a pipe, and as JSON."""

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from rich.console import Console

from tests.harness.processes import COMMAND, PATIENCE_S, environment, serving, started, timerwheel
from timerwheel.cli import top
from timerwheel.cli.output import Output
from timerwheel.cli.top import Seen, frame
from timerwheel.client import LevelSlots, Tick, Wheel
from timerwheel.runtime.counters import LATENESS_BOUNDS_MS

NOW_MS = 1_800_000_000_000
_HOME = "\x1b[H"
_DRAWING = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("top") / "d") as running:
        timerwheel("send", "orders", "x", "--delay", "1h", "--url", running.url)
        yield running


@contextmanager
def in_terminal(columns: int, *arguments: object) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command in a terminal of its own, so many columns wide; and the other end of that terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    changed = environment(TERM="xterm-256color")
    changed.pop("COLUMNS")
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=changed,
    )
    os.close(theirs)
    watchdog = threading.Timer(PATIENCE_S, process.kill)
    watchdog.start()
    try:
        yield process, ours
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, wanted: str) -> str:
    shown = b""
    while wanted.encode() not in shown:
        part = os.read(terminal, 1 << 16)
        assert part, shown
        shown += part
    return shown.decode()


def read_rest(terminal: int) -> str:
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            return shown.decode()


def test_in_a_terminal_it_fits_and_ctrl_c_ends_it_and_leaves_the_terminal_as_it_was(service):
    columns = 30
    with in_terminal(columns, "top", "--url", service.url) as (process, terminal):
        shown = read_until(terminal, "days")
        process.send_signal(signal.SIGINT)
        shown += read_rest(terminal)
        assert process.wait() == 0
    assert "ready" in shown
    lines = _DRAWING.sub("", shown.replace(_HOME, "\n")).split("\n")
    assert max(len(line.rstrip("\r")) for line in lines) <= columns
    for entered, left in (("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h")):
        assert shown.count(entered) >= 1
        assert shown.rindex(left) > shown.rindex(entered)
    assert "Traceback" not in shown


def test_once_it_prints_what_it_saw_in_a_second(service):
    shown = timerwheel("top", "--once", "--url", service.url)
    assert (shown.code, shown.err) == (0, "")
    for words in ("ready", "scheduled", "fired", "/s", "seconds", "days"):
        assert words in shown.out
    found = timerwheel("top", "--once", "--json", "--url", service.url).json
    assert found["status"] == "ready"
    assert found["pending"] == 1
    assert found["rates"]["accepted"] == 0
    assert found["measures"]["accepted_total"] == 1


def test_a_service_that_is_not_there_is_one_line():
    refused = timerwheel("top", "--url", "http://127.0.0.1:1")
    assert (refused.code, len(refused.err.splitlines())) == (3, 1)


def test_in_a_pipe_it_prints_a_line_each_second_until_the_service_stops(tmp_path):
    with serving(tmp_path / "d") as running, started("top", "--url", running.url) as process:
        lines = [process.stdout.readline() for _ in range(2)]
        assert running.end(signal.SIGTERM).code == 0
        assert process.wait() in (1, 3)
        assert len(process.stderr.read().splitlines()) == 1
    assert all("ready, 0 scheduled" in line for line in lines)
    assert ["/s fired" in line for line in lines] == [False, True]


def test_in_a_pipe_it_says_that_its_token_was_revoked(tmp_path):
    made = [
        timerwheel("tokens", "create", name, "--scope", "admin", "--data", tmp_path, "--json").json["token"]
        for name in ("watcher", "other")
    ]
    with (
        serving(tmp_path) as running,
        started("top", "--url", running.url, TIMERWHEEL_TOKEN=made[0]) as process,
    ):
        process.stdout.readline()
        timerwheel("tokens", "revoke", "watcher", "--data", tmp_path)
        assert process.wait() == 1
        assert process.stderr.read() == "timerwheel: the token does not exist, or was revoked\n"


def test_in_a_pipe_it_says_that_the_service_broke_off(tmp_path):
    with serving(tmp_path / "d") as running, started("top", "--url", running.url) as process:
        process.stdout.readline()
        running.end(signal.SIGKILL)
        assert process.wait() == 3
        assert process.stderr.read().startswith(f"timerwheel: {running.url} broke off its answer; ")


# ---------------------------------------------------------------------- drawing


def tick(at_s: int, **totals: int) -> Tick:
    return Tick(NOW_MS + at_s * 1_000, "ready", 7, {f"{name}_total": count for name, count in totals.items()})


def drawn(seen: Seen, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(frame(seen, "http://127.0.0.1:8686", Output(utc=True), width))
    return console.export_text()


def test_rates_are_what_was_done_between_two_looks():
    seen = Seen()
    seen.take(tick(0, fired=10, accepted=5))
    assert seen.rates == {}
    seen.take(tick(2, fired=30, accepted=5))
    assert (seen.rates["fired"], seen.rates["accepted"]) == (10.0, 0.0)


def test_a_restarted_service_has_no_rates_until_the_next_tick():
    seen = Seen()
    seen.take(tick(0, fired=10))
    seen.take(tick(1, fired=2))
    assert seen.rates == {}
    seen.take(tick(2, fired=5))
    assert seen.rates["fired"] == 3.0


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_a_frame_is_no_wider_than_the_terminal_and_has_every_level(width):
    seen = Seen()
    seen.take(tick(0, fired=10))
    seen.take(tick(1, fired=1_000_000))
    slots = [(NOW_MS + at * 1_000, at) for at in range(1, 400)]
    seen.take(Wheel(NOW_MS, [LevelSlots("second", slots, 3), LevelSlots("day", [], 0)]))
    lines = drawn(seen, width).splitlines()
    assert max(map(len, lines)) <= width
    assert [
        word for word in ("seconds", "minutes", "hours", "days") if not any(word in one for one in lines)
    ] == []


@pytest.mark.parametrize("width", [80, 120, 300])
def test_a_rush_that_a_level_holds_is_drawn_in_its_row_however_narrow_the_terminal_is(width):
    seen = Seen()
    seen.take(tick(0, fired=10))
    seen.take(Wheel(NOW_MS, [LevelSlots("second", [(NOW_MS + 170_000, 900)], 0)]))
    lines = drawn(seen, width).splitlines()
    [row] = [line for line in lines if line.startswith("seconds")]
    assert row.count("█") == 1
    assert any(line.startswith("a cell is ") for line in lines)


def test_troubles_stand_above_the_numbers_and_in_the_line_of_a_pipe():
    seen = Seen()
    seen.take(tick(0, fired=10))
    assert "overdue" not in drawn(seen, 200)
    assert "no new messages" not in drawn(seen, 200)
    refusing = msgspec.structs.replace(tick(1), refusing="the disk is full\x1b[31m")
    seen.take(refusing)
    seen.take(Wheel(NOW_MS, [LevelSlots("second", [], 0)], overdue=1_234))
    lines = drawn(seen, 200).splitlines()
    assert lines[1:3] == ["refuses new messages: the disk is full\\x1b[31m", "1,234 overdue"]
    line = top.line_of(seen, refusing, Output(utc=True))
    assert "7 scheduled, refuses new messages: the disk is full\\x1b[31m, 1,234 overdue, " in line
    seen.take(tick(2))
    seen.take(Wheel(NOW_MS, [LevelSlots("second", [], 0)]))
    assert lines[1:3] != drawn(seen, 200).splitlines()[1:3]
    assert "overdue" not in drawn(seen, 200)


@pytest.mark.parametrize(
    ("late_ms", "shown"),
    [
        (0.0, "0.0 ms"),
        (4.25, "4.2 ms"),
        (9_999, "9,999.0 ms"),
        (90_400.5, "1m30s"),
        (3_600_000, "1h or more"),
    ],
)
def test_lateness_is_shown_in_a_unit_that_is_read(late_ms, shown):
    seen = Seen()
    late = msgspec.structs.replace(tick(0), measures={"lateness_ms_p50": 0.0, "lateness_ms_p99": late_ms})
    seen.take(late)
    assert f"p50 0.0 ms, p99 {shown}" in drawn(seen, 200)
    assert top.line_of(seen, late, Output()).endswith(f"p99 {shown} late")


def test_the_longest_lateness_that_is_shown_is_the_longest_that_is_counted():
    assert LATENESS_BOUNDS_MS[-1] == top.LATE_MS_MAX


def test_before_the_first_word_it_says_what_it_waits_for():
    assert "waiting for data" in drawn(Seen(), 80)
