"""`slots`, `log` and `fsck` on the data directory of a service that runs, was stopped, or was killed."""

import signal
from functools import partial

import pytest

from tests.harness.group_log import GroupLog
from tests.harness.processes import serving, timerwheel
from timerwheel.state import lease_records

CHRISTMAS = "2030-12-24 18:00"


def _fill(url):
    """Three messages for one second at Christmas, one in 30 minutes, one recalled, one delivered."""
    run = partial(timerwheel, TIMERWHEEL_URL=url)
    ids = [run("send", "gifts", f"gift {n}", "--at", CHRISTMAS, "--json").json["id"] for n in range(3)]
    run("send", "orders", "close", "--delay", "30m", "--property", "supplier=hotel")
    run("recall", run("send", "orders", "gone", "--delay", "20m", "--json").json["id"])
    run("send", "orders", "now")
    return ids


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Data directory of a service that was killed, and the ids of the gifts."""
    data = tmp_path_factory.mktemp("inspect") / "data"
    with serving(data) as service:
        ids = _fill(service.url)
        service.end(signal.SIGKILL)
    return data, ids


def test_what_is_shown_is_the_same_while_the_service_runs_after_a_stop_and_after_a_kill(tmp_path):
    data = tmp_path / "data"

    def look():
        wheel = timerwheel("slots", "--data", data, "--json").json
        checked = timerwheel("fsck", "--data", data, "--json").json
        log = [(r["offset"], r["id"]) for r in timerwheel("log", "--data", data, "--json").lines]
        counts = (wheel["pending"], checked["pending"], checked["visible"], checked["ok"])
        return counts, wheel["next_rush"], log

    with serving(data) as service:
        _fill(service.url)
        running = look()
        service.end(signal.SIGTERM)
    stopped = look()
    with serving(data) as service:
        service.end(signal.SIGKILL)
    assert running == stopped == look()
    assert running[0] == (4, 4, 1, True)


def test_slots_draws_the_levels_and_says_when_the_next_rush_comes(filled):
    data, _ = filled
    shown = timerwheel("slots", "--data", data).out
    assert "4 scheduled" in shown.splitlines()[0]
    for level in ("seconds: 0", "minutes: 1", "hours: 0", "days: 3"):
        assert f"{level} scheduled" in shown
    assert "▲ 1 from" in shown or "1 from" in shown
    assert "▅" in shown  # three messages on a log scale up to ten
    assert "log scale: ▄ 2, █ 10; ░ counted in the row above or below; red: over 1,000/s" in shown
    assert "Next peak: 3 messages in the second from 24 Dec 2030 18:00 (in " in shown


def test_times_that_another_level_holds_are_hatched_and_not_empty(filled):
    data, _ = filled
    lines = timerwheel("slots", "--data", data).out.splitlines()
    rows = {
        line.partition(":")[0]: lines[at + 1].strip() for at, line in enumerate(lines) if "a cell is" in line
    }
    assert list(rows) == ["seconds", "minutes", "hours", "days"]
    assert rows["seconds"][0] == "·"
    assert all(rows[name][0] == "░" for name in ("minutes", "hours"))
    assert rows["days"][-1] != "░"
    assert len({len(row) for row in rows.values()}) == 1


def test_slots_above_the_stated_rate_are_red(filled):
    data, _ = filled
    for given, stated in (("1/h", "1/h"), ("0.5/m", "30/h"), ("20000", "20,000/s")):
        assert f"red: over {stated}" in timerwheel("slots", "--data", data, "--red-above", given).out
    drawn = timerwheel("slots", "--data", data, "--red-above", "1/h", FORCE_COLOR="1").out
    assert "\x1b[1;31m" in drawn
    assert "\x1b[1;31m" not in timerwheel("slots", "--data", data, FORCE_COLOR="1").out
    refused = timerwheel("slots", "--data", data, "--red-above", "many")
    assert (refused.code, refused.out) == (2, "")


def test_slots_at_a_time_lists_the_messages_of_that_slot(filled):
    data, ids = filled
    shown = timerwheel("slots", "--data", data, "--at", CHRISTMAS).out
    assert "The day 24 Dec 2030 00:00 to 25 Dec 2030 00:00: 3 scheduled" in shown
    for place, message_id in enumerate(ids):
        assert message_id in shown
        assert f"gift {place}" in shown
    found = timerwheel("slots", "--data", data, "--at", CHRISTMAS, "--limit", 2, "--json").json
    assert found["slot"]["count"] == 3
    assert [message["id"] for message in found["messages"]] == ids[:2]
    assert found["messages"][0]["body"] == "gift 0"
    assert "and 1 more" in timerwheel("slots", "--data", data, "--at", CHRISTMAS, "--limit", 2).out


def test_slots_at_a_time_when_nothing_is_due_is_an_empty_slot(filled):
    data, _ = filled
    found = timerwheel("slots", "--data", data, "--at", "2031-01-01", "--json").json
    assert found["slot"]["count"] == 0
    assert found["messages"] == []
    hour = timerwheel("slots", "--data", data, "--at", "2031-01-01", "--level", "hour", "--json").json
    assert hour["slot"]["end_ms"] - hour["slot"]["start_ms"] == 3_600_000


def test_slots_of_one_level_are_listed_with_their_counts(filled):
    data, _ = filled
    assert "24 Dec 2030 00:00  3  █" in timerwheel("slots", "--data", data, "--level", "day").out
    found = timerwheel("slots", "--data", data, "--level", "day", "--json").json
    assert [slot["count"] for slot in found["slots"]] == [3]


def test_slots_as_json_hold_the_wheel_its_slots_and_the_rush(filled):
    data, _ = filled
    found = timerwheel("slots", "--data", data, "--json").json
    assert found["pending"] == 4
    assert sum(level["count"] for level in found["levels"]) == 4
    assert sum(slot["count"] for slot in found["slots"]) == 4
    assert found["next_rush"]["count"] == 3


def test_log_prints_every_record_and_a_part_when_asked(filled):
    data, ids = filled
    records = timerwheel("log", "--data", data, "--json").lines
    kinds = [record["kind"] for record in records]
    assert sorted(kinds) == ["cancel", "message", "timer", "timer", "timer", "timer", "timer"]
    assert [record["id"] for record in records[:3]] == ids
    assert all("body" not in record for record in records)
    places = [record["offset"] for record in records]
    read = partial(timerwheel, "log", "--data", data, "--json")
    assert [r["offset"] for r in read("--limit", 2).lines] == places[:2]
    assert [r["offset"] for r in read("--from", places[3]).lines] == places[3:]
    assert [r["offset"] for r in read("--tail", 2).lines] == places[-2:]
    for more in (100, 1 << 80):
        assert [r["offset"] for r in read("--tail", more).lines] == places
        assert [r["offset"] for r in read("--limit", more).lines] == places
    assert read("--limit", 1, "--body").lines[0]["body"] == "gift 0"
    assert read("--limit", 0).lines == []


def test_log_is_readable_for_people(filled):
    data, ids = filled
    heading, first, *_ = timerwheel("log", "--data", data).out.splitlines()
    assert heading.split()[:3] == ["offset", "bytes", "kind"]
    assert first.split()[2] == "timer"
    assert ids[0] in first
    with_bodies = timerwheel("log", "--data", data, "--body").out
    assert "body gift 1" in with_bodies
    assert "supplier=hotel" in with_bodies


def test_log_shows_no_due_time_for_a_record_that_has_none(tmp_path):
    log = GroupLog(tmp_path / "data")
    log.group("orders/g")
    log.send("orders", count=9)
    now_ms, name = log.now_ms, b"orders/g"
    log.store(lease_records.ack(name, 0, 3, 5, now_ms))
    retry = lease_records.retry(name, (0, 7), 1, now_ms, now_ms + 60_000, ended=True)
    log.store(lease_records.hold(name, (0, 7), now_ms, 1 << 40), retry)
    log.close()
    read = partial(timerwheel, "log", "--data", log.data)
    expected = {"control": None, "message": now_ms, "ack": None, "hold": None, "timer": now_ms + 60_000}
    assert {record["kind"]: record["due_ms"] for record in read("--json").lines} == expected
    shown = {line.split()[2]: line.split()[4] for line in read().out.splitlines()[1:]}
    assert {kind: due == "-" for kind, due in shown.items()} == {k: v is None for k, v in expected.items()}


def test_fsck_finds_nothing_wrong(filled):
    data, _ = filled
    checked = timerwheel("fsck", "--data", data, "--json").json
    assert checked["ok"]
    assert (checked["records"], checked["pending"], checked["visible"]) == (7, 4, 1)
    assert checked["findings"] == []
    shown = timerwheel("fsck", "--data", data)
    assert (shown.code, shown.err) == (0, "")
    assert "no problems found" in shown.out


def test_the_data_directory_may_come_from_the_environment(filled):
    data, _ = filled
    assert timerwheel("slots", "--json", TIMERWHEEL_DATA=str(data)).json["pending"] == 4


def test_slots_asks_the_service_that_a_url_names_unless_a_data_directory_is_named(tmp_path, filled):
    data, _ = filled
    with serving(tmp_path / "data") as service:
        _fill(service.url)
        named = {"TIMERWHEEL_URL": service.url}
        found = timerwheel("slots", "--json", **named).json
        assert found["pending"] == 4
        assert {(one["level"], one["count"]) for one in found["slots"]} >= {("day", 3)}
        assert (found["next_rush"]["level"], found["next_rush"]["count"]) == ("second", 3)
        drawn = timerwheel("slots", **named).out
        assert "4 scheduled" in drawn
        assert "Next peak: " in drawn
        listed = timerwheel("slots", "--at", CHRISTMAS, "--url", service.url, "--json").json
        assert (listed["slot"]["count"], len(listed["messages"])) == (3, 3)
        empty = timerwheel("slots", "--at", "2031-01-01", "--level", "hour", "--json", **named).json
        assert (empty["slot"]["level"], empty["slot"]["count"], empty["messages"]) == ("hour", 0, [])
        service.end(signal.SIGTERM)
        assert timerwheel("slots", "--json", **named).code == 3
        by_name = timerwheel("slots", "--json", TIMERWHEEL_DATA=str(data), **named).json
        assert by_name["pending"] == timerwheel("slots", "--data", data, "--json").json["pending"]


@pytest.mark.parametrize("command", ["log", "fsck", "tokens list"])
def test_a_directory_that_is_taken_by_default_is_named_if_the_environment_names_a_service(filled, command):
    data, _ = filled
    service = {"TIMERWHEEL_URL": "http://127.0.0.1:1"}
    told = timerwheel(*command.split(), **service).err
    words = "this command works on the directory data, not on the service that TIMERWHEEL_URL names"
    assert told.splitlines()[0] == f"timerwheel: {words}; --data names another"
    for named in (("--data", data), ()):
        variables = service if named else {"TIMERWHEEL_DATA": str(data), **service}
        assert timerwheel(*command.split(), *named, **variables).err == ""


@pytest.mark.parametrize("command", ["slots", "log", "fsck"])
def test_what_is_no_data_directory_is_one_line_and_exit_code_1(tmp_path, command):
    for place in (tmp_path, tmp_path / "missing"):
        refused = timerwheel(command, "--data", place)
        assert (refused.code, refused.out) == (1, "")
        assert len(refused.err.splitlines()) == 1
        assert str(place) in refused.err
    assert list(tmp_path.iterdir()) == []


def test_wrong_usage_of_the_inspectors_is_exit_code_2(filled):
    data, _ = filled
    for arguments in (
        ["slots", "--at", "tuesdayish"],
        ["slots", "--level", "week"],
        ["log", "--tail", 1, "--limit", 1],
        ["log", "--from", 72],
        ["log", "--from", 1 << 40],
        ["log", "--from", 1 << 80],
    ):
        refused = timerwheel(*arguments, "--data", data)
        assert refused.code == 2, arguments
        assert refused.out == ""


def test_damage_is_found_by_fsck_and_stops_log_at_its_place(tmp_path):
    data = tmp_path / "data"
    with serving(data) as service:
        _fill(service.url)
        service.end(signal.SIGTERM)
    places = [record["offset"] for record in timerwheel("log", "--data", data, "--json").lines]
    [segment] = (data / "log").glob("*0.log")
    raw = bytearray(segment.read_bytes())
    raw[places[2] + 80] ^= 1
    segment.write_bytes(raw)
    checked = timerwheel("fsck", "--data", data)
    assert checked.code == 1
    assert "log_damaged" in checked.out
    assert str(places[2]) in checked.out
    dumped = timerwheel("log", "--data", data, "--json")
    assert dumped.code == 1
    assert len(dumped.out.splitlines()) == 2
    assert str(places[2]) in dumped.err
