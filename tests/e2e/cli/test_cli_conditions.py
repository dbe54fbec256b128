"""`--etag` and `--if-match`: commands that change only what nobody else has changed since."""

from functools import partial

import pytest

from tests.harness.processes import serving, timerwheel

URL = "https://example.com/hook"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("conditions") / "data") as service:
        yield partial(timerwheel, TIMERWHEEL_URL=service.url)


def _message(run):
    message_id = run("send", "m", "x", "--delay", "1h", "-o", "id").out.strip()
    return ("get", message_id), ("reschedule", message_id, "--delay"), ("recall", message_id), ("2h", "3h")


def _key(run):
    run("send", "k", "x", "--delay", "1h", "--dedup-key", "a")
    named = ("--key", "k", "a")
    return ("get", *named), ("reschedule", *named, "--delay"), ("recall", *named), ("2h", "3h")


def _topic(run):
    run("send", "t", "x")
    return ("topics", "show", "t"), ("topics", "set", "t", "--queues"), ("topics", "delete", "t", "-y"), "23"


def _group(run):
    run("groups", "put", "g", "workers")
    named = ("g", "workers")
    change = ("groups", "put", *named, "--max-attempts")
    return ("groups", "show", *named), change, ("groups", "delete", *named, "-y"), "23"


def _schedule(run):
    run("schedules", "put", "s", "jobs", "--every", "1h")
    change = ("schedules", "put", "s", "jobs", "--every")
    return ("schedules", "show", "s"), change, ("schedules", "delete", "s", "-y"), ("2h", "3h")


def _subscription(run):
    run("subscriptions", "add", "p", URL, "--id", "one", "--paused")
    change = ("subscriptions", "update", "one", "--concurrency")
    return ("subscriptions", "show", "one"), change, ("subscriptions", "delete", "one", "-y"), "23"


@pytest.mark.parametrize("make", [_message, _key, _topic, _group, _schedule, _subscription])
def test_a_command_changes_what_was_seen_and_leaves_what_was_changed_since(run, make):
    show, change, end, (first, second) = make(run)
    tag = run(*show, "--etag").out.strip()
    assert run(*show, "--etag", "--json").json == {"etag": tag}
    assert run(*change, first, "--if-match", f'"{tag}"').code == 0
    before = run(*show, "--etag").out.strip()
    assert before != tag
    for stale in ((*change, second), end):
        refused = run(*stale, "--if-match", tag)
        assert (refused.code, refused.out, len(refused.err.splitlines())) == (1, "", 1)
        assert "has changed" in refused.err
    assert run(*show, "--etag").out.strip() == before
    assert run(*end, "--if-match", before).code == 0


def test_a_condition_is_for_one_message(run):
    for many in (
        ("recall", "a", "b"),
        ("recall", "--topic", "m"),
        ("reschedule", "--topic", "m", "--delay", "1h"),
    ):
        refused = run(*many, "--if-match", "x")
        assert (refused.code, "--if-match is for one message" in refused.err) == (2, True)


def test_a_star_asks_that_it_exists(run):
    refused = run("groups", "put", "none", "nobody", "--if-match", "*")
    assert (refused.code, refused.out) == (1, "")
    assert "none" not in run("topics", "list", "-o", "id").out.split()
