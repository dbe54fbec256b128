"""`groups`, `dlq` and `topics` against a service in a process of its own."""

import asyncio
import signal
from functools import partial

import pytest

from tests.harness.processes import serving, started, timerwheel
from tests.harness.scripted_http import problem, scripted


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("groups") / "data", "--redelivery-delay", "0") as service:
        yield service.url


@pytest.fixture
def run(url):
    return partial(timerwheel, TIMERWHEEL_URL=url)


def _receive(run, topic, *flags):
    return run("groups", "receive", topic, "g", "--json", *flags).lines


def test_what_is_received_is_acknowledged_by_its_receipt(run):
    run("send", "simple", "one")
    run("send", "simple", "two")
    [first] = _receive(run, "simple", "--invisible", "10m")
    assert (first["body"], first["attempt"]) == ("one", 1)
    done = run("groups", "ack", "simple", "g", first["receipt"])
    assert (done.code, "acknowledged" in done.out) == (0, True)
    again = run("groups", "ack", "simple", "g", first["receipt"], "nonsense", "--json")
    assert again.code == 1
    assert '"code":"illegal_receipt"' in again.out
    shown = run("groups", "receive", "simple", "g", "--ack").out
    assert "simple/0@1" in shown
    assert "attempt 1" in shown
    assert shown.endswith("two\n")
    assert run("groups", "show", "simple", "g", "--json").json["lag"] == 0


def test_a_message_that_is_given_back_comes_again_and_is_a_dead_letter_in_the_end(run):
    run("send", "flaky", "x")
    put = run("groups", "put", "flaky", "g", "--max-attempts", 2, "--backoff", "0s*3..1h", "--json").json
    assert put["config"]["backoff"] == {
        "type": "exponential",
        "initial_ms": 0,
        "factor": 3,
        "max_ms": 3_600_000,
    }
    for attempt in (1, 2):
        [message] = _receive(run, "flaky", "--wait", "20s")
        assert message["attempt"] == attempt
        extended = run("groups", "extend", "flaky", "g", message["receipt"], "--for", "1m")
        assert "extended" in extended.out
        given = run("groups", "nack", "flaky", "g", message["receipt"], "--reason", "no \x1b[31m good")
        assert "returned" in given.out
    [letter] = run("dlq", "list", "g", "--json").json["letters"]
    assert (letter["attempts"], letter["origin_id"]) == (2, message["id"])
    shown = run("dlq", "list", "g").out
    assert r"no \x1b[31m good" in shown
    assert run("dlq", "redrive", "g", letter["offset"]).out == "1 redriven\n"
    [message] = _receive(run, "flaky", "--wait", "20s")
    assert message["attempt"] == 1
    run("groups", "nack", "flaky", "g", message["receipt"])
    [message] = _receive(run, "flaky", "--wait", "20s")
    run("groups", "nack", "flaky", "g", message["receipt"])
    kept = run("dlq", "drop", "g", "--topic", "flaky", "--all", stdin=b"n\n")
    assert (kept.code, kept.out) == (1, "")
    assert run("dlq", "drop", "g", "--topic", "flaky", "--all", "--yes", "--json").json == {"dropped": 1}
    assert run("dlq", "redrive", "g", "--topic", "flaky", "--all").out == "0 redriven\n"


async def test_a_new_group_does_not_overwrite_one_that_is_made_at_the_same_moment():
    replies = problem(404, "group_not_found"), problem(412, "precondition_failed"), problem(403, "forbidden")
    async with scripted(*replies) as service:
        put = partial(timerwheel, "groups", "put", "new", "g", "--max-attempts", 3, "--url", service.url)
        assert (await asyncio.to_thread(put)).code == 1
    assert [request.method for request in service.requests] == ["GET", "PUT", "GET"], "it looks again"
    assert service.requests[1].headers["if-none-match"] == "*"


def test_a_reason_drives_no_terminal_in_any_form(run):
    run("groups", "put", "loud", "g", "--max-attempts", 1)
    run("send", "loud", "x")
    [message] = _receive(run, "loud", "--wait", "20s")
    run("groups", "nack", "loud", "g", message["receipt"], "--reason", "\x1b]0;owned\x07\nsecond line")
    for form in ("table", "wide", "id"):
        shown = run("dlq", "reasons", "loud/g", "-o", form).out
        assert r"\x1b]0;owned\x07\nsecond line" in shown
        assert "\x1b" not in shown


