"""`explain` and its call: the story of a message, of a service and of its directory."""

import asyncio
import signal

import msgspec

from tests.harness.processes import ROOT, serving, timerwheel
from timerwheel.client import Client

GOLDEN = ROOT / "tests" / "golden" / "v1"
REASON = "\x1b[2Jbroken"


async def live(url: str) -> str:
    """A message that is given back once, then acknowledged; its id."""
    async with Client(url) as client:
        sent = await client.send("orders", "\x1b[31mred", delay="200ms")
        group = client.group("orders", "closers")
        [first] = await group.receive(wait_ms=20_000)
        await group.nack([first.receipt], delay_ms=1_000, reason=REASON)
        [second] = await group.receive(wait_ms=20_000)
        await group.ack([second.receipt])
    return sent.id


def test_a_service_and_its_directory_show_the_same_history_also_after_a_kill(tmp_path):
    with serving(tmp_path / "d") as service:
        message_id = asyncio.run(live(service.url))
        story = timerwheel("explain", message_id, "--json", "--url", service.url).json
        shown = timerwheel("explain", message_id, "--url", service.url).out
        refused = timerwheel("explain", "0" * 24, "--url", service.url)
        service.end(signal.SIGKILL)
    assert timerwheel("explain", message_id, "--data", tmp_path / "d", "--json").json == story
    assert [event["what"] for event in story["events"]] == [
        *("sent", "due", "delivered"),
        *("given_back", "came_back", "acknowledged"),
    ]
    times = [event["at_ms"] for event in story["events"]]
    assert times == sorted(times)
    assert story["groups"] == [{"group": "closers", "standing": "acknowledged", "attempts": 2}]
    assert "\x1b" not in shown
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (1, "", 1)


def explained(body: str) -> str:
    """What people read of a message in the golden directory that waits, or was delivered to `orders`."""
    told = msgspec.json.decode((GOLDEN / "expected.json").read_bytes())["told"]
    ids = {text: message_id for message_id, *_, text in told["delivered"]["orders"] + told["waiting"]}
    return timerwheel("explain", ids[body], "--data", GOLDEN / "service", "--utc").out


def test_people_read_what_happened_line_by_line():
    shown = explained("at once 0")
    for words in (
        "sent, due at once",
        "delivered, 0 ms after due, as orders/0@1",
        "closers: attempt 1 acknowledged",
    ):
        assert words in shown
    assert "closers  acknowledged" in shown
    shown = explained("at once 1")
    assert "closers: became a dead letter after attempt 1: broken" in shown
    assert "closers  dead letter" in shown


def test_people_read_when_a_waiting_message_is_due():
    shown = explained("wörds")
    assert "scheduled" in shown
    assert "sent, due 24 Feb 2027 " in shown


def test_an_unknown_id_is_one_line_and_exit_code_1():
    refused = timerwheel("explain", "0" * 24, "--data", GOLDEN / "service")
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (1, "", 1)


async def test_the_call_answers_with_the_history_or_a_problem(service):
    sent = (await service.send({"topic": "orders", "delay_ms": 60_000})).content
    answer = await service.call("GET", f"/v1/messages/{sent['id']}/history")
    assert answer.status == 200
    assert [event["what"] for event in answer.content["events"]] == ["sent", "due"]
    answer = await service.call("GET", f"/v1/messages/{'0' * 24}/history")
    assert (answer.status, answer.code) == (404, "unknown_message")
    answer = await service.call("GET", f"/v1/messages/{sent['id']}/history?x=1")
    assert (answer.status, answer.code) == (400, "invalid_parameter")


async def ended(url: str) -> list[str]:
    """Three half messages: one is committed, one rolled back, one stays open; their ids."""
    async with Client(url) as client:
        ids = [(await client.begin("orders", "x", delay=delay)).id for delay in ("0s", "1h", "1h")]
        await client.commit(ids[0])
        await client.roll_back(ids[1])
    return ids


def test_people_read_how_a_transaction_ended_and_never_a_year_that_means_none(tmp_path):
    with serving(tmp_path / "d") as service:
        ids = asyncio.run(ended(service.url))
        timerwheel("groups", "put", "orders", "g", "--kind", "offsets", "--url", service.url)
        shown = [timerwheel("explain", message_id, "--url", service.url).out for message_id in ids]
    committed, rolled_back, is_open = shown
    for words in (
        "half message",
        "transaction committed, due at once",
        "delivered, 0 ms after due, as orders/0@0",
    ):
        assert words in committed
    assert "before its due time" not in committed
    assert "the group has not committed an offset past it" in committed
    assert "transaction rolled back" in rolled_back
    assert "never: its transaction was rolled back" in rolled_back
    assert "its transaction is open" in is_open
    assert "9999" not in "".join(shown)
