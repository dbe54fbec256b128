"""Workers of an app against a service in this process: what handlers get, and what their outcomes do."""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass

import msgspec
import pytest

from tests.harness.log_lines import log_lines
from tests.harness.ports import reserved_port
from tests.harness.relay import Relay
from timerwheel import App, Client, Reject, Retry
from timerwheel.client import AddressError, ConflictError, Exponential, Lease, Message, SyncLease
from timerwheel.client import app as app_module
from timerwheel.client.app import message_id
from timerwheel.groups.config import RECEIVE_MAX
from timerwheel.testing.service import LocalService


class Order(msgspec.Struct):
    id: int


@dataclass
class Point:
    x: int


@pytest.fixture
def service():
    with LocalService() as service:
        yield service


@pytest.fixture
def app(service):
    return App(service.url, drain_ms=200)


async def test_a_handler_gets_what_its_annotation_says(service, app):
    seen = []

    @app.worker("t", group="order")
    async def order(order: Order):
        seen.append(order)

    @app.worker("t", group="point")
    def point(point: dict[str, int], lease: SyncLease):
        seen.append((point, lease.attempt))

    @app.worker("t", group="text")
    async def text(text: str):
        seen.append(text)

    @app.worker("t", group="bytes")
    def raw(body: bytes):
        seen.append(body)

    @app.worker("t", group="message")
    async def message(message: Message):
        seen.append(message.topic)

    @app.worker("t", group="lease")
    async def lease(lease, other: Lease):
        seen.append(lease is other)

    @app.worker("t", group="sync")
    def sync(lease):
        seen.append(type(lease))

    @app.worker("t", group="nothing")
    def nothing():
        seen.append("nothing")

    async with Client(service.url) as client:
        await client.send("t", Order(17))
    assert await app.work_off() == 8
    assert seen == [Order(17), ({"id": 17}, 1), '{"id":17}', b'{"id":17}', "t", True, SyncLease, "nothing"]
    assert [worker.done for worker in app.workers] == [1] * 8


def test_a_handler_with_three_parameters_is_refused(app):
    with pytest.raises(TypeError, match="not more"):

        @app.worker("t", group="g")
        def handler(a, b, c):
            pass


async def test_what_is_raised_decides_what_becomes_of_a_message(service, app, caplog):
    @app.worker("t", group="g", max_attempts=3, backoff=Exponential(initial_ms=60_000))
    def handler(text: str):
        if text == "later":
            raise Retry("not yet", delay="2h")
        if text == "never":
            raise Reject("no such customer")
        if text == "fails":
            raise ConnectionError("away")

    async with Client(service.url) as client:
        await client.send_many([{"topic": "t", "body": body} for body in ("later", "never", "fails", "good")])
        assert await app.work_off() == 4
        info = await client.group("t", "g").info()
        assert (info.lag, info.waiting, info.dead_letters) == (0, 2, 1)
        [letter] = [letter async for letter in client.dead_letters("g", "t").all()]
        assert (letter.message.text, letter.reason, letter.attempts) == ("never", "no such customer", 1)
        assert (app.workers[0].done, app.workers[0].failed) == (2, 2)
        assert f"message {letter.origin_id} is a dead letter: no such customer" in caplog.text
        service.advance("1m")  # the backoff of "fails"
        assert await app.work_off() == 1
        service.advance("1h")  # its last attempt
        assert await app.work_off() == 1
        assert (await client.group("t", "g").info()).dead_letters == 2
        service.advance("1h")
        assert await app.work_off() == 1  # "later"


@pytest.mark.parametrize("way", [SystemExit, asyncio.CancelledError])
async def test_a_handler_that_exits_or_is_cancelled_from_within_has_failed_and_the_app_goes_on(
    service, app, way
):
    @app.worker("t", group="awaited", backoff=Exponential(initial_ms=60_000))
    async def awaited(text: str):
        if text == "bad":
            raise way

    @app.worker("t", group="thread", backoff=Exponential(initial_ms=60_000))
    def in_a_thread(text: str):
        if text == "bad":
            raise way

    async with Client(service.url) as client:
        await client.send_many([{"topic": "t", "body": body} for body in ("bad", "good")])
        assert await app.work_off() == 4
        for group in ("awaited", "thread"):
            info = await client.group("t", group).info()
            assert (info.lag, info.in_flight, info.waiting) == (0, 0, 1)


