"""`send`, `get`, `recall`, `reschedule`, `receive` and `levels` against a service in a process of its own."""

import asyncio
import contextlib
import datetime as dt
import re
import signal
import socket
import threading
import time
from functools import partial

import pytest
from aiohttp import web

from tests.harness.processes import serving, started, timerwheel
from tests.harness.served import Served


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("messages") / "data") as service:
        yield service.url


@pytest.fixture
def run(url):
    return partial(timerwheel, TIMERWHEEL_URL=url)


def test_a_sent_message_can_be_looked_at_while_it_waits(run):
    sent = run(
        *("send", "look", "hello", "--delay", "1h30m", "--property", "a=b=c", "--property", "d="),
        *("--tags", "x", "--keys", "k1 k2", "--json"),
    ).json
    assert sent["state"] == "scheduled"
    message = run("get", sent["id"], "--json").json
    assert message["due_ms"] - message["enqueue_ms"] == 5_400_000
    assert (message["topic"], message["body"], message["tags"]) == ("look", "hello", "x")
    assert message["keys"] == ["k1", "k2"]
    assert (message["properties"]["a"], message["properties"]["d"]) == ("b=c", "")
    shown = run("get", sent["id"]).out
    for fact in (sent["id"], "scheduled", "look", "UTC, in 1h", "hello"):
        assert fact in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "wrong", "x", "--tags", "\udcff"],
        ["topics", "show", "\udcff"],
        ["receive", "wrong", "--from", "9" * 5_000],
        ["groups", "rewind", "wrong", "g", "--offset", "0=" + "9" * 5_000],
    ],
)
def test_what_cannot_be_an_argument_is_one_line_and_exit_code_2(run, arguments):
    refused = run(*arguments)
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (2, "", 1)
    assert len(refused.err) < 6_000


@pytest.mark.parametrize("time", ["soon", "", "1" * 5_000, "٣"])
def test_the_service_says_what_is_wrong_with_a_time_in_a_property(run, time):
    refused = run("send", "wrong", "x", "--property", f"TIMER_DELIVER_MS={time}")
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (1, "", 1)
    assert "TIMER_DELIVER_MS" in refused.err


def test_messages_are_found_by_key_state_and_tag(run):
    first = run("send", "found", "one", "--keys", "4711 x", "--tags", "vip", "--delay", "1h", "--json").json
    second = run("send", "found", "two", "--keys", "4711", "--json").json
    third = run("send", "found", "three", "--tags", "vip", "--delay", "2h", "--json").json
    run("recall", first["id"])
    listed = run("messages", "list", "--key", "4711", "-o", "wide").out
    for fact in ("recalled", "delivered", first["id"], second["id"], "vip", "4711 x"):
        assert fact in listed
    assert third["id"] not in listed
    all_states = ("--state", "recalled", "--state", "delivered", "--state", "scheduled")
    found = run("messages", "list", "found", *all_states, "-o", "json").json["messages"]
    assert [one["id"] for one in found] == [third["id"], second["id"], first["id"]]
    assert run("messages", "list", "--key", "4711", "--newest", "--limit", "1", "-o", "id").out.split() == [
        second["id"]
    ]
    soon = run("messages", "list", "found", "--tag", "vip", "--from", "in 90 minutes", "-o", "id")
    assert soon.out.split() == [third["id"]]
    refused = run("messages", "list", "--state", "recalled")
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (1, "", 1)


def test_a_json_body_is_checked_here_and_stored_compactly(run):
    message = run(
        "get", run("send", "j", '{"a": [1, 2.50]}', "--json-body", "--json").json["id"], "--json"
    ).json
    assert message["body"] == '{"a":[1,2.50]}'
    assert message["properties"] == {"CONTENT_TYPE": "application/json"}
    begun = run("transactions", "begin", "j", "null", "--json-body", "--json").json
    assert run("get", begun["id"], "--json").json["body"] == "null"
    run("transactions", "rollback", begun["id"])
    schedule = run("schedules", "put", "j", "j", '"x"', "--json-body", "--every", "1h", "--json").json
    assert schedule["body"] == '"x"'
    refused = run("send", "j", "{", "--json-body")
    assert (refused.code, "the body is not JSON" in refused.err) == (2, True)


def test_a_message_replaces_the_one_with_its_key(run):
    words = ("send", "debounced", "x", "--delay", "1h", "--dedup-key", "k", "--on-duplicate", "replace")
    first = run(*words, "--json").json
    assert first["id"] in run(*words).out
    assert run("get", first["id"], "--json").json["state"] == "recalled"
    assert run(*words[:-1], "never").code == 2