def test_dead_letters_are_found_counted_and_settled_by_reason_key_and_time(run):
    run("groups", "put", "sieved", "s", "--max-attempts", 1)
    for reason, *flags in (("no paper",), ("no paper",), ("no ink", "--dedup-key", "order-17")):
        run("send", "sieved", reason, *flags)
        [message] = run("groups", "receive", "sieved", "s", "--wait", "20s", "--json").lines
        run("groups", "nack", "sieved", "s", message["receipt"], "--reason", reason)
    listed = partial(run, "dlq", "list", "s", "--topic", "sieved", "-o", "id")
    assert [
        len(listed(*flags).out.split()) for flags in ((), ("--reason", "PAPER"), ("--key", "order-17"))
    ] == [3, 2, 1]
    assert listed("--since", "tomorrow 9am").out == listed("--until", "2020-01-01").out == ""
    refused = listed("--since", "2020-01-02", "--until", "2020-01-01")
    assert (refused.code, "is not before --until" in refused.err) == (2, True)
    counted = run("dlq", "reasons", "s", "--topic", "sieved")
    assert [line.split()[0] for line in counted.out.splitlines()] == ["letters", "2", "1"]
    assert "no paper" in counted.out.splitlines()[1]
    [most, _] = run("dlq", "reasons", "s", "--json").json["reasons"]
    assert (most["reason"], most["count"]) == ("no paper", 2)
    assert most["first_ms"] <= most["last_ms"]
    assert listed().out == run("dlq", "list", "sieved/s", "-o", "id").out
    for other in ("elsewhere", ""):
        refused = run("dlq", "list", "sieved/s", "--topic", other)
        assert (refused.code, "is not a group of" in refused.err) == (2, True)
    settle = ("sieved/s", "--all", "--reason")
    assert run("dlq", "redrive", *settle, "paper").out == "2 redriven\n"
    asked = run("dlq", "drop", *settle, "ink", stdin=b"y\n")
    assert (asked.out, "that meet the conditions?" in asked.err) == ("1 dropped\n", True)


def test_the_groups_that_call_tasks_are_listed_only_with_all(run):
    run("tasks", "create", "https://example.com/", "--delay", "1h")
    listed = partial(run, "groups", "list", "-o", "id")
    assert "%TASK%default tasks" not in listed().out
    assert "%TASK%default tasks" in listed("--all").out
    assert listed("%TASK%default").out == "tasks\n"


def test_tasks_are_among_the_messages_only_with_all_or_by_topic(run):
    run("tasks", "create", "https://example.com/", "--delay", "1h")
    listed = partial(run, "messages", "list")
    assert "%TASK%default" not in listed().out
    assert "%TASK%default" in listed("--all").out
    assert "%TASK%default" in listed("%TASK%default").out


def test_tasks_are_recalled_and_moved_by_conditions_only_with_all_or_by_topic(run):
    run("tasks", "create", "https://example.com/", "--delay", "1h")
    for change in (["recall"], ["reschedule", "--delay", "2h"]):
        counted = partial(run, *change, "--from", "now", "--dry-run", "--json")
        whole = counted("--all").json["matched"]
        tasks = run(*change, "--topic", "%TASK%default", "--dry-run", "--json").json["matched"]
        assert tasks > 0
        assert counted().json["matched"] == whole - tasks


def test_changing_a_group_keeps_what_is_not_named(run):
    run("groups", "put", "kept", "k", "--tags", "a || b", "--start", "tail", "--invisible", "5m")
    changed = run("groups", "put", "kept", "k", "--max-attempts", 3, "--json").json["config"]
    assert (changed["tags"], changed["start"], changed["invisible_ms"], changed["max_attempts"]) == (
        "a || b",
        "tail",
        300_000,
        3,
    )
    shown = run("groups", "show", "kept", "k").out
    for fact in ("a || b", "3, backoff ladder", "5m"):
        assert fact in shown
    listed = run("groups", "list", "kept")
    assert listed.out.splitlines()[1].split() == ["kept", "k", *["0"] * 3, "-"]
    asked = run("groups", "delete", "kept", "k", stdin=b"n\n")
    assert (asked.code, asked.out) == (1, "")
    assert "Delete group k of topic kept" in asked.err
    assert run("groups", "show", "kept", "k").code == 0
    assert "deleted group" in run("groups", "delete", "kept", "k", stdin=b"y\n").out
    run("groups", "put", "kept", "k")
    assert "deleted group" in run("groups", "delete", "kept", "k", "--yes").out
    gone = run("groups", "show", "kept", "k")
    assert (gone.code, gone.out, len(gone.err.splitlines())) == (1, "", 1)


