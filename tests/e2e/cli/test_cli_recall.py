"""`recall` in all its ways, and `--key`, against a service in a process of its own."""

from functools import partial

import pytest

from tests.harness.processes import serving, timerwheel


@pytest.fixture
def run(tmp_path):
    with serving(tmp_path / "data") as service:
        yield partial(timerwheel, TIMERWHEEL_URL=service.url)


def _send(run, *arguments):
    return run("send", *arguments, "--json").json


def test_a_send_is_repeated_without_harm_under_its_key(run):
    first = _send(run, "t", "x", "--delay", "1h", "--dedup-key", "k 1")
    again = run("send", "t", "x", "--delay", "1h", "--dedup-key", "k 1").out
    assert first["id"] in again
    assert "nothing was stored" in again
    other = run("send", "t", "y", "--delay", "1h", "--dedup-key", "k 1")
    assert (other.code, other.out, len(other.err.splitlines())) == (1, "", 1)


def test_a_message_is_shown_rescheduled_and_recalled_by_its_key(run):
    sent = _send(run, "t", "x", "--delay", "1h", "--dedup-key", "k 1")
    assert run("get", "--key", "t", "k 1", "--json").json["id"] == sent["id"]
    assert run("reschedule", "--key", "t", "k 1", "--delay", "2h", "--json").json["due_ms"] > sent["due_ms"]
    assert "k 1" in run("get", sent["id"]).out
    assert run("recall", "--key", "t", "k 1", "--json").json["state"] == "recalled"


def test_a_recalled_message_is_sent_again_by_naming_it(run):
    first = _send(run, "t", "x", "--delay", "1h", "--dedup-key", "k")
    run("recall", first["id"])
    late = run("send", "t", "x", "--delay", "1h", "--dedup-key", "k")
    assert (late.code, late.out, len(late.err.splitlines())) == (1, "", 1)
    assert first["id"] in late.err
    again = _send(run, "t", "x", "--delay", "1h", "--dedup-key", "k", "--after-recall", first["id"])
    assert (again["state"], again["id"] == first["id"]) == ("scheduled", False)


def test_what_was_recalled_a_moment_ago_was_not_recalled_in_the_future(run):
    _send(run, "t", "x", "--delay", "1h", "--dedup-key", "k")
    shown = run("recall", "--key", "t", "k").out
    [line] = [line for line in shown.splitlines() if line.startswith("recalled")]
    assert ", in " not in line


def test_several_ids_are_recalled_and_each_is_answered_for(run):
    ids = [_send(run, "t", str(n), "--delay", "1h")["id"] for n in range(2)]
    done = run("recall", *ids, "--json").json
    assert [result["ok"] for result in done["results"]] == [True, True]
    again = run("recall", ids[0], "nonsense")
    assert again.code == 1
    assert "already recalled" in again.out
    assert "unknown message" in again.out


def test_conditions_are_counted_first_and_nothing_is_recalled_without_a_yes(run):
    for n in range(3):
        _send(run, "t", str(n), "--at", "2030-01-01 12:00", "--tags", "red", "--dedup-key", f"run-{n}")
    _send(run, "t", "later", "--at", "2031-01-01", "--tags", "red")
    command = partial(run, "recall", "--topic", "t", "--tags", "red || blue", "--key-prefix", "run-")
    window = ("--from", "2030-01-01 12:00", "--to", "2030-01-01 12:01")
    assert command(*window, "--dry-run").out == "3 scheduled message(s) would be recalled\n"
    assert command("--to", "2030-01-01 12:00", "--json").json["matched"] == 0
    for answer in (b"n\n", b""):
        kept = command(*window, stdin=answer)
        assert (kept.code, kept.out) == (1, "")
        assert "Recall 3 scheduled message(s)?" in kept.err
    asked = command(*window, "--json", stdin=b"y\n").json
    assert asked == {"matched": 3, "recalled": 3, "missed": 0, "dry_run": False}
    assert run("recall", "--topic", "t", "--yes").out == "1 recalled\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["id", "--topic", "t"],
        ["id", "--key", "t", "k"],
        ["--key", "t"],
        ["--yes"],
        ["id", "--dry-run"],
        ["--from", "tuesdayish"],
    ],
)
def test_what_to_recall_must_be_said_in_one_way(arguments):
    refused = timerwheel("recall", *arguments)
    assert (refused.code, refused.out) == (2, "")


@pytest.mark.parametrize("command", [["get"], ["reschedule", "--delay", "1s"]])
def test_a_message_is_named_by_id_or_by_key_and_not_by_both(command):
    for named in ([], ["id", "--key", "t", "k"]):
        refused = timerwheel(*command, *named)
        assert (refused.code, refused.out) == (2, "")
