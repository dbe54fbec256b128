"""What a consumer says of acknowledgements that fail, and how it meets a limited rate."""

import asyncio
import logging

import pytest

from tests.harness.scripted_http import CLOSE, Reply, problem, scripted
from tests.integration.client.test_client_retries import QuickClock
from timerwheel.client import Client

ONE = {
    "id": "000000000000000000000001",
    "topic": "t",
    "queue": 0,
    "enqueue_ms": 1,
    "properties": {},
    "state": "delivered",
    "due_ms": 1,
    "body": "x",
    "receipt": "r",
    "attempt": 1,
    "invisible_until_ms": 1,
}
FIRST = Reply(200, {"messages": [ONE]})
ENDED = [{"receipt": "r", "ok": False, "code": "receipt_ended"}]
LATE = Reply(200, {"messages": [], "results": ENDED})
NOTHING = Reply(200, {"messages": []})
LIMITED = problem(429, "rate_limited", 1)
SETTLED = Reply(200, {"results": [{"receipt": "r", "ok": True}]})


@pytest.mark.parametrize(
    ("replies", "warnings"),
    [
        pytest.param([FIRST, LATE], ["acknowledged too late"], id="answered"),
        pytest.param([FIRST, CLOSE, LATE], ["cannot receive or acknowledge"], id="unanswered before"),
    ],
)
async def test_an_acknowledgement_is_called_late_only_if_an_earlier_one_cannot_have_been_stored(
    replies, warnings, caplog
):
    caplog.set_level(logging.INFO)
    async with scripted(*replies, NOTHING) as service, Client(service.url) as client:
        stop = asyncio.Event()

        async def handle(_):
            pass

        consuming = asyncio.create_task(client.group("t", "g").consume(handle, stop=stop, retry_ms=0))
        while len(service.requests) <= len(replies) and not consuming.done():
            await asyncio.sleep(0)
        stop.set()
        await consuming
    said = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert [one.startswith(start) for one, start in zip(said, warnings, strict=True)] == [True]


def _ends(service):
    """The calls but extensions, of which a quick clock makes many."""
    ends = [request.path.rpartition("/")[2] for request in service.requests]
    return [end for end in ends if end != "extend"]


async def _consume_one(service, clock, error=None):
    stop = asyncio.Event()

    async def handle(_):
        stop.set()
        if error is not None:
            raise error

    async with Client(service.url, clock=clock) as client:
        await client.group("t", "g").consume(handle, stop=stop, create=True)


async def test_a_worker_waits_for_a_limited_rate_and_goes_on(caplog):
    clock = QuickClock()
    async with scripted(SETTLED) as service:
        service.by_end = {"/receive": [LIMITED, FIRST], "/ack": [LIMITED, LIMITED, SETTLED]}
        await _consume_one(service, clock)
    assert _ends(service) == ["receive", "receive", "ack", "ack", "ack"]
    assert clock.waits.count(1_000) == 3
    assert "too late" not in caplog.text


async def test_what_fails_under_a_limited_rate_is_given_back_with_its_reason():
    clock = QuickClock()
    async with scripted(SETTLED) as service:
        service.by_end = {"/receive": [FIRST], "/nack": [LIMITED, SETTLED]}
        await _consume_one(service, clock, OSError(2, "no such file", "\udcff.csv"))
    assert _ends(service) == ["receive", "nack", "nack"]
    reasons = [one.content["reason"] for one in service.requests if one.path.endswith("/nack")]
    assert reasons == ["FileNotFoundError: [Errno 2] no such file: '\\udcff.csv'"] * 2


async def test_a_reason_without_utf8_is_given_back_too(caplog):
    caplog.set_level(logging.CRITICAL)  # else pytest-xdist has to send the text, and cannot
    async with scripted(SETTLED) as service:
        service.by_end = {"/receive": [FIRST], "/nack": [SETTLED]}
        await _consume_one(service, QuickClock(), RuntimeError("\udcff.csv"))
    [reason] = [one.content["reason"] for one in service.requests if one.path.endswith("/nack")]
    assert reason == "RuntimeError: ?.csv"


async def test_a_lease_that_a_limited_rate_keeps_from_being_extended_is_extended_later():
    clock = QuickClock()
    async with scripted(SETTLED) as service, Client(service.url, clock=clock) as client:
        service.by_end = {"/receive": [FIRST], "/extend": [LIMITED, SETTLED]}
        lease = await anext(client.group("t", "g").messages(create=True))
        while len(service.requests) < 4:
            await asyncio.sleep(0)
        assert not lease.lost
    assert clock.waits[:3] == [10_000, 1_000, 10_000]
