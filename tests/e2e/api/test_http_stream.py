"""Messages of a group as server-sent events, read by a client that knows the bytes and nothing else."""

import asyncio
import contextlib
import os
import signal

import orjson
import pytest
from yarl import URL

from timerwheel.api import engine_handle
from timerwheel.api.groups import stream
from timerwheel.api.server import serve
from timerwheel.settings import Serving, Settings

HOUR_MS = 3_600_000
GROUP = "/v1/topics/orders/groups/workers"
SIGN = {"X-Requested-With": "test"}
LIMIT_S = 60  # only keeps a failure from hanging


class Stream:
    """One connection; `head` is the answer's, events come one by one."""

    def __init__(self, reader, writer):
        self._reader = reader
        self.writer = writer
        self._bytes = b""
        self.comments = []

    @classmethod
    async def open(cls, url, query="", path=GROUP, limit=1 << 16, header=""):
        reader, writer = await asyncio.open_connection(url.host, url.port, limit=limit)
        query += f"{'&' if query else '?'}create=true"
        writer.write(f"GET {path}/stream{query} HTTP/1.1\r\nHost: localhost\r\n".encode())
        writer.write(f"X-Requested-With: test\r\n{header}\r\n".encode())
        await writer.drain()
        found = cls(reader, writer)
        found.head = (await reader.readuntil(b"\r\n\r\n")).decode()
        return found

    async def event(self):
        """The next event as (kind, id, data); None at the end of the answer."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                while b"\n\n" not in self._bytes:
                    size = int(await self._reader.readuntil(b"\r\n"), 16)
                    self._bytes += (await self._reader.readexactly(size + 2))[:-2]
                    if not size:
                        return None
                block, self._bytes = self._bytes.split(b"\n\n", 1)
                if not block.startswith(b":"):
                    lines = dict(line.split(b": ", 1) for line in block.split(b"\n"))
                    return lines[b"event"].decode(), lines.get(b"id"), orjson.loads(lines[b"data"])
                self.comments.append(block)

    async def message(self):
        kind, _, data = await self.event()
        assert kind == "message"
        return data

    async def comment(self):
        """Wait for a comment more."""
        before = len(self.comments)
        with contextlib.suppress(TimeoutError):
            while len(self.comments) == before:
                async with asyncio.timeout(0.05):
                    await self.event()

    def close(self):
        self.writer.close()


@pytest.fixture
async def service(start_service):
    return await start_service(redelivery_delay_ms=0)


async def _info(service):
    return (await service.call("GET", GROUP)).content


async def _settle(service, verb, *receipts, **more):
    content = {"receipts": list(receipts), **more}
    answer = await service.call("POST", f"{GROUP}/{verb}", json=content)
    assert all(result["ok"] for result in answer.content["results"])


async def _until(true):
    async with asyncio.timeout(LIMIT_S):
        while not await true():
            await asyncio.sleep(0.01)


async def test_messages_come_as_events_in_order_and_as_they_are_delivered(service):
    await service.send([{"topic": "orders", "body": "1"}, {"topic": "orders", "body": "two\nlines"}])
    events = await Stream.open(service.url)
    head = events.head.lower()
    assert head.startswith("http/1.1 200 ")
    assert "content-type: text/event-stream\r\n" in head
    assert "cache-control: no-store\r\n" in head
    assert "x-request-id: " in head
    kind, receipt, data = await events.event()
    assert (kind, receipt.decode(), data["body"], data["attempt"]) == ("message", data["receipt"], "1", 1)
    assert (await events.message())["body"] == "two\nlines"
    await service.send({"topic": "orders", "body": "3", "delay_ms": 300})
    assert (await events.message())["body"] == "3"
    events.close()


async def test_no_more_than_the_window_is_with_a_client_and_an_acknowledgement_makes_room(service):
    await service.send([{"topic": "orders", "body": str(i)} for i in range(5)])
    events = await Stream.open(service.url, "?max_in_flight=2")
    first, second = await events.message(), await events.message()
    info = await _info(service)
    assert (info["in_flight"], info["lag"]) == (2, 3)
    await _settle(service, "ack", first["receipt"])
    third = await events.message()
    await _settle(service, "nack", second["receipt"], delay_ms=HOUR_MS)
    fourth = await events.message()
    assert [one["body"] for one in (third, fourth)] == ["2", "3"]
    info = await _info(service)
    assert (info["in_flight"], info["waiting"], info["lag"]) == (2, 1, 1)
    events.close()


async def test_a_lease_that_is_over_makes_room_and_the_message_comes_again(service):
    await service.call(
        "PUT", GROUP, json={"backoff": {"type": "exponential", "initial_ms": 0, "factor": 1, "max_ms": 0}}
    )
    await service.send({"topic": "orders"})
    events = await Stream.open(service.url, "?max_in_flight=1&invisible_ms=300")
    assert [(await events.message())["attempt"] for _ in range(3)] == [1, 2, 3]
    events.close()


async def test_an_extended_message_keeps_its_place_in_the_window(service, monkeypatch):
    monkeypatch.setattr(stream, "KEEP_ALIVE_MS", 100)
    await service.send([{"topic": "orders", "body": "1"}, {"topic": "orders", "body": "2"}])
    events = await Stream.open(service.url, "?max_in_flight=1&invisible_ms=1000")
    first = await events.message()
    await _settle(service, "extend", first["receipt"], invisible_ms=HOUR_MS)
    until_ms = first["invisible_until_ms"]
    while service.engine.clock.now_ms() <= until_ms + 300:
        await events.comment()
    assert (await _info(service))["lag"] == 1
    await _settle(service, "ack", first["receipt"])
    assert (await events.message())["body"] == "2"
    events.close()


async def test_a_rewind_empties_the_window(service):
    await service.send([{"topic": "orders", "body": "1"}, {"topic": "orders", "body": "2"}])
    events = await Stream.open(service.url, "?max_in_flight=1&invisible_ms=3600000")
    assert (await events.message())["body"] == "1"
    await service.call("POST", f"{GROUP}/rewind", json={"offsets": {"0": 1}})
    assert (await events.message())["body"] == "2"
    events.close()


async def test_a_rewind_in_another_protocol_empties_the_window(service):
    await service.send([{"topic": "orders", "body": "1"}, {"topic": "orders", "body": "2"}])
    events = await Stream.open(service.url, "?max_in_flight=1&invisible_ms=3600000")
    assert (await events.message())["body"] == "1"
    await service.engine.groups.rewind("orders", "workers", offsets={0: 1})  # as RocketMQ's admin calls do
    assert (await events.message())["body"] == "2"
    events.close()


async def test_a_purge_empties_the_window_of_what_it_ended(service):
    await service.send([{"topic": "orders", "body": str(i)} for i in range(2)])
    events = await Stream.open(service.url, "?max_in_flight=2&invisible_ms=3600000")
    assert [(await events.message())["body"] for _ in range(2)] == ["0", "1"]
    answer = await service.call("POST", "/v1/topics/orders/purge", json={"delivered": True})
    assert answer.status == 200
    await service.send([{"topic": "orders", "body": str(i)} for i in range(2, 5)])
    assert [(await events.message())["body"] for _ in range(2)] == ["2", "3"]
    assert (await _info(service))["lag"] == 1
    events.close()


async def test_messages_that_outlive_a_purge_keep_their_places_in_the_window(service):
    await service.send([{"topic": "orders", "body": str(i)} for i in range(3)])
    events = await Stream.open(service.url, "?max_in_flight=2&invisible_ms=3600000")
    assert [(await events.message())["body"] for _ in range(2)] == ["0", "1"]
    await service.engine.groups.end_before("orders", {0: 1})
    assert (await events.message())["body"] == "2"
    info = await _info(service)
    assert info["in_flight"] == 2
    events.close()


async def test_a_stream_with_a_full_window_ends_when_its_topic_is_deleted(service):
    await service.send([{"topic": "orders", "body": str(i)} for i in range(2)])
    events = await Stream.open(service.url, "?max_in_flight=1&invisible_ms=3600000")
    await events.message()
    await service.call("DELETE", "/v1/topics/orders")
    kind, _, data = await events.event()
    assert (kind, data["code"]) == ("end", "unknown_group")
    events.close()


async def test_last_event_id_acknowledges_nothing_and_gives_nothing_back(service):
    await service.send([{"topic": "orders", "body": str(i)} for i in range(3)])
    events = await Stream.open(service.url, "?max_in_flight=2")
    first, second = await events.message(), await events.message()
    events.close()
    again = await Stream.open(service.url, header=f"Last-Event-ID: {second['receipt']}\r\n")
    assert (await again.message())["body"] == "2"
    info = await _info(service)
    assert (info["in_flight"], info["lag"]) == (3, 0)
    await _settle(service, "ack", first["receipt"], second["receipt"])
    again.close()


async def test_auto_acknowledges_what_was_sent(service):
    await service.send([{"topic": "orders", "body": str(i)} for i in range(300)])
    events = await Stream.open(service.url, "?ack=auto&max_in_flight=7")
    assert [(await events.message())["body"] for _ in range(300)] == [str(i) for i in range(300)]

    async def nothing_left():
        info = await _info(service)
        return (info["lag"], info["in_flight"]) == (0, 0)

    await _until(nothing_left)
    events.close()


@pytest.mark.parametrize("ack", ["manual", "auto"])
async def test_a_client_that_does_not_read_holds_up_its_stream_within_the_window(service, ack):
    body = "x" * 1_000_000
    await service.send_bytes(orjson.dumps([{"topic": "orders", "body": body} for _ in range(30)]))
    events = await Stream.open(service.url, f"?max_in_flight=20&ack={ack}", limit=1024)

    async def stuck():
        before = await _info(service)
        await asyncio.sleep(0.3)
        after = await _info(service)
        counts = before.keys() - {"oldest_age_ms"}  # which grows
        return all(before[name] == after[name] for name in counts) and before["in_flight"] > 0

    await _until(stuck)
    info = await _info(service)
    assert info["lag"] >= 10
    assert info["in_flight"] <= 20
    seen = [await events.message() for _ in range(20)]
    assert all(one["body"] == body for one in seen)
    events.close()


async def test_a_client_that_goes_leaves_no_more_than_its_window_and_takes_no_more(service):
    await service.send([{"topic": "orders", "body": str(i)} for i in range(9)])
    events = await Stream.open(service.url, "?max_in_flight=3&invisible_ms=3600000")
    held = [await events.message() for _ in range(3)]
    events.close()
    await _settle(service, "ack", *(one["receipt"] for one in held))

    async def all_that_was_taken_is_back():
        # What was leased before the service saw it go is given back.
        info = await _info(service)
        return info["in_flight"] == 0

    await _until(all_that_was_taken_is_back)
    received = await service.call("POST", f"{GROUP}/receive", json={"max": 9, "wait_ms": 2000})
    more = await service.call("POST", f"{GROUP}/receive", json={"max": 9, "wait_ms": 100})
    bodies = [one["body"] for one in received.content["messages"] + more.content["messages"]]
    assert sorted(bodies) == [str(i) for i in range(3, 9)]


async def test_what_a_client_that_goes_did_not_get_is_given_back_at_once(service):
    body = "x" * 4_000_000
    await service.send_bytes(orjson.dumps([{"topic": "orders", "body": body} for _ in range(6)]))
    events = await Stream.open(service.url, "?ack=auto&invisible_ms=3600000", limit=1024)

    async def has_taken():
        return (await _info(service))["in_flight"] > 1

    await _until(has_taken)
    events.writer.transport.abort()

    async def has_given_back():
        return (await _info(service))["in_flight"] == 1  # the client may have read what was begun

    await _until(has_given_back)
    received = await service.call("POST", f"{GROUP}/receive", json={"max": 9, "wait_ms": 20_000})
    assert received.content["messages"][0]["body"] == body


async def test_a_silent_stream_says_that_it_is_alive(service, monkeypatch):
    monkeypatch.setattr(stream, "KEEP_ALIVE_MS", 50)
    await service.send([{"topic": "orders", "body": str(i)} for i in range(2)])
    events = await Stream.open(service.url, "?max_in_flight=1")
    await events.message()
    for _ in range(3):  # also while the window is full
        await events.comment()
    assert events.comments[1:] == [b": still here"] * len(events.comments[1:])
    assert len(events.comments) >= 3
    events.close()


async def test_a_deleted_group_ends_its_streams_with_the_reason(service):
    events = await Stream.open(service.url)
    await service.call("DELETE", GROUP)
    kind, _, problem = await events.event()
    assert (kind, problem["code"], problem["status"]) == ("end", "unknown_group", 404)
    assert await events.event() is None
    events.close()
    assert (await service.call("GET", "/v1/groups")).content == {"groups": []}


async def test_changed_tags_end_no_stream(service):
    events = await Stream.open(service.url, "?tags=paid")
    await service.call("PUT", GROUP, json={"tags": "new"})
    await service.send({"topic": "orders", "tags": "new"})
    assert (await events.message())["tags"] == "new"
    events.close()


async def test_a_stop_ends_streams_with_an_event(tmp_path):
    url = asyncio.get_running_loop().create_future()
    settings = Settings(data=tmp_path / "data", disk_reserve_bytes=0)
    task = asyncio.create_task(serve(settings, Serving(port=0), url.set_result))
    events = await Stream.open(URL(await url))
    os.kill(os.getpid(), signal.SIGTERM)
    kind, _, problem = await events.event()
    assert (kind, problem["code"]) == ("end", "not_ready")
    assert await events.event() is None
    async with asyncio.timeout(LIMIT_S):
        await task
    events.close()


async def test_a_stop_does_not_wait_for_a_client_that_does_not_read(tmp_path):
    url = asyncio.get_running_loop().create_future()
    settings = Settings(data=tmp_path / "data", disk_reserve_bytes=0)
    task = asyncio.create_task(serve(settings, Serving(port=0), url.set_result))
    at = URL(await url)
    for _ in range(6):
        reader, writer = await asyncio.open_connection(at.host, at.port)
        size = 4_000_000
        head = f"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + b"x" * size)
        await writer.drain()
        await reader.read()
        writer.close()
    events = await Stream.open(at, limit=1024)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(LIMIT_S):
        await task
    events.close()


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("?max_in_flight=0", 400, "invalid_parameter"),
        ("?max_in_flight=1001", 400, "invalid_parameter"),
        ("?invisible_ms=0", 400, "invalid_parameter"),
        ("?ack=never", 400, "invalid_parameter"),
        ("?start=middle", 400, "invalid_parameter"),
        ("?surprise=1", 400, "invalid_parameter"),
        ("?tags=a%20%7C%7C", 400, "illegal_filter"),
        ("?tags=other", 409, "group_differs"),
    ],
)
async def test_what_is_wrong_from_the_start_is_a_problem(service, query, status, code):
    await service.call("PUT", GROUP, json={"tags": "paid"})
    answer = await service.call("GET", f"{GROUP}/stream{query}", headers=SIGN)
    assert (answer.status, answer.code) == (status, code)


async def test_a_stream_of_a_client_that_has_gone_ends(service):
    running = asyncio.all_tasks()
    events = await Stream.open(service.url)
    serving = asyncio.all_tasks() - running
    events.close()
    async with asyncio.timeout(20 * engine_handle.LOOK_UP_MS / 1000):
        await asyncio.wait(serving)


async def test_a_stream_has_no_message_whose_ttl_is_over(service):
    await service.call("POST", "/v1/topics/orders/pause")
    opened = await Stream.open(service.url)
    await service.send(
        [{"topic": "orders", "body": "late", "ttl_ms": 1}, {"topic": "orders", "body": "kept"}]
    )
    await asyncio.sleep(0.002)
    await service.call("POST", "/v1/topics/orders/resume")
    assert (await opened.message())["body"] == "kept"
    opened.writer.close()