def test_a_group_is_rewound_to_a_place_or_a_time(run):
    for body in "abc":
        run("send", "again", body)
    assert len(_receive(run, "again", "--max", 9)) == 3
    rewind = partial(run, "groups", "rewind", "again", "g", "--json")
    assert rewind("--to", "head").json["lag"] == 3
    assert rewind("--offset", "0=2").json["lag"] == 1
    assert rewind("--at", "2020-01-01").json["lag"] == 3
    assert rewind("--at", "tomorrow 9am").json["lag"] == 0


def test_an_offset_to_rewind_to_is_explained_as_queue_and_number(run):
    for text in ("0", "a=b", "=1"):
        refused = run("groups", "rewind", "t", "g", "--offset", text)
        assert refused.code == 2
        assert "QUEUE=N" in refused.err
        assert "NAME=VALUE" not in refused.err


def test_a_group_is_created_by_a_receive_only_where_the_topic_exists_which_it_says(run):
    refused = run("groups", "receive", "nowhere", "g")
    assert (refused.code, refused.out) == (1, "")
    assert "topic 'nowhere' does not exist" in refused.err
    assert refused.err.endswith("; check the names, or add --create\n")
    assert run("groups", "list", "nowhere", "--json").json == {"groups": []}
    run("send", "somewhere", "x")
    refused = run("groups", "receive", "somewhere", "g", "--no-create")
    assert (refused.code, refused.err.endswith("; check the names, or add --create\n")) == (1, True)
    made = run("groups", "receive", "somewhere", "g")
    assert made.err == "created group g of topic somewhere\n"
    assert run("groups", "receive", "somewhere", "g").err == ""
    assert run("groups", "receive", "nowhere", "g", "--create").code == 0
    assert run("groups", "list", "nowhere", "--json").json["groups"][0]["group"] == "g"


def test_follow_prints_messages_as_they_come_and_acknowledges_them(run, url):
    command = ("groups", "receive", "follow", "g", "--follow", "--ack", "--json", "--url", url)
    run("send", "follow", "now")
    with started(*command) as process:
        assert '"body":"now"' in process.stdout.readline()
        run("send", "follow", "later", "--delay", "50ms")
        assert '"body":"later"' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "created group g of topic follow\n")
        assert process.returncode == 130


def test_a_topic_is_shown_with_its_groups(run):
    run("send", "seen", "x")
    run("groups", "put", "seen", "readers", "--start", "head")
    shown = run("topics", "show", "seen").out
    for fact in ("seen", "active", "offsets 0 to 1", "group readers", "lag 1"):
        assert fact in shown
    assert run("topics", "show", "seen", "--json").json["visible"] == 1
    assert run("topics", "show", "seen", "-o", "id").out == "seen\n"
    assert run("topics", "show", "unseen").code == 1


def test_an_empty_topic_is_deleted_without_a_question_and_another_is_not(run):
    run("topics", "set", "empty", "--ordered")
    assert run("topics", "delete", "empty").code == 0
    assert run("topics", "show", "empty").code == 1
    run("send", "kept", "x", "--delay", "1h")
    refused = run("topics", "delete", "kept")
    assert (refused.code, "Delete topic kept" in refused.err) == (1, True)
    assert run("topics", "show", "kept").code == 0


def test_topics_are_listed_and_ordered_by_key(run):
    run("send", "sorted", "1", "--property", "__SHARDINGKEY=k")
    run("send", "sorted", "2", "--property", "__SHARDINGKEY=k")
    assert run("topics", "set", "sorted", "--ordered").out == "topic sorted is ordered by key\n"
    [line] = [line for line in run("topics", "list").out.splitlines() if line.startswith("sorted ")]
    assert line.split() == ["sorted", "1", "2", "0", "by", "key", "-", "-"]
    assert [message["body"] for message in _receive(run, "sorted", "--max", 9)] == ["1"]
    assert run("topics", "set", "sorted", "--unordered", "--json").json["ordered"] is False


