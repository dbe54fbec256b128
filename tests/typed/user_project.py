"""A user's program, as type checkers see it: each `assert_type` is what a reader of the API expects.

It is checked by mypy and pyright, both strict, and never run: see tests/e2e/project/test_typing.py.
"""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, assert_type

import msgspec
from pydantic import BaseModel

from timerwheel import App, Client, Reject, Retry, SyncClient
from timerwheel.client import (
    ClientError,
    Draft,
    Exponential,
    Group,
    GroupConfig,
    Lease,
    Message,
    Sent,
    SyncGroup,
    SyncLease,
)
from timerwheel.testing.service import LocalService


class Order(msgspec.Struct):
    id: int


@dataclass
class Customer:
    name: str


class Payment(BaseModel):
    cents: int


app = App("http://127.0.0.1:8686", drain_ms=10_000, health="127.0.0.1:8080")


@app.worker("orders", group="closers", concurrency=8, max_attempts=3, backoff=Exponential(initial_ms=500))
async def close(order: Order, lease: Lease) -> None:
    if lease.attempt > 1:
        raise Retry("not yet", delay=dt.timedelta(minutes=5))
    await app.client.send("closed", order)


@app.worker("payments", group="bookers")
def book(payment: Payment) -> None:
    if payment.cents < 0:
        raise Reject("negative")


@app.every("15m")
def tidy() -> int:
    return 1


async def asynchronous() -> None:
    async with Client("http://127.0.0.1:8686", token="tw_x", retry_ms=0) as client:
        sent = await client.send("orders", Order(17), delay="30m", dedup_key="order-17")
        assert_type(sent, Sent)
        assert_type(sent.due, dt.datetime)
        drafts: list[Draft] = [
            {"topic": "orders", "body": "x", "delay": dt.timedelta(hours=1)},
            {"topic": "orders", "json": {"order": 17}},
        ]
        assert_type(await client.send_many(drafts), list[Sent])
        message = await client.get(sent.id)
        assert_type(message, Message)
        assert_type(message.as_(Order), Order)
        assert_type(message.as_(Payment), Payment)
        assert_type(message.as_(list[int]), list[int])
        assert_type(message.json(), Any)
        assert_type(message.delivered, dt.datetime | None)
        group = client.group("orders", "closers")
        assert_type(group, Group)
        async for lease in group.messages(batch=10):
            assert_type(lease, Lease)
            async with lease:
                assert_type(lease.as_(Customer), Customer)
        async for found in client.receive("orders", follow=False):
            assert_type(found, Message)


def synchronous() -> None:
    with SyncClient() as client:
        assert_type(client, SyncClient)
        sent = client.send("orders", Customer("Zoe"), deliver_at=dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
        assert_type(sent, Sent)
        assert_type(client.send("orders", Payment(cents=5)), Sent)
        assert_type(client.receive("orders"), Iterator[Message])
        group = client.group("orders", "closers")
        assert_type(group, SyncGroup)
        group.put(GroupConfig(max_attempts=3))
        for lease in group.messages():
            assert_type(lease, SyncLease)
            with lease:
                assert_type(lease.as_(Order).id, int)
        group.consume(handle, concurrency=4)
        assert_type([schedule.next_run for schedule in client.schedules.all()], list[dt.datetime | None])
        try:
            client.recall(sent.id)
        except ClientError as error:
            assert_type(error.code, str)


def handle(lease: SyncLease) -> None:
    lease.nack(delay="5m", reason="busy")


def test_orders(timerwheel_service: LocalService, timerwheel_client: SyncClient) -> None:
    timerwheel_client.send("orders", Order(17), delay="30m")
    timerwheel_service.advance("30m")
    assert timerwheel_service.work_off(app) == 1


def wrong(client: SyncClient) -> None:
    """Each of these lines is an error of both checkers; an unused `ignore` would be one too."""
    client.send("orders", 17)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.send("orders", "x", dealy="1h")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.send("orders", "x", delay=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
