"""Bytes in progress are bounded: bodies that come, answers that are not read, streams that stall."""

import asyncio

from tests.harness.raw_http import running, until
from timerwheel.api.security.slow_clients import TimeLimits

KIB, MIB = 1 << 10, 1 << 20
BODY = b"b" * 100 * KIB
LARGE = b"b" * MIB  # the system takes several of these for a client that reads nothing
LIMITS = TimeLimits(answer_ms=5_000)
GROUP = b"/v1/topics/orders/groups/g"
PAGE = b"GET /v1/topics/orders/queues/0/messages?max=20 HTTP/1.1\r\nHost: localhost\r\n\r\n"
STREAM = b"GET %b/stream?create=true HTTP/1.1\r\nHost: localhost\r\nX-Requested-With: test\r\n\r\n" % GROUP
SMALL = b"GET /v1/levels HTTP/1.1\r\nHost: localhost\r\n\r\n"


def budgets_of(service):
    """Of requests, and of answers."""
    return service.path.middleware.budgets


async def fill(service, count=20, body=BODY):
    """Messages of one topic, delivered."""
    client = await service.client()
    for _ in range(count):
        head = b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        client.write(head % len(body), body)
        assert (await client.answer()).status.startswith(b"HTTP/1.1 201")


def begun(size_bytes, part_bytes):
    """A request whose body is not whole."""
    head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size_bytes
    return head + b"[" + b" " * (part_bytes - 1)


async def unread(service, *asked):
    """A client that asks and reads nothing, for which the system buffers little."""
    client = await service.client()
    client.writer.transport.pause_reading()
    client.write(*asked)
    return client


def waiting_bytes(service):
    """What the transports hold for clients that do not read."""
    return [
        connection.transport.get_write_buffer_size()
        for connection in service.server.runner.server.__self__._server.connections
        if connection.transport is not None
    ]


async def test_bodies_beyond_the_budget_are_refused_with_a_time_to_retry(tmp_path):
    limits = {"in_progress_bytes_max": 2 * MIB, "request_bytes_max": MIB}
    async with running(tmp_path, **limits) as service:
        budget = budgets_of(service).requests
        slow = [await service.client() for _ in range(2)]
        for client in slow:
            client.write(begun(MIB, 500 * KIB))
        await until(lambda: budget.used_bytes == 1_000 * KIB)
        answer = await service.ask(begun(MIB, 500 * KIB))
        assert answer.status == b"HTTP/1.1 503 Service Unavailable"
        assert b'"code":"overloaded"' in answer.content
        assert int(answer.headers["retry-after"]) >= 1
        assert budget.used_bytes == 1_000 * KIB
        assert budget.refused == 1
        assert (await service.ask(SMALL)).status == b"HTTP/1.1 200 OK"
        for client in slow:
            client.writer.transport.abort()
        await until(lambda: budget.used_bytes == 0)


async def test_an_answer_that_is_not_read_is_charged_and_cut_off_in_the_end(tmp_path):
    async with running(tmp_path, limits=LIMITS, in_progress_bytes_max=80 * MIB) as service:
        await fill(service, 15, LARGE)
        budget = budgets_of(service).answers
        for _ in range(2):
            await unread(service, PAGE)
        await until(lambda: budget.used_bytes > 25 * MIB)
        answer = await service.ask(PAGE)
        assert answer.status == b"HTTP/1.1 503 Service Unavailable"
        assert b'"code":"overloaded"' in answer.content
        assert budget.used_bytes <= budget.bytes_max
        # Who sends is not kept out by who does not read.
        await fill(service, 1)
        # Besides the page, each reader has one piece of it waiting.
        assert max(waiting_bytes(service)) <= 256 * KIB
        for _ in range(2 * LIMITS.answer_ms // 1_000 + 2):
            service.guard_clock.advance(1_000)
            await asyncio.sleep(0)
        await until(lambda: budget.used_bytes == 0)
        assert (await service.ask(PAGE)).status == b"HTTP/1.1 200 OK"


async def test_a_client_that_reads_slowly_gets_its_answer(tmp_path):
    async with running(tmp_path, limits=LIMITS) as service:
        await fill(service)
        client = await service.client()
        client.write(PAGE)
        head = await client.reader.readuntil(b"\r\n\r\n")
        left = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while left:
            left -= len(await client.reader.readexactly(min(left, 256 * KIB)))
            service.guard_clock.advance(LIMITS.answer_ms // 2)
            await asyncio.sleep(0)
        await until(lambda: budgets_of(service).answers.used_bytes == 0)


async def test_requests_behind_an_answer_that_is_not_read_are_not_begun(tmp_path):
    async with running(tmp_path, limits=LIMITS) as service:
        await fill(service, 1)
        one = b"GET /v1/topics/orders/queues/0/messages?max=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        await unread(service, one * 2_000)
        seen = service.path.middleware.traffic
        count, quiet = -1, 0
        while quiet < 1_000:
            await asyncio.sleep(0)
            now = sum(seen.requests().values())
            count, quiet = now, quiet + 1 if now == count else 0
        assert count < 200
        assert max(waiting_bytes(service)) <= 512 * KIB


async def test_a_stream_that_stalls_is_charged_and_cut_off_in_the_end(tmp_path):
    async with running(tmp_path, limits=LIMITS, in_progress_bytes_max=16 * MIB) as service:
        await fill(service, 20, LARGE)
        budget = budgets_of(service).answers
        await unread(service, STREAM)
        await until(lambda: budget.used_bytes > 0)
        for _ in range(2 * LIMITS.answer_ms // 1_000 + 2):
            service.guard_clock.advance(1_000)
            service.clock.advance(1_000)
            await asyncio.sleep(0)
        await until(lambda: budget.used_bytes == 0)
        assert budget.most_bytes <= 8 * MIB


async def test_a_receive_takes_no_more_than_the_budget_has_room_for(tmp_path):
    async with running(tmp_path, in_progress_bytes_max=8 * MIB) as service:
        await fill(service, 40)
        body = b'{"max":40,"create":true}'
        head = b"POST %b/receive HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (
            GROUP,
            len(body),
        )
        answer = await service.ask(head, body)
        assert answer.status == b"HTTP/1.1 200 OK"
        assert 1 <= answer.content.count(b'"receipt"') <= 8
        assert budgets_of(service).answers.used_bytes == 0


async def test_nothing_of_the_budget_is_left_when_all_is_answered(tmp_path):
    async with running(tmp_path) as service:
        await fill(service, 3)
        one = b'{"topic":"orders"}'
        for body in (one, b"[%b,%b]" % (one, one), b"{", b"[%b]" % b",".join([one] * 600)):
            head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            await service.ask(head, b"Content-Length: %d\r\n\r\n" % len(body), body)
        assert service.path.taken
        assert budgets_of(service).requests.most_bytes > 0
        assert [budget.used_bytes for budget in budgets_of(service)] == [0, 0]