def test_the_services_own_topics_are_listed_only_with_all(run):
    run("groups", "put", "owned", "owner", "--max-attempts", 1)
    run("send", "owned", "x")
    [message] = run("groups", "receive", "owned", "owner", "--wait", "20s", "--json").lines
    run("groups", "nack", "owned", "owner", message["receipt"])

    def names(*flags):
        return run("topics", "list", *flags, "-o", "id").out.split()

    assert "owned" in names()
    assert not [name for name in names() if name.startswith(("%", "rmq_sys_", "SCHEDULE_"))]
    assert {"owned", "%DLQ%owner", "rmq_sys_wheel_timer"} <= set(names("--all"))
    assert names("--system") == names("--all")


def test_a_topic_is_paused_and_resumed(run):
    assert run("topics", "pause", "halted").out == "topic halted is paused\n"
    run("send", "halted", "x")
    run("groups", "put", "halted", "g")
    assert _receive(run, "halted", "--max", 9) == []
    assert "halted, paused" in run("groups", "show", "halted", "g").out
    [line] = [line for line in run("topics", "list").out.splitlines() if line.startswith("halted ")]
    assert line.split() == ["halted", "1", "1", "0", "-", "paused", "-"]
    assert run("topics", "resume", "halted", "--json").json["paused"] is False
    assert [message["body"] for message in _receive(run, "halted", "--max", 9)] == ["x"]
    assert "does not exist" in run("topics", "resume", "never").err


def test_a_topic_is_purged_once_the_user_has_seen_what_goes_and_agreed(run):
    run("send", "full", "now")
    run("send", "full", "later", "--delay", "1h")
    run("groups", "put", "full", "g")
    assert "--scheduled, --delivered or both" in run("topics", "purge", "full").err
    planned = run("topics", "purge", "full", "--scheduled", "--delivered", "--dry-run").out
    assert planned.startswith("would purge topic full of 1 scheduled and 1 delivered messages")
    assert "g (1 messages left)" in planned
    declined = run("topics", "purge", "full", "--delivered", input="n\n")
    assert declined.code != 0
    assert run("groups", "show", "full", "g", "--json").json["lag"] == 1
    done = run("topics", "purge", "full", "--scheduled", "--delivered", "--yes", "--json").json
    assert (done["scheduled"], done["delivered"], done["missed"]) == (1, 1, 0)
    assert _receive(run, "full", "--max", 9) == []


def test_limits_of_messages_and_groups_are_set_shown_and_removed(run):
    sent = run("send", "limited", "x", "--ttl", "10m", "--max-attempts", 2, "--json").json
    properties = run("get", sent["id"], "--json").json["properties"]
    assert properties == {"TIMER_TTL_MS": "600000", "TIMER_MAX_ATTEMPTS": "2"}
    shown = run("groups", "put", "limited", "g", "--max-age", "1h", "--expired", "dead_letter").out
    assert "no other attempt after 1h" in shown
    assert "are dead letters" in shown
    assert "no limit" in run("groups", "put", "limited", "g", "--max-age", 0).out
    assert run("groups", "show", "limited", "g", "--json").json["config"]["max_age_ms"] is None
    assert "TIMER_MAX_ATTEMPTS" in run("send", "limited", "x", "--property", "TIMER_MAX_ATTEMPTS=0").err


def test_a_topic_gets_queues_and_a_message_goes_to_the_one_that_is_named(run):
    assert run("topics", "set", "wide", "--queues", 4).out == "topic wide is not ordered and has 4 queues\n"
    sent = run("send", "wide", "x", "--queue", 3, "--json").json
    assert run("get", sent["id"], "--json").json["queue"] == 3
    [line] = [line for line in run("topics", "list").out.splitlines() if line.startswith("wide ")]
    assert line.split()[:2] == ["wide", "4"]
    assert "queue = 4" in run("send", "wide", "x", "--queue", 4).err
    assert "can only grow" in run("topics", "set", "wide", "--queues", 3).err
    assert run("topics", "set", "wide", "--ordered", "--queues", 4).out.startswith("topic wide is ordered")
    assert "move_keys" in run("topics", "set", "wide", "--queues", 5).err
    assert run("topics", "set", "wide", "--queues", 5, "--move-keys", "--json").json["queue_count"] == 5


