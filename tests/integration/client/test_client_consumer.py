"""What a consumer says of acknowledgements that fail, and how it meets a limited rate."""

import asyncio
import logging

import pytest

from tests.harness.clock import ManualClock
from tests.harness.scripted_http import CLOSE, HANG, Reply, problem, scripted
from tests.integration.client.test_client_retries import QuickClock
from timerwheel import App
from timerwheel.client import Client, ClientError
from timerwheel.client import lease as leasing
from timerwheel.client.lease import SETTLE_MS_MAX, Lease

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
LIMITED_FOR_LONG = problem(429, "rate_limited", 3_600)
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


async def _until(true):
    async with asyncio.timeout(30):  # only keeps a failure from hanging
        while not true():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(("fails", "end"), [(False, "ack"), (True, "nack")])
@pytest.mark.parametrize("stops_first", [False, True])
async def test_a_worker_that_stops_does_not_wait_for_a_rate_that_lets_nothing_through_for_long(
    caplog, fails, end, stops_first
):
    clock, stop, go_on = ManualClock(), asyncio.Event(), asyncio.Event()
    async with scripted(SETTLED) as service, Client(service.url, clock=clock) as client:
        service.by_end = {"/receive": [FIRST, HANG], f"/{end}": [LIMITED_FOR_LONG]}

        async def handle(_):
            await go_on.wait()
            if fails:
                raise OSError

        consuming = asyncio.create_task(client.group("t", "g").consume(handle, stop=stop, concurrency=2))
        await _until(lambda: len(service.requests) == 2)  # the next receive would acknowledge
        if stops_first:
            stop.set()
        go_on.set()
        await _until(lambda: end in _ends(service))
        stop.set()
        await _until(consuming.done)
        await consuming
    assert _ends(service).count(end) <= 2
    assert clock.monotonic_ms() == 0
    assert "may be received again" in caplog.text or fails


