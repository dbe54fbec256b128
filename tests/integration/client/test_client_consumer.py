"""What a consumer says of acknowledgements that fail."""

import asyncio
import logging

import pytest

from tests.harness.scripted_http import CLOSE, Reply, scripted
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
