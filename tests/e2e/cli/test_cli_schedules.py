"""`schedules` and `subscriptions` against a service in a process of its own."""

import json
import urllib.request
from functools import partial

import msgspec
import pytest

from tests.harness.processes import serving, timerwheel
from timerwheel.wire.schedules import Schedule

HOOK = "http://127.0.0.1:1/hook"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("schedules") / "data", "--push-private-targets") as service:
        yield service.url


@pytest.fixture
def run(url):
    return partial(timerwheel, TIMERWHEEL_URL=url)


# ---------------------------------------------------------------------- schedules


def test_a_schedule_by_cron_is_made_with_its_zone_and_shows_its_next_runs(run):
    made = run(
        *("schedules", "put", "daily", "reports", "make it", "--cron", "0 9 * * *"),
        *("--zone", "Europe/Berlin", "--start", "2030-07-01", "--property", "p=v", "--json"),
    ).json
    assert (made["cron"], made["zone"], made["body"]) == ("0 9 * * *", "Europe/Berlin", "make it")
    shown = run("schedules", "show", "daily").out
    for fact in ("0 9 * * * (Europe/Berlin)", "Mon 1 Jul 2030 07:00:00 UTC", "active", "make it", "v"):
        assert fact in shown
    berlin = run("schedules", "runs", "daily", "--count", 1, TZ="Europe/Berlin").out
    assert "1 Jul 2030 09:00, in " in berlin


def test_a_schedule_is_run_now_and_once_for_each_key(run):
    run("schedules", "put", "on-demand", "reports", "make it", "--every", "1d")
    first = run("schedules", "run", "on-demand", "--key", "ticket-17")
    assert first.out.startswith("the message of schedule on-demand is sent to reports: ")
    again = run("schedules", "run", "on-demand", "--key", "ticket-17")
    assert again.out.startswith("the message of schedule on-demand was sent before, under this key: ")
    assert again.out.split()[-1] == first.out.split()[-1]
    assert run("schedules", "run", "on-demand", "--json").json["id"] != first.out.split()[-1]


def test_a_caller_without_a_token_learns_that_it_may_do_everything(run):
    shown = run("tokens", "whoami")
    assert "admin" in shown.out
    assert run("tokens", "whoami", "--json").json["topics"] == ["*"]


def test_a_schedule_is_paused_resumed_listed_and_deleted(run):
    run("schedules", "put", "often", "t", "--every", "15m", "--end", "2040-01-01", "--jitter", "10s")
    assert run("schedules", "pause", "often").out == "schedule often is paused\n"
    assert run("schedules", "runs", "often", "--json").json == {"runs": []}
    [line] = [line for line in run("schedules", "list").out.splitlines() if line.startswith("often ")]
    assert "every 15m" in line
    assert line.rstrip().endswith("paused")
    assert ", in 14m" in run("schedules", "resume", "often").out
    [run_to_come] = run("schedules", "runs", "often", "--count", 1, "--json").json["runs"]
    assert 0 <= run_to_come["due_ms"] - run_to_come["run_ms"] <= 10_000
    refused = run("schedules", "delete", "often", stdin=b"n\n")
    assert refused.code == 1
    assert run("schedules", "show", "often").code == 0
    assert run("schedules", "delete", "often", "--yes").out == "schedule often is deleted\n"
    gone = run("schedules", "show", "often")
    assert (gone.code, gone.out, len(gone.err.splitlines())) == (1, "", 1)


def test_a_schedule_as_json_has_every_field_also_at_its_default(run):
    made = run("schedules", "put", "plain", "t", "--every", "1h", "--json").json
    expected = {
        "zone": "UTC",
        "jitter_ms": 0,
        "missed": "once",
        "paused": False,
        "problem": None,
        "cron": None,
    }
    assert {**made, **expected} == made
    assert set(made) == {field.encode_name for field in msgspec.structs.fields(Schedule)}
    [listed] = [one for one in run("schedules", "list", "--json").json["schedules"] if one["name"] == "plain"]
    assert listed.keys() == made.keys()
    assert run("schedules", "delete", "plain", "--yes", "--json").json.keys() == made.keys()


def test_the_messages_of_a_schedule_wait_and_come(run):
    run("schedules", "put", "second", "ticks", "-", "--every", "1s", stdin=b"\xff\x00")
    [tick] = run("receive", "ticks", "--follow", "--max", 1, "--json").lines
    assert tick["body_base64"] == "/wA="
    run("schedules", "delete", "second", "--yes")


# ---------------------------------------------------------------------- subscriptions