def test_messages_that_meet_conditions_are_rescheduled_after_a_count(run):
    sent = [run("send", "bulk", "--delay", "1h", "--tags", tag, "--json").json for tag in "aab"]
    words = ("reschedule", "--topic", "bulk", "--tags", "a", "--shift")
    assert "2 scheduled message(s) would be rescheduled" in run(*words, "2h", "--dry-run").out
    assert run(*words, "2h").code == 1  # nobody has said yes
    assert "2 rescheduled" in run(*words, "-30m", "--yes").out
    dues = [run("get", one["id"], "--json").json["due_ms"] - one["due_ms"] for one in sent]
    assert dues == [-1_800_000, -1_800_000, 0]
    assert run("reschedule", sent[0]["id"], "--shift", "2h").code == 2
    assert run("reschedule", "--topic", "bulk").code == 2


def test_a_time_is_read_and_shown_in_the_local_zone_or_in_utc(run):
    sent = run("send", "zones", "--at", "2030-07-01 12:00", "--json", TZ="Europe/Berlin").json
    assert sent["due_ms"] == dt.datetime(2030, 7, 1, 10, tzinfo=dt.UTC).timestamp() * 1000
    assert "Mon 1 Jul 2030 12:00:00 CEST" in run("get", sent["id"], TZ="Europe/Berlin").out
    assert "Mon 1 Jul 2030 10:00:00 UTC" in run("get", sent["id"], "--utc", TZ="Europe/Berlin").out
    iso = run("get", sent["id"], "--iso", TZ="Europe/Berlin").out
    assert "2030-07-01T12:00:00.000+02:00 (in " in iso
    in_utc = run("send", "zones", "--at", "2030-07-01 12:00", "--utc", "--json", TZ="Europe/Berlin").json
    assert in_utc["due_ms"] - sent["due_ms"] == 7_200_000


def test_a_time_in_the_past_is_said_to_be_past_and_the_message_to_be_delivered_now(run):
    days_ago_ms = int(time.time() * 1000) - 3 * 86_400_000
    for words, said in (
        (("--at", "yesterday"), r"due\s+1d ago: delivered now"),
        (("--property", f"TIMER_DELIVER_MS={days_ago_ms}"), r"due\s+3d ago: delivered now"),
    ):
        assert re.search(said, run("send", "past", "x", *words).out)
        assert run("send", "past", "x", *words, "--json").json["state"] == "delivered"
    waiting = run("send", "past", "x", "--delay", "1h", "--json").json
    assert re.search(
        r"due\s+1d ago: delivered now", run("reschedule", waiting["id"], "--at", "yesterday").out
    )


@pytest.mark.parametrize("words", [(), ("--delay", "0s"), ("--at", "tomorrow"), ("--property", "a=b")])
def test_no_other_message_is_said_to_be_past(run, words):
    assert "delivered now" not in run("send", "past", "x", *words).out


def test_a_delay_level_is_sent_and_counted(run):
    assert run("send", "levels", "x", "--level", "18").code == 0
    last = run("levels", "--json").json["levels"][-1]
    assert (last["level"], last["text"], last["pending"]) == (18, "2h", 1)
    assert "2h" in run("levels").out


def test_a_recalled_message_stays_recalled_and_a_second_recall_says_so(run):
    sent = run("send", "recall", "x", "--delay", "1h", "--json").json
    assert run("recall", sent["id"], "--json").json["state"] == "recalled"
    again = run("recall", sent["id"])
    assert (again.code, again.out) == (1, "")
    assert "already been recalled" in again.err
    assert "recalled" in run("get", sent["id"]).out


def test_a_rescheduled_message_keeps_its_id_and_comes_at_the_new_time(run):
    sent = run("send", "move", "x", "--at", "2030-01-01", "--json").json
    moved = run("reschedule", sent["id"], "--delay", "0s", "--json").json
    assert moved["id"] == sent["id"]
    [received] = run("receive", "move", "--follow", "--max", "1", "--json").lines
    assert received["id"] == sent["id"]


