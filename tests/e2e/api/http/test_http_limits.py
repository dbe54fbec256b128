"""Limits of the API: each has a name, a status and a code, and nothing is stored past it."""

import asyncio

import pytest

from tests.harness.served import Served
from timerwheel.api.app import make_app
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.settings import Settings


async def test_a_body_over_its_limit_is_refused(start_service):
    service = await start_service(body_bytes_max=10)
    assert (await service.send({"topic": "a", "body": "x" * 10})).status == 201
    answer = await service.send({"topic": "a", "body": "x" * 11, "delay_ms": 60_000})
    assert (answer.status, answer.code) == (413, "body_too_large")
    answer = await service.call("POST", "/v1/topics/a/messages", data=b"x" * 11)
    assert (answer.status, answer.code) == (413, "body_too_large")
    answer = await service.send([{"topic": "a"}, {"topic": "a", "body": "x" * 11}])
    assert (answer.status, answer.code) == (413, "refused")
    assert answer.content["errors"][0]["index"] == 1


@pytest.mark.parametrize("form", ["application/json", "application/x-ndjson"])
async def test_an_array_over_its_limit_is_refused(start_service, form):
    service = await start_service(messages_per_request_max=3)
    item = b'{"topic":"a","delay_ms":60000}'
    joined = (lambda n: b"\n".join([item] * n)) if form.endswith("ndjson") else _array_of(item)
    assert (await service.send_bytes(joined(3), form)).status == 201
    for count in (4, 6, 7, 50):
        answer = await service.send_bytes(joined(count), form)
        assert (answer.status, answer.code) == (413, "too_many_messages")
    assert await service.pending() == 3


async def test_a_hostile_array_is_refused_before_it_is_built(start_service):
    service = await start_service(messages_per_request_max=3)
    answer = await service.send_bytes(_array_of(b'{"topic":""}')(100_000))
    assert (answer.status, answer.code) == (413, "too_many_messages")
    answer = await service.send_bytes(_array_of(b"7")(1_000_000))
    assert (answer.status, answer.code) == (400, "invalid_field")
    answer = await service.send_bytes(b"\n" * 1_000_000, "application/x-ndjson")
    assert (answer.status, answer.code) == (413, "too_many_messages")


async def test_bodies_full_of_braces_are_taken_within_the_limit(start_service):
    service = await start_service(messages_per_request_max=3)
    items = [{"topic": "a", "body": "{,}" * 500}] * 3
    assert (await service.send(items)).status == 201
    answer = await service.send([*items[:2], {"topic": "a", "body": "{" * 50, "delay_ms": "1"}])
    assert (answer.status, answer.code) == (400, "refused")
    assert [(fault["index"], fault["code"]) for fault in answer.content["errors"]] == [(2, "invalid_field")]


async def test_a_request_over_its_limit_is_refused(start_service):
    service = await start_service(request_bytes_max=1000)
    for path in ("/v1/messages", "/v1/topics/a/messages"):
        answer = await service.call("POST", path, data=b" " * 1001)
        assert (answer.status, answer.code) == (413, "request_too_large")
    answer = await service.call("POST", "/v1/messages", data=b" " * 1001, expect100=True)
    assert (answer.status, answer.code) == (413, "request_too_large")
    assert (await service.call("POST", "/v1/topics/a/messages", data=b" " * 1000)).status == 201


async def test_a_chunked_request_has_the_same_limit(start_service):
    service = await start_service(request_bytes_max=1000)

    async def chunks():
        for _ in range(11):
            yield b" " * 100

    answer = await service.call("POST", "/v1/topics/a/messages", data=chunks())
    assert (answer.status, answer.code) == (413, "request_too_large")


async def test_a_client_that_asks_first_gets_100_continue(service):
    answer = await service.call("POST", "/v1/topics/a/messages", data=b"x", expect100=True)
    assert answer.status == 201


async def test_a_full_second_is_refused_with_the_next_that_has_room_and_no_time_to_retry(start_service):
    service = await start_service(slot_messages_max=1)
    due_ms = 1_900_000_000_000
    for at_ms in (due_ms, due_ms + 1_000):
        assert (await service.send({"topic": "a", "deliver_at_ms": at_ms})).status == 201
    answer = await service.send({"topic": "a", "deliver_at_ms": due_ms + 5})
    assert (answer.status, answer.code) == (429, "slot_congested")
    assert "Retry-After" not in answer.headers  # the second stays full
    assert answer.content["free_ms"] == due_ms + 2_000
    free = {"topic": "a", "deliver_at_ms": answer.content["free_ms"]}
    assert (await service.send(free)).status == 201
    never = await service.send([{"topic": "a", "deliver_at_ms": due_ms + 9_000}] * 2)
    assert (never.code, "free_ms" in never.content) == ("slot_congested", False)


async def test_below_the_disk_reserve_new_work_is_refused(start_service):
    service = await start_service(disk_reserve_bytes=1 << 50)
    answer = await service.send({"topic": "a"})
    assert (answer.status, answer.code) == (507, "disk_reserve")
    assert int(answer.headers["Retry-After"]) >= 1
    assert await service.topics() == []


async def test_a_service_that_still_recovers_says_so(start_service, tmp_path):
    service = await start_service()
    server = Served(make_app(EngineHandle(Settings(data=tmp_path / "unopened"))))
    await server.start_server()
    service.url = server.make_url("/")
    assert (await service.call("GET", "/healthz")).content == {"status": "alive"}
    for method, path in (("GET", "/readyz"), ("GET", "/v1/topics"), ("DELETE", "/v1/messages/x")):
        answer = await service.call(method, path)
        assert (answer.status, answer.code) == (503, "not_ready")
        assert int(answer.headers["Retry-After"]) >= 1
        assert "starting" in answer.content["detail"]
    await server.close()


async def test_a_request_cut_short_stores_nothing_and_harms_nothing(service):
    for head in (b"Content-Length: 500", b"Transfer-Encoding: chunked"):
        reader, writer = await asyncio.open_connection(service.url.host, service.url.port)
        chunk = b"" if b"Length" in head else b"40\r\n"
        writer.write(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n" + chunk)
        writer.write(b'{"topic":"orders","delay_ms":60000}')
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert await reader.read() == b""
    assert await service.pending() == 0
    assert (await service.send({"topic": "orders"})).status == 201


async def test_broken_chunks_are_a_client_error(service):
    reader, writer = await asyncio.open_connection(service.url.host, service.url.port)
    head = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head + b"zz\r\n{}\r\n")
    assert b" 400 " in await reader.readline()
    writer.close()
    await writer.wait_closed()


def _array_of(item):
    return lambda count: b"[" + b",".join([item] * count) + b"]"