def test_a_group_of_offsets_is_made_shown_and_moved(run):
    run("send", "pulled", "x")
    assert "kind" in run("groups", "put", "pulled", "readers", "--kind", "offsets").out
    assert run("groups", "rewind", "pulled", "readers", "--offset", "0=1", "--json").json["lag"] == 0
    shown = run("groups", "show", "pulled", "readers").out
    assert "at 1 of 1, lag 0" in shown
    assert "invisible" not in shown
    assert "leases" in run("groups", "receive", "pulled", "readers").err
    assert "cannot be changed" in run("groups", "put", "pulled", "readers", "--kind", "leases").err


@pytest.mark.parametrize(
    "arguments",
    [
        ["groups"],
        ["groups", "put", "t", "g", "--backoff", "fast"],
        ["groups", "put", "t", "g", "--start", "middle"],
        ["groups", "rewind", "t", "g"],
        ["groups", "rewind", "t", "g", "--to", "head", "--at", "2020-01-01"],
        ["groups", "rewind", "t", "g", "--offset", "0"],
        ["groups", "rewind", "t", "g", "--offset", "a=b"],
        ["groups", "rewind", "t", "g", "--offset", "0=-1"],
        ["groups", "receive", "t", "g", "--wait", "61s"],
        ["groups", "extend", "t", "g", "receipt"],
        ["groups", "ack", "t", "g"],
        ["dlq", "drop", "g"],
        ["dlq", "redrive", "g", "1", "--all"],
        ["dlq", "redrive", "g", "--all"],
        ["dlq", "drop", "g", "--all", "--yes"],
        ["topics", "set", "t"],
    ],
)
def test_wrong_usage_is_explained_and_is_exit_code_2(run, arguments):
    refused = run(*arguments)
    assert refused.code == 2
    assert len(refused.err.splitlines()) == 1 or "Usage" in refused.out


def test_what_the_service_refuses_is_one_line_and_exit_code_1(run):
    for arguments in (
        ["groups", "receive", "t", "no group"],
        ["groups", "ack", "t", "never-made", "receipt"],
        ["groups", "put", "t", "g", "--tags", "a ||"],
        ["groups", "put", "t", "g", "--tags", "a b"],
        ["dlq", "list", "nogroup"],
        ["dlq", "redrive", "nogroup", "--topic", "flaky", "--all"],
        ["dlq", "drop", "nogroup", "0"],
        ["topics", "set", "no topic", "--ordered"],
    ):
        refused = run(*arguments)
        assert (refused.code, refused.out) == (1, ""), arguments
        assert len(refused.err.splitlines()) == 1, refused.err


@pytest.mark.parametrize(
    ("arguments", "bounds"),
    [
        (["put", "t", "g", "--invisible", "0s"], "from 1ms to 12h"),
        (["put", "t", "g", "--invisible", "13h"], "from 1ms to 12h"),
        (["extend", "t", "g", "receipt", "--for", "0s"], "from 1ms to 12h"),
        (["put", "t", "g", "--max-attempts", "1001"], "1000"),
        (["put", "t", "g", "--backoff", "1h..1s"], "the first delay is longer than the longest"),
        (["put", "t", "g", "--backoff", "1s..8d"], "from 0ms to 7d"),
        (["put", "t", "g", "--backoff", "1s*0.5..1h"], "a factor from 1 to 100"),
        (["put", "t", "g", "--invisible", "soon"], "is not a length of time"),
    ],
)
def test_what_is_out_of_bounds_is_reported_in_the_units_of_the_command_line(run, arguments, bounds):
    refused = run("groups", *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert bounds in " ".join(refused.err.replace("│", " ").split())


def test_a_topic_is_deleted_after_a_question(run):
    run("send", "gone", "x")
    run("send", "gone", "x", "--delay", "1h")
    run("groups", "put", "gone", "workers")
    planned = "topic gone with 1 scheduled and 1 delivered messages\n  groups: workers (1 messages left)"
    assert run("topics", "delete", "gone", "--dry-run").out == f"would delete {planned}\n"
    asked = run("topics", "delete", "gone", input="n\n")
    assert (asked.code, planned in asked.err) == (1, True)
    assert run("topics", "delete", "gone", "--yes").out == f"deleted {planned}\n"
    assert "was deleted" in run("topics", "delete", "gone", "--yes").err