async def test_a_body_that_does_not_fit_is_a_dead_letter_at_once(service, app):
    @app.worker("t", group="g")
    async def handler(order: Order):
        raise AssertionError(order)

    async with Client(service.url) as client:
        await client.send("t", json={"id": "seventeen"})
        await app.work_off()
        [letter] = [letter async for letter in client.dead_letters("g", "t").all()]
    assert "Expected `int`, got `str` - at `$.id`" in letter.reason


async def test_a_handler_that_settles_its_message_keeps_its_decision(service, app):
    @app.worker("t", group="g")
    def handler(lease: SyncLease):
        lease.nack(delay="5m")

    async with Client(service.url) as client:
        await client.send("t", "x")
        await app.work_off()
        assert (await client.group("t", "g").info()).waiting == 1


async def test_handlers_that_send_are_worked_off_in_one_go(service, app):
    @app.worker("first", group="g")
    async def first(text: str):
        await app.client.send("second", text)

    seen = []

    @app.worker("second", group="g")
    def second(text: str):
        seen.append(text)

    async with Client(service.url) as client:
        await client.send("first", "x")
    assert await app.work_off() == 2
    assert seen == ["x"]
    with pytest.raises(RuntimeError, match="not running"):
        _ = app.client


async def test_workers_run_side_by_side_and_threads_do_not_hold_them_up(service, app):
    together = threading.Barrier(2)
    met = asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.worker("t", group="a", concurrency=2)
    def blocks():
        together.wait()  # two messages at a time
        loop.call_soon_threadsafe(met.set)

    async with app.running():
        await app.client.send_many([{"topic": "t", "body": "1"}, {"topic": "t", "body": "2"}])
        await met.wait()
    async with Client(service.url) as client:
        assert (await client.group("t", "a").info()).lag == 0


async def test_a_stopped_app_finishes_what_it_does_and_gives_the_rest_back(service, app, caplog):
    begun, began, release = [], asyncio.Semaphore(0), asyncio.Event()

    @app.worker("t", group="g", concurrency=2)
    async def handler(text: str):
        begun.append(text)
        began.release()
        await (release if text == "quick" else asyncio.Event()).wait()

    stop = asyncio.Event()
    serving = asyncio.create_task(app.serve(stop))
    async with Client(service.url) as client:
        await client.send_many([{"topic": "t", "body": body} for body in ("quick", "hangs", "waits")])
        for _ in range(2):
            await began.acquire()
        stop.set()
        await asyncio.sleep(0)
        release.set()
        await serving
        assert sorted(begun) == ["hangs", "quick"]
        info = await client.group("t", "g").info()
        assert (info.lag, info.in_flight, info.waiting) == (1, 0, 1)
        assert "t/g: giving back 1 messages that are not done" in caplog.text
        service.advance("1s")  # not its backoff of 10 s
        assert {one.text for one in await client.group("t", "g").receive(2)} == {"hangs", "waits"}


async def test_a_second_signal_does_not_wait(service, app):
    app.drain_ms = 3_600_000
    begun = asyncio.Event()

    @app.worker("t", group="g")
    async def handler():
        begun.set()
        await asyncio.Event().wait()

    stop, hurry = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(app.serve(stop, hurry))
    async with Client(service.url) as client:
        await client.send("t", "x")
        await begun.wait()
        stop.set()
        hurry.set()
        await serving
        assert (await client.group("t", "g").info()).waiting == 1


@pytest.mark.parametrize("is_there", [True, False])
async def test_an_app_that_waits_for_its_service_ends_at_once_when_it_is_stopped(is_there):
    called = asyncio.Event()

    async def say_nothing(reader, writer):
        called.set()
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1] if is_there else reserved_port()
    app = App(f"http://127.0.0.1:{port}", drain_ms=3_600_000)

    @app.worker("t", group="g", max_attempts=3)
    async def handler():
        pass

    stop = asyncio.Event()
    with log_lines() as lines:
        serving = asyncio.create_task(app.serve(stop))
        await (called.wait() if is_there else lines.wait_for("waiting for the service"))
    stop.set()
    async with asyncio.timeout(20):  # only keeps a failure from hanging
        await serving
    silent.close()
    await silent.wait_closed()


