"""The service for tests of users: a clock that the test moves, data of its own, both kinds of tests."""

import datetime as dt
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from timerwheel import Client
from timerwheel.client import Exponential, GroupConfig, NotFoundError
from timerwheel.testing.plugin import timerwheel_client, timerwheel_service
from timerwheel.testing.service import LocalService

__all__ = ["timerwheel_client", "timerwheel_service"]  # fixtures
ROOT = Path(__file__).parents[3]


def test_a_message_is_delivered_when_the_test_says_so(timerwheel_service, timerwheel_client):
    sent = timerwheel_client.send("orders", "close order 17", delay="30m")
    timerwheel_service.advance("29m59s")
    assert timerwheel_client.get(sent.id).state == "scheduled"
    timerwheel_service.advance(dt.timedelta(seconds=1))
    message = timerwheel_client.get(sent.id)
    assert (message.state, message.delivered, message.lateness_ms) == ("delivered", sent.due, 0)
    assert timerwheel_service.now == sent.due


async def test_asynchronous_tests_use_it_as_well(timerwheel_service):
    async with Client(timerwheel_service.url) as client:
        await client.send("orders", "x", delay="40d")
        timerwheel_service.advance("40d")
        assert (await anext(client.receive("orders"))).text == "x"


def test_a_time_may_be_chosen_and_must_not_be_past(timerwheel_service, timerwheel_client):
    at = timerwheel_service.now + dt.timedelta(days=400)
    sent = timerwheel_client.send("t", "x", deliver_at=at)
    timerwheel_service.advance_to(at)
    assert timerwheel_client.get(sent.id).state == "delivered"
    with pytest.raises(ValueError, match="in the past"):
        timerwheel_service.advance_to(at - dt.timedelta(seconds=1))
    with pytest.raises(ValueError, match="time zone"):
        timerwheel_service.advance_to(dt.datetime(2100, 1, 1))  # noqa: DTZ001


def test_each_message_on_the_way_is_delivered_at_its_own_time(timerwheel_service, timerwheel_client):
    timerwheel_client.send_many(
        [{"topic": "t", "body": str(n), "delay_ms": n * 60_000} for n in range(1, 31)]
    )
    timerwheel_service.advance("30m")
    found = list(timerwheel_client.receive("t", follow=False))
    assert [message.text for message in found] == [str(n) for n in range(1, 31)]
    assert {message.lateness_ms for message in found} == {0}


def test_more_due_times_than_steps_are_all_delivered(timerwheel_service, timerwheel_client):
    timerwheel_client.send_many([{"topic": "t", "body": "x", "delay_ms": n} for n in range(1, 1001)])
    timerwheel_service.advance("1s")
    assert timerwheel_client.topic("t").visible == 1000


def test_leases_and_retries_follow_the_clock(timerwheel_service, timerwheel_client):
    group = timerwheel_client.group("t", "g")
    group.put(GroupConfig(backoff=Exponential(initial_ms=60_000)))
    timerwheel_client.send("t", "x")
    [first] = group.receive(invisible_ms=30_000)
    timerwheel_service.advance("30s")
    assert group.receive() == []
    timerwheel_service.advance("1m")
    [second] = group.receive()
    assert (first.id, second.attempt) == (second.id, 2)


def test_a_schedule_runs_each_time(timerwheel_service, timerwheel_client):
    timerwheel_client.schedules.put("tidy", "t", every="10m")
    timerwheel_service.advance("1h")
    assert timerwheel_client.topic("t").visible == 6


def test_two_services_of_one_test_have_clocks_of_their_own(timerwheel_service, timerwheel_client):
    with LocalService() as other, other.client() as its_client:
        sent = [client.send("t", "x", delay="30m") for client in (timerwheel_client, its_client)]
        other.advance("30m")
        assert timerwheel_client.get(sent[0].id).state == "scheduled"
        assert its_client.get(sent[1].id).state == "delivered"
        timerwheel_service.advance("30m")
        assert timerwheel_client.get(sent[0].id).state == "delivered"


def test_services_share_nothing_and_leave_nothing():
    with LocalService() as one, LocalService(group_items_max=10) as other:
        with one.client() as client:
            client.send("t", "x")
        with other.client() as client, pytest.raises(NotFoundError):
            client.topic("t")
        folders = [one.data, other.data]
        assert all(folder.exists() for folder in folders)
    assert not any(folder.exists() for folder in folders)


def test_a_forked_child_that_closes_the_service_leaves_it_to_its_parent(
    timerwheel_service, timerwheel_client
):
    sent = timerwheel_client.send("orders", "x", delay="30m")
    child = multiprocessing.get_context("fork").Process(target=timerwheel_service.close)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert timerwheel_service.data.exists()
    timerwheel_service.advance("30m")
    assert timerwheel_client.get(sent.id).state == "delivered"


def test_a_wrong_setting_is_an_error_and_leaves_nothing():
    before = set(Path("/dev/shm").glob("timerwheel-test-*"))
    with pytest.raises(TypeError):
        LocalService(no_such_setting=1)
    assert set(Path("/dev/shm").glob("timerwheel-test-*")) == before


USERS_TEST = """
def test_order(timerwheel_service, timerwheel_client):
    timerwheel_client.send("orders", "x", delay="30m")
    timerwheel_service.advance("30m")
    assert next(timerwheel_client.receive("orders")).text == "x"
"""
UNUSED = """
import sys
def test_nothing():
    assert not [name for name in sys.modules if name.startswith("timerwheel") and "testing" not in name
                and name not in ("timerwheel",)]
    assert "numpy" not in sys.modules
"""


SIDE_BY_SIDE = ["-p", "xdist.plugin", "-n", "2"]


@pytest.mark.parametrize(("program", "more"), [(USERS_TEST, []), (UNUSED, []), (USERS_TEST, SIDE_BY_SIDE)])
def test_the_plugin_gives_the_fixtures_and_loads_nothing_unless_they_are_used(tmp_path, program, more):
    (tmp_path / "test_mine.py").write_text(program)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "timerwheel.testing.plugin",
        "-p",
        "no:cacheprovider",
        *more,
    ]
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