def test_receive_without_follow_prints_what_is_there_and_ends(run):
    for body in ("one", "two", "three"):
        run("send", "there", body)
    assert [line["body"] for line in run("receive", "there", "--json").lines] == ["one", "two", "three"]
    assert [line["body"] for line in run("receive", "there", "--json", "--max", "1").lines] == ["one"]
    assert [line["body"] for line in run("receive", "there", "--json", "--from", "2").lines] == ["three"]
    assert run("receive", "there", "--json", "--from", "end").lines == []
    shown = run("receive", "there").out.splitlines()
    assert "there/0@1" in shown[1]
    assert shown[1].endswith("two")


def test_receive_of_an_unknown_topic_says_so_and_fails(run):
    for arguments in ([], ["--from", "end"], ["--json"]):
        refused = run("receive", "mistyped", *arguments)
        assert (refused.code, refused.out) == (1, "")
        assert "topic 'mistyped' does not exist" in refused.err
    run("send", "short", "one")
    refused = run("receive", "short", "--from", "2")
    assert (refused.code, refused.out) == (1, "")
    assert "ends at 1; read from there, or with --from end" in refused.err


def test_receive_follow_of_an_unknown_topic_says_that_it_waits_and_gets_the_first_message(run, url):
    with started("receive", "unborn", "--follow", "--max", "1", "--json", "--url", url) as process:
        assert "waiting for the first one" in process.stderr.readline()
        run("send", "unborn", "first")
        assert '"body":"first"' in process.stdout.readline()
        assert process.wait() == 0


def test_receive_follow_prints_messages_as_they_come_and_ctrl_c_ends_it_quietly(run, url):
    run("send", "follow", "now")
    with started("receive", "follow", "--follow", "--json", "--url", url) as process:
        assert '"body":"now"' in process.stdout.readline()
        run("send", "follow", "later", "--delay", "50ms")
        assert '"body":"later"' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "")
        assert process.returncode == 130


def test_a_body_comes_from_stdin_byte_for_byte(run):
    body = bytes(range(256))
    sent = run("send", "bytes", "-", "--json", stdin=body).json
    message = run("get", sent["id"], "--json").json
    assert "body" not in message
    assert message["body_base64"].startswith("AAECAwQF")
    assert "<256 bytes, not UTF-8>" in run("get", sent["id"]).out


def test_no_body_can_drive_the_terminal(run):
    run("send", "escape", "-", stdin=b"\x1b[31mred\r\n\x07")
    shown = run("receive", "escape").out
    assert "\x1b" not in shown
    assert r"\x1b[31mred\r\n\x07" in shown


def test_what_the_service_refuses_is_one_line_and_exit_code_1(run):
    for arguments in (
        ["send", "no such topic name", "x"],
        ["send", "t", "x", "--delay", "11y"],
        ["send", "t", "x", "--level", "-1"],
        ["send", "t", "x", "--property", "REAL_TOPIC=t"],
        ["send", "rmq_sys_wheel_timer", "x"],
        ["send", "%RETRY%g", "x"],
        ["send", "t", "x", "--property", "SCHEDULE_NAME=n"],
        ["send", "t", "x", "--dedup-key", "schedule:n:1:2"],
        ["send", "t", "x", "--after-recall", "0"],
        ["get", "0" * 24],
        ["recall", "nonsense"],
        ["receive", "t", "--queue", "9"],
    ):
        refused = run(*arguments)
        assert (refused.code, refused.out) == (1, ""), arguments
        assert len(refused.err.splitlines()) == 1, refused.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["send"],
        ["send", "t", "x", "--delay", "soon"],
        ["send", "t", "x", "--at", "tuesdayish"],
        ["send", "t", "x", "--at", "05/06/2027"],
        ["send", "t", "x", "--delay", "1s", "--level", "1"],
        ["send", "t", "x", "--property", "novalue"],
        ["reschedule", "id"],
        ["receive", "t", "--from", "middle"],
        ["receive", "t", "--max", "0"],
        ["recieve", "t"],
    ],
)
def test_wrong_usage_is_explained_and_is_exit_code_2(run, arguments):
    refused = run(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("url", "why"), [("http://127.0.0.1:1", "Connection refused"), ("http://nowhere.invalid:80", "not known")]
)
def test_a_service_that_cannot_be_reached_is_exit_code_3(url, why):
    refused = timerwheel("get", "x", "--url", url)
    assert (refused.code, refused.out) == (3, "")
    assert refused.err.startswith(f"timerwheel: cannot reach {url}: ")
    assert why in refused.err


