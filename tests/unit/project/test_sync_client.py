"""The synchronous client has what the asynchronous one has."""

import inspect

import pytest

from timerwheel.client import Client, Draft, Group, SyncClient, SyncGroup
from timerwheel.client.acks import Acks
from timerwheel.client.dead_letters import DeadLetters
from timerwheel.client.lease import Lease
from timerwheel.client.schedules import Schedules
from timerwheel.client.subscriptions import Subscriptions
from timerwheel.client.sync_client import (
    SyncAcks,
    SyncDeadLetters,
    SyncLease,
    SyncSchedules,
    SyncSubscriptions,
    SyncTasks,
)
from timerwheel.client.tasks import Tasks

PAIRS = [
    (Client, SyncClient),
    (Group, SyncGroup),
    (Lease, SyncLease),
    (DeadLetters, SyncDeadLetters),
    (Schedules, SyncSchedules),
    (Subscriptions, SyncSubscriptions),
    (Tasks, SyncTasks),
    (Acks, SyncAcks),
]
# What only the asynchronous client itself uses.
INTERNAL = {
    Client: {"open", "forget"},
    Group: {"path", "clock"},
    Lease: {"acknowledged", "failed", "handled_until", "patience"},
}


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS, ids=lambda each: each.__name__)
def test_each_method_has_the_same_parameters_in_both_clients(asynchronous, synchronous):
    public = {name for name in vars(asynchronous) if not name.startswith("_")}
    assert public - INTERNAL.get(asynchronous, set()) <= {
        name for name in dir(synchronous) if not name.startswith("_")
    }
    for name in public - INTERNAL.get(asynchronous, set()):
        one, other = getattr(asynchronous, name), getattr(synchronous, name)
        if not inspect.isfunction(one):
            continue
        there = inspect.signature(one).parameters.values()
        here = inspect.signature(other).parameters.values()
        assert [(each.name, each.kind, each.default) for each in there] == [
            (each.name, each.kind, each.default) for each in here
        ], name
        assert not any(each.kind is each.VAR_KEYWORD for each in here), f"{name} hides its parameters"
        assert other.__doc__, name
        assert "await" not in other.__doc__, f"{name} is not awaited"


@pytest.mark.parametrize("synchronous", [each for _, each in PAIRS], ids=lambda each: each.__name__)
def test_what_a_sync_method_returns_has_no_event_loop(synchronous):
    for name, method in inspect.getmembers(synchronous, inspect.isfunction):
        if not name.startswith("_"):
            assert "Async" not in str(inspect.signature(method)), name
            assert not inspect.iscoroutinefunction(method), name


def test_both_clients_have_the_same_objects_for_resources():
    there, here = vars(Client("http://127.0.0.1:1")), vars(SyncClient("http://127.0.0.1:1"))
    assert {name for name in there if not name.startswith("_")} <= here.keys()


def test_send_takes_what_a_draft_may_have():
    fields = Draft.__required_keys__ | Draft.__optional_keys__
    for method in (Client.send, Client.begin):
        assert set(inspect.signature(method).parameters) - {"self"} == fields
