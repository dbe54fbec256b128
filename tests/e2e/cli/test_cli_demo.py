"""`timerwheel demo` as a process: what it shows, that it goes on, and that nothing of it is left."""

import contextlib
import os
import shlex
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from tests.harness.browser_seed import PATIENCE_S, ask
from tests.harness.processes import Result, started, timerwheel
from timerwheel.clock import SystemClock
from timerwheel.demo import shop
from timerwheel.demo.service import remove_leftovers
from timerwheel.store.lock import is_locked


class Demo(NamedTuple):
    process: Any
    facts: dict[str, Any]
    temporary: Path

    @property
    def url(self) -> str:
        return self.facts["url"]

    def end(self, number: int) -> Result:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return Result(self.process.returncode, out, err)

    def letters(self) -> list[dict[str, Any]]:
        """The dead letters of the packers."""
        path = f"/v1/topics/{shop.PARCELS}/groups/packers/dead-letters"
        return ask(self.url, "GET", path)["letters"]

    def delivered(self, topic: str) -> int:
        """How many messages of a topic were delivered."""
        return ask(self.url, "GET", f"/v1/topics/{topic}")["visible"]

    def attempts(self, subscription: str) -> tuple[int, int]:
        """How many messages an endpoint took, and how many attempts failed."""
        stats = ask(self.url, "GET", f"/v1/subscriptions/{subscription}/stats")
        return stats["delivered"], stats["failed"]


@contextmanager
def showing(temporary: Path, *flags: object, **variables: str) -> Iterator[Demo]:
    """A demo whose temporary directory is here, from when it says where it is."""
    temporary.mkdir()
    variables = {"TMPDIR": str(temporary), **variables}
    with started("demo", "--json", *flags, **variables) as process:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Demo(process, orjson.loads(line), temporary)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    with showing(tmp_path_factory.mktemp("demo") / "t", "--no-open", "--port", 0, "--rate", 50) as demo:
        yield demo


def until(found: Callable[[], bool]) -> None:
    """Ask until it is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes_in(folder: Path) -> list[int]:
    """The processes whose command line names this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def test_everything_that_a_service_has_is_there(demo):
    topics = {one["topic"] for one in ask(demo.url, "GET", "/v1/topics")["topics"]}
    assert {shop.TIMEOUTS, shop.PARCELS, shop.MAILS, shop.REMINDERS, shop.EVENING_OFFER} <= topics
    groups = {one["group"] for one in ask(demo.url, "GET", "/v1/groups")["groups"]}
    assert {"closers", "packers", "mailers", "push-warehouse", "push-crm"} <= groups
    assert len(ask(demo.url, "GET", "/v1/schedules")["schedules"]) == 4
    subscriptions = ask(demo.url, "GET", "/v1/subscriptions")["subscriptions"]
    assert {one["id"] for one in subscriptions} == {"warehouse", "crm"}


def test_messages_are_scheduled_from_seconds_to_weeks_ahead(demo):
    assert demo.facts["scheduled"] > 10_000
    slots = timerwheel("slots", "--data", demo.facts["data"], "--json").json["slots"]
    assert {slot["level"] for slot in slots} == {"second", "minute", "hour", "day"}


def test_dead_letters_come_from_attempts_that_failed(demo):
    until(lambda: len(demo.letters()) >= shop.WRONG_ADDRESSES_AT_START)
    for letter in demo.letters()[: shop.WRONG_ADDRESSES_AT_START]:
        assert letter["attempts"] == 3
        assert letter["reason"] == "the carrier does not know this address"


def test_orders_go_on_and_of_two_endpoints_one_is_dead(demo):
    until(lambda: demo.delivered(shop.MAILS) > shop.MAILS_AT_START)  # new orders were confirmed
    until(lambda: demo.attempts("warehouse")[0] > 0)
    until(lambda: demo.attempts("crm")[1] > 0)
    assert demo.attempts("crm")[0] == 0