def test_a_subscription_is_made_shown_changed_and_deleted_and_its_secret_is_shown_once(run):
    made = run(
        *("subscriptions", "add", "t", HOOK, "--id", "hook", "--header", "X-Key=value", "--paused"),
        *("--backoff", "5s..1h", "--timeout", "3s", "--json"),
    ).json
    assert (made["id"], made["status"], made["timeout_ms"]) == ("hook", "paused", 3_000)
    shown = run("subscriptions", "show", "hook").out
    for fact in (HOOK, "push-hook", "paused", "5s*2..1h", "X-Key"):
        assert fact in shown
    assert made["secret"] not in shown
    assert "value" not in shown
    changed = run("subscriptions", "update", "hook", "--concurrency", 2, "--cloudevents", "--json").json
    assert (changed["concurrency"], changed["cloudevents"], changed["timeout_ms"]) == (2, True, 3_000)
    assert "at most 2.5 a second" in run("subscriptions", "update", "hook", "--rate-limit", 2.5).out
    assert run("subscriptions", "update", "hook", "--rate-limit", 0, "--json").json["rate_limit"] is None
    assert HOOK in run("subscriptions", "list").out
    rotated = run("subscriptions", "rotate", "hook").out
    assert "whsec_" in rotated
    assert made["secret"] not in rotated
    assert "whsec_" not in run("subscriptions", "rotate", "hook", "--finish").out
    assert run("subscriptions", "resume", "hook", "--json").json["status"] == "active"
    assert run("subscriptions", "pause", "hook", "--json").json["status"] == "paused"
    asked = run("subscriptions", "delete", "hook", stdin=b"")
    assert (asked.code, asked.out) == (1, "")
    assert "Delete subscription hook" in asked.err
    assert run("subscriptions", "show", "hook").code == 0
    assert "deleted subscription" in run("subscriptions", "delete", "hook", "--yes").out
    gone = run("subscriptions", "show", "hook")
    assert (gone.code, gone.out, len(gone.err.splitlines())) == (1, "", 1)


def test_a_test_that_was_not_delivered_is_exit_code_1_and_statistics_do_not_count_it(run):
    run("subscriptions", "add", "t2", HOOK, "--id", "dead-end")
    failed = run("subscriptions", "test", "dead-end")
    assert failed.code == 1
    assert failed.out.startswith("failed: ")
    numbers = run("subscriptions", "stats", "dead-end", "--json").json
    assert (numbers["delivered"], numbers["failed"]) == (0, 0)
    assert "0 in a row" in run("subscriptions", "stats", "dead-end").out


def test_the_log_shows_settings_but_no_secrets(tmp_path):
    with serving(tmp_path / "data", "--push-private-targets") as service:
        add = ("subscriptions", "add", "t", HOOK, "--header", "X-Key=hush", "--json", "--url", service.url)
        secret = timerwheel(*add).json["secret"]
        url = f"{service.url}/v1"
        queue = _ask("PUT", f"{url}/task-queues/mail", {})["secret"]
        task = {"url": "https://example.com/", "headers": {"X-Key": "hush"}, "queue": "mail"}
        _ask("POST", f"{url}/tasks", task | {"delay": "1h"})
        _ask("POST", f"{url}/tasks", task | {"cron": "@yearly", "schedule": "yearly"})
    for flags in (["--body"], ["--body", "--json"], ["--json"]):
        shown = timerwheel("log", "--data", tmp_path / "data", *flags).out
        assert HOOK in shown or "--body" not in flags
        assert "X-Key" in shown or "--body" not in flags
        assert "%TASK%mail" in shown
        assert "hush" not in shown
        assert secret not in shown
        assert queue not in shown


def _ask(method, url, content):
    data = json.dumps(content).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, method=method)) as answer:
        return json.load(answer)


@pytest.mark.parametrize(
    "arguments",
    [
        ["schedules", "put", "s", "t"],
        ["schedules", "put", "s", "t", "--cron", "@daily", "--every", "1h"],
        ["schedules", "put", "s", "t", "--every", "often"],
        ["schedules", "put", "s", "t", "--every", "1h", "--missed", "some"],
        ["schedules", "runs", "s", "--count", "0"],
        ["subscriptions", "update", "hook"],
        ["subscriptions", "add", "t", HOOK, "--header", "novalue"],
    ],
)
def test_wrong_usage_is_explained_and_is_exit_code_2(run, arguments):
    refused = run(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) == 1


def test_what_the_service_refuses_is_one_line_and_exit_code_1(run):
    for arguments in (
        ["schedules", "put", "s", "t", "--cron", "61 * * * *"],
        ["schedules", "put", "s", "t", "--cron", "@daily", "--zone", "Atlantis"],
        ["schedules", "put", "bad name", "t", "--every", "1h"],
        ["subscriptions", "add", "t", "ftp://example.org"],
        ["subscriptions", "stats", "nothing"],
    ):
        refused = run(*arguments)
        assert (refused.code, refused.out) == (1, ""), arguments
        assert len(refused.err.splitlines()) == 1, refused.err


@pytest.mark.parametrize(
    ("arguments", "bounds"),
    [
        (["schedules", "put", "s", "t", "--every", "1ms"], "from 1s to 36525d"),
        (["schedules", "put", "s", "t", "--every", "1h", "--jitter", "2d"], "from 0ms to 1d"),
        (
            ["schedules", "put", "s", "t", "--every", "1h", "--start", "2030-01-02", "--end", "2030-01-01"],
            "--end: is not after --start",
        ),
        (["subscriptions", "add", "t", HOOK, "--timeout", "1ms"], "from 100ms to 5m"),
    ],
)
def test_what_is_out_of_bounds_is_reported_in_the_units_of_the_command_line(run, arguments, bounds):
    refused = run(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert bounds in " ".join(refused.err.replace("│", " ").split())