async def test_a_worker_that_stops_waits_for_a_limited_rate_for_so_long_in_all(caplog):
    clock = QuickClock()
    async with scripted(SETTLED) as service:
        service.by_end = {"/receive": [FIRST], "/ack": [LIMITED]}
        await _consume_one(service, clock)
    assert _ends(service) == ["receive", *["ack"] * (1 + SETTLE_MS_MAX // 1_000)]
    assert "stopped without having acknowledged 1 messages" in caplog.text


async def test_an_app_that_stops_gives_back_what_is_not_done_when_the_rate_allows_it(caplog):
    clock, stop, begun = QuickClock(), asyncio.Event(), asyncio.Event()
    async with scripted(SETTLED) as service:
        service.by_end = {"/receive": [FIRST, HANG], "/nack": [LIMITED, SETTLED]}
        app = App(service.url, drain_ms=0, clock=clock)

        @app.worker("t", group="g")
        async def hang():
            begun.set()
            await asyncio.Event().wait()

        serving = asyncio.create_task(app.serve(stop))
        await begun.wait()
        stop.set()
        await serving
    assert _ends(service) == ["receive", "nack", "nack"]
    assert "will be redelivered when their leases end" not in caplog.text


async def test_nobody_waits_for_a_limited_rate_to_give_back_what_is_leased_no_more():
    clock = ManualClock()
    async with scripted(LIMITED_FOR_LONG) as service, Client(service.url, clock=clock) as client:
        service.by_end = {"/receive": [FIRST]}
        lease = await anext(client.group("t", "g").messages(create=True))
        giving_back = asyncio.create_task(lease.failed(OSError()))
        await _until(lambda: "nack" in _ends(service))
        for _ in range(29):
            await _passed(clock, 1_000)
        assert not giving_back.done()
        await _passed(clock, 1_000)
        await _until(giving_back.done)
        with pytest.raises(ClientError) as refused:
            await giving_back
    assert refused.value.code == "rate_limited"
    assert _ends(service) == ["receive", "nack"]


async def test_a_lease_that_is_extended_is_given_back_when_the_rate_allows_it():
    clock = ManualClock()
    async with scripted(SETTLED) as service, Client(service.url, clock=clock) as client:
        service.by_end = {"/receive": [FIRST], "/nack": [problem(429, "rate_limited", 60), SETTLED]}
        lease = await anext(client.group("t", "g").messages(create=True))
        giving_back = asyncio.create_task(lease.failed(OSError()))
        await _until(lambda: "nack" in _ends(service))
        for number in range(1, 6):
            await _passed(clock, 10_000)
            await _until(lambda number=number: len(service.requests) == 2 + number)
        assert not giving_back.done()
        await _passed(clock, 10_000)
        await _until(giving_back.done)
        assert lease.settled


async def _passed(clock, duration_ms):
    """Let time pass for those who wait by now."""
    for _ in range(5):
        await asyncio.sleep(0.001)
    clock.advance(duration_ms)
    for _ in range(5):
        await asyncio.sleep(0.001)


def _messages(*receipts):
    return Reply(200, {"messages": [ONE | {"receipt": receipt} for receipt in receipts]})


def _extended(*receipts):
    return Reply(200, {"results": [{"receipt": receipt, "ok": True} for receipt in receipts]})


async def _hold(group, count) -> list[Lease]:
    messages = group.messages(batch=count, create=True)
    return [await anext(messages) for _ in range(count)]


def _extensions(service):
    return [set(one.content["receipts"]) for one in service.requests if one.path.endswith("/extend")]


@pytest.mark.parametrize("other", [problem(429, "rate_limited", 1), problem(500, "internal")])
async def test_of_many_leases_all_are_extended_in_turn_though_calls_fail(monkeypatch, other):
    """A part that is refused must not lose its turn to one that was extended just before."""
    monkeypatch.setattr(leasing, "RECEIVE_MAX", 2)
    two, clock = _extended("a", "b"), QuickClock()
    async with scripted(SETTLED) as service, Client(service.url, clock=clock) as client:
        service.by_end = {"/receive": [_messages("a", "b", "c", "d")], "/extend": [two, other, two, other]}
        held = await _hold(client.group("t", "g"), 4)
        await _until(lambda: len(_extensions(service)) >= 3)
        first, refused, third, *_ = _extensions(service)
        assert first.isdisjoint(refused)
        assert third == refused
        assert not any(lease.lost for lease in held)


async def test_a_part_that_cannot_be_extended_does_not_keep_the_others_from_it(monkeypatch):
    monkeypatch.setattr(leasing, "RECEIVE_MAX", 2)
    clock = QuickClock()
    async with scripted(SETTLED) as service, Client(service.url, clock=clock) as client:
        service.by_end = {
            "/receive": [_messages("a", "b", "c", "d")],
            "/extend": [problem(500, "internal"), _extended("a", "b"), HANG],
        }
        held = await _hold(client.group("t", "g"), 4)
        await _until(lambda: len(_extensions(service)) >= 2)
        assert set.union(*_extensions(service)[:2]) == {"a", "b", "c", "d"}
        assert len(held) == 4


async def test_the_leases_that_end_soonest_are_extended_first_and_those_that_have_ended_last(monkeypatch):
    monkeypatch.setattr(leasing, "RECEIVE_MAX", 1)
    clock = ManualClock()
    async with scripted(SETTLED) as service, Client(service.url, clock=clock) as client:
        service.by_end = {
            "/receive": [_messages("late"), _messages("soon"), _messages("ended")],
            "/extend": [_extended("x")],
        }
        group = client.group("t", "g")
        late, soon, ended = [(await _hold(group, 1))[0] for _ in range(3)]
        late.ends_ms, soon.ends_ms, ended.ends_ms = 12_000, 11_000, 9_000
        await _passed(clock, 10_000)
        await _until(lambda: len(_extensions(service)) == 3)
        assert _extensions(service) == [{"soon"}, {"late"}, {"ended"}]