@pytest.mark.parametrize(
    ("change", "code", "advice"),
    [
        (lambda url: f"{url}/v1", 1, "no route /v1/v1/topics"),
        (lambda url: f"{url}/v1", 1, "; is --url the service itself, without a path?"),
        (lambda url: url.replace("http:", "https:"), 3, "does it use TLS? an http:// URL"),
    ],
)
def test_the_error_for_a_wrong_address_says_what_may_be_wrong_with_it(url, change, code, advice):
    refused = timerwheel("topics", "list", "--url", change(url))
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (code, "", 1)
    assert advice in refused.err


async def test_a_service_that_does_not_know_a_call_may_be_older():
    problem = {"type": "x", "title": "Unknown route", "status": 404, "code": "unknown_route"}

    async def older(request):
        found = problem | {"detail": f"no route {request.path}"}
        return web.json_response(found, status=404, content_type="application/problem+json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", older)
    server = Served(app)
    await server.start_server()
    url = str(server.make_url("/")).rstrip("/")
    refused = await asyncio.to_thread(timerwheel, "tasks", "list", "--url", url)
    await server.close()
    assert (refused.code, refused.out) == (1, "")
    words = f"no route /v1/tasks; the service at {url} may be older than this program, and without this call"
    assert refused.err == f"timerwheel: {words}\n"


def test_the_error_for_a_service_that_hangs_up_suggests_tls():
    def hang_up():
        with contextlib.suppress(OSError):  # at the end
            while True:  # the client tries again
                taken, _ = listener.accept()
                with taken:
                    taken.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = threading.Thread(target=hang_up)
        other.start()
        refused = timerwheel("topics", "list", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}")
        listener.shutdown(socket.SHUT_RDWR)
        other.join()
    assert (refused.code, "an https:// URL calls it with TLS" in refused.err) == (3, True)


@pytest.mark.parametrize(
    ("flag", "wanted"),
    [("--ca", "certificates in PEM format"), ("--cert", "a certificate and its matching key")],
)
def test_the_error_for_tls_files_says_what_they_should_hold(tmp_path, flag, wanted):
    file = tmp_path / "own.pem"
    file.write_text("no certificate")
    refused = timerwheel("topics", "list", flag, file, "--url", "https://127.0.0.1:1")
    assert (refused.code, refused.out) == (2, "")
    assert f"{flag} {file}: not {wanted}" in refused.err
    missing = timerwheel("topics", "list", flag, tmp_path / "none", "--url", "https://127.0.0.1:1")
    assert (missing.code, "No such file or directory" in missing.err) == (2, True)


def test_an_error_of_a_file_names_it_and_has_no_number():
    refused = timerwheel("serve", "--port", 0, "--data", "/proc/timerwheel")
    assert refused == (1, "", "timerwheel: /proc/timerwheel: No such file or directory\n")


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("localhost:8686", "did you mean http://localhost:8686?"),
        ("127.0.0.1", "did you mean http://127.0.0.1?"),
        ("ftp://localhost:8686", "begins with http:// or https://; write one like http://127.0.0.1:8686"),
        ("http://localhost:http", "write one like"),
        ("http://localhost:99999", "Port out of range 0-65535"),
        ("http://localhost:0", "port is from 1"),
        ("http://", "names a host"),
        ("http://localhost:8686/?a=b", "ends with its path"),
        ("not a url", "no spaces"),
        ("", "write one like"),
    ],
)
def test_what_is_no_address_is_wrong_usage_and_says_what_one_looks_like(url, advice):
    for refused in (
        timerwheel("get", "x", "--url", url),
        timerwheel("top", TIMERWHEEL_URL=url) if url else timerwheel("top", "--url", ""),
    ):
        assert (refused.code, refused.out, len(refused.err.splitlines())) == (2, "", 1)
        assert refused.err.startswith(f"timerwheel: --url: {url!r} is not the address of a service, ")
        assert advice in refused.err


def test_a_transaction_is_begun_listed_committed_and_rolled_back(run):
    begun = run("transactions", "begin", "paid", "x", "--delay", "1h", "--json").json
    listed = run("transactions", "list").out
    assert begun["id"] in listed
    assert "open_transaction" not in run("transactions", "list", "--json").out
    assert "scheduled" in run("transactions", "commit", begun["id"]).out
    again = run("transactions", "commit", begun["id"])
    assert (again.code, "not an open transaction" in again.err) == (1, True)
    other = run("transactions", "begin", "paid", "y").out.split()[0]
    assert "recalled" in run("transactions", "rollback", other).out
    assert run("transactions", "list", "--json").json == {"transactions": []}