def test_ctrl_c_leaves_nothing_and_settings_of_another_service_do_not_reach_the_demo(tmp_path):
    (tmp_path / "d").mkdir()
    variables = {"TIMERWHEEL_DATA": str(tmp_path / "d"), "TIMERWHEEL_PORT": "no port"}
    with showing(tmp_path / "t", "--no-open", "--port", 0, **variables) as demo:
        assert [path.name for path in demo.temporary.iterdir()] == [Path(demo.facts["data"]).parent.name]
        assert demo.end(signal.SIGINT) == Result(0, "", "")
        assert list(demo.temporary.iterdir()) == []
        assert processes_in(demo.temporary) == []
    assert list((tmp_path / "d").iterdir()) == []


def test_a_demo_that_is_killed_takes_its_service_with_it_and_the_next_one_removes_its_directory(tmp_path):
    with showing(tmp_path / "t", "--no-open", "--port", 0) as demo:
        demo.end(signal.SIGKILL)
        until(lambda: not processes_in(demo.temporary))
        (left,) = demo.temporary.iterdir()
    until(lambda: not is_locked(left / "data"))
    os.utime(left, (0, 0))
    remove_leftovers(demo.temporary, SystemClock().now_ms())
    assert list(demo.temporary.iterdir()) == []


def test_the_charts_begin_after_the_service_was_filled(demo):
    until(lambda: len(ask(demo.url, "GET", "/v1/live/history")["accepted"]) > 0)
    most = max(ask(demo.url, "GET", "/v1/live/history")["accepted"])
    assert most < demo.facts["scheduled"] / 10


def test_the_commands_that_it_suggests_can_be_copied_into_a_shell(tmp_path):
    temporary = tmp_path / "a folder & more"
    temporary.mkdir()
    with started("demo", "--no-open", "--port", 0, TMPDIR=str(temporary)) as process:
        lines = [process.stdout.readline().strip() for _ in range(6)]
        [line] = [line for line in lines if " slots " in line]
        _, *words = shlex.split(line)
        assert "scheduled" in timerwheel(*words).out


def test_without_its_service_the_demo_ends_with_an_error(tmp_path):
    with showing(tmp_path / "t", "--no-open", "--port", 0) as demo:
        os.kill(demo.facts["pid"], signal.SIGKILL)
        out, err = demo.process.communicate(timeout=PATIENCE_S)
        assert (demo.process.returncode, out) == (1, "")
        assert err == "timerwheel: the service of the demo ended with exit code -9\n"
        assert list(demo.temporary.iterdir()) == []


@pytest.mark.torture
def test_with_a_display_the_console_is_opened_in_the_browser(tmp_path):
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\necho "$1" > {tmp_path}/opening && mv {tmp_path}/opening {tmp_path}/opened\n'
    )
    browser.chmod(0o755)
    with showing(tmp_path / "t", "--port", 0, DISPLAY=":0", BROWSER=f"{browser} %s") as demo:
        until((tmp_path / "opened").exists)
        assert (tmp_path / "opened").read_text() == f"{demo.url}\n"
        assert demo.end(signal.SIGHUP) == Result(0, "", "")  # the terminal was closed


def test_a_port_in_use_is_one_line_that_names_it(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = timerwheel("demo", "--no-open", "--port", port, TMPDIR=str(tmp_path))
    assert (refused.code, refused.out) == (1, "")
    assert len(refused.err.splitlines()) == 1
    assert f":{port}" in refused.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--rush", "2020-01-01"), "'2020-01-01' is in the past"),
        (("--rush", "soonish"), "--rush"),
        (("--rate", "0"), "--rate"),
        (("--rate", "101"), "--rate"),
        (("--port", "70000"), "--port"),
    ],
)
def test_what_the_demo_cannot_do_is_wrong_usage(flags, named):
    refused = timerwheel("demo", "--no-open", *flags)
    assert refused.code == 2
    assert named in refused.err