async def test_a_service_that_hangs_does_not_hold_up_the_end_of_an_app(service, caplog, monkeypatch):
    monkeypatch.setattr(app_module, "GIVE_BACK_MS_MAX", 50)
    async with Relay() as relay:
        relay.target = service.url
        app, begun, stop = App(relay.url, drain_ms=0), asyncio.Semaphore(0), asyncio.Event()

        async def hang():
            begun.release()
            await asyncio.Event().wait()

        for group in "ab":
            app.worker("t", group=group)(hang)
        serving = asyncio.create_task(app.serve(stop))
        async with Client(service.url) as client:
            await client.send("t", "x")
        for _ in app.workers:
            await begun.acquire()
        relay.is_silent = True
        stop.set()
        async with asyncio.timeout(20):  # only keeps a failure from hanging
            await serving
    assert caplog.text.count("the service did not answer within 50 ms") == 2


async def test_more_messages_than_one_call_takes_are_given_back(service, app):
    began, count = asyncio.Semaphore(0), RECEIVE_MAX + 1

    @app.worker("t", group="g", concurrency=count)
    async def handler():
        began.release()
        await asyncio.Event().wait()

    stop = asyncio.Event()
    serving = asyncio.create_task(app.serve(stop))
    async with Client(service.url) as client:
        await client.send_many([{"topic": "t", "body": "x"}] * count)
        for _ in range(count):
            await began.acquire()
        app.drain_ms = 0
        stop.set()
        await serving
        info = await client.group("t", "g").info()
        assert (info.in_flight, info.waiting) == (0, count)


async def test_a_worker_that_cannot_work_ends_the_app_with_its_error(service, app):
    async with Client(service.url) as client:
        await client.send("t", "x")
        await client.group("t", "g").receive(tags="a", create=True)

    @app.worker("t", group="g", tags="b")
    def handler(text: str):
        pass

    with pytest.raises(ConflictError):
        await app.serve(asyncio.Event())


def fetch(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


async def test_the_health_check_shows_counts_and_turns_bad_while_draining(service, app):
    port = reserved_port()
    app.health, app.drain_ms = f"127.0.0.1:{port}", 3_600_000
    begun, release = asyncio.Event(), asyncio.Event()

    @app.worker("t", group="g", concurrency=3)
    async def handler():
        begun.set()
        await release.wait()

    stop = asyncio.Event()
    serving = asyncio.create_task(app.serve(stop))
    async with Client(service.url) as client:
        await client.send("t", "x")
        await begun.wait()
        status, content = await asyncio.to_thread(fetch, port)
        counts = {"concurrency": 3, "in_progress": 1, "done": 0, "failed": 0}
        assert (status, content["status"]) == (200, "working")
        assert content["workers"] == [{"topic": "t", "group": "g", **counts}]
        stop.set()
        while not app.draining:
            await asyncio.sleep(0)
        status, content = await asyncio.to_thread(fetch, port)
        assert (status, content["status"]) == (503, "draining")
        release.set()
        await serving


@pytest.mark.parametrize("address", ["8080", "localhost:http", "127.0.0.1:99999"])
async def test_a_health_check_at_no_address_is_refused(app, address):
    app.health = address

    @app.worker("t", group="g")
    def handler():
        pass

    with pytest.raises(AddressError, match="health check"):
        await app.serve(asyncio.Event())


async def test_an_app_without_workers_is_refused(app):
    with pytest.raises(ValueError, match="no workers"):
        await app.serve(asyncio.Event())


async def test_a_scheduled_function_runs_at_its_times(service, app):
    runs = []

    @app.every("15m")
    def tidy():
        runs.append("tidy")

    @app.cron("0 * * * *", zone="UTC", name="hourly-report")
    async def report():
        runs.append("report")

    assert await app.work_off() == 0
    service.advance("1h")
    await app.work_off()
    assert (runs.count("tidy"), runs.count("report")) == (4, 1)
    async with Client(service.url) as client:
        before = await client.schedules.get("tidy")
        await app.work_off()
        assert (await client.schedules.get("tidy")).generation == before.generation  # left as it was


def test_log_lines_of_a_handler_can_carry_the_id_of_its_message(service, app):
    seen = []

    @app.worker("t", group="g")
    def handler(message: Message):
        seen.append(message_id.get() == message.id)

    with service.client() as client:
        client.send("t", "x")
    assert service.work_off(app) == 1
    assert seen == [True]
    assert message_id.get() == "-"
