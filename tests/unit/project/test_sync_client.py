"""The synchronous client is written by a program, and has what the asynchronous one has."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from timerwheel.client import Client, Draft, Group, SyncClient, SyncGroup
from timerwheel.client.dead_letters import DeadLetters
from timerwheel.client.lease import Lease
from timerwheel.client.schedules import Schedules
from timerwheel.client.subscriptions import Subscriptions
from timerwheel.client.sync_client import SyncDeadLetters, SyncLease, SyncSchedules, SyncSubscriptions

ROOT = Path(__file__).parents[3]
PAIRS = [
    (Client, SyncClient),
    (Group, SyncGroup),
    (Lease, SyncLease),
    (DeadLetters, SyncDeadLetters),
    (Schedules, SyncSchedules),
    (Subscriptions, SyncSubscriptions),
]
# What only the asynchronous client itself uses.
INTERNAL = {
    Client: {"open", "forget"},
    Group: {"path"},
    Lease: {"acknowledged", "failed"},
}


def test_the_sync_client_is_what_its_program_writes():
    command = [sys.executable, ROOT / "packaging" / "sync_client.py", "--check"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run `make sync` (python packaging/sync_client.py)\n{done.stderr}"


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


def test_send_takes_what_a_draft_may_have():
    fields = Draft.__required_keys__ | Draft.__optional_keys__
    for method in (Client.send, Client.begin):
        assert set(inspect.signature(method).parameters) - {"self"} == fields
