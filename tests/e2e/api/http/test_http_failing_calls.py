"""Calls that fail leave nothing behind: no reader slot of the index, no descriptor."""

import asyncio
import gc
import itertools
import re
from pathlib import Path

import pytest
from aiohttp import hdrs

from tests.harness.raw_http import PATIENCE_S, running
from timerwheel.store.index import READERS_KEPT

CONNECTIONS = 20
ROUND_CALLS = 50  # of one connection, written at once
READING_THREADS = 3
MANY = 3_000
VERY_MANY = 100_000
# Names that do not exist; an id must look like one, or nothing is read for it.
UNKNOWN = {"id": f"{64:016x}00000000", "topic": "nowhere", "queue": "3", "file": "nothing.js"}
IDS = [UNKNOWN["id"], f"{1 << 40:016x}00000000", f"{0:016x}00000000", "x"]
QUERIES = ["", "?offset=9999999", "?limit=0", "?cursor=zz", "?unknown=1"]
ONE_ID = b'{"ids":["%b"]}' % UNKNOWN["id"].encode()
BODIES = [b"{}", b'{"all":true}', b'{"receipts":["x"]}', ONE_ID, b"[", b""]
HEAD = "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
STREAMS = {"/v1/live", "/v1/topics/{topic}/groups/{group}/stream"}  # they succeed, and go on
# What is made by such a call, by intent: `PUT` of a group, and a receive from one.
MAKING = {("PUT", "/v1/topics/{topic}/groups/{group}"), ("POST", "/v1/topics/{topic}/groups/{group}/receive")}


def paths_of(template):
    """The paths of a call that name what does not exist."""
    ids = IDS if "{id}" in template else [""]
    for message_id in ids:
        values = {**UNKNOWN, "id": message_id}
        yield re.sub(r"\{(\w+)\}", lambda found, v=values: v.get(found[1], "nobody"), template)


def requests_of(app):
    """Every call of the table with what it cannot answer, as bytes; by method and path."""
    found = {}
    for route in app.router.routes():
        template = route.resource.canonical
        if template in STREAMS or (route.method, template) in MAKING:
            continue
        bodies = [b""] if route.method in {hdrs.METH_GET, hdrs.METH_HEAD} else BODIES
        found[route.method, template] = [
            (HEAD % (route.method, path + query, len(body))).encode() + body
            for path in paths_of(template)
            for query in QUERIES
            for body in bodies
        ]
    return found


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def check_reader_slots(service):
    """No more were ever taken than are kept, and one for each thread that reads."""
    assert service.engine.core.index.index.env.info()["num_readers"] <= READERS_KEPT + READING_THREADS


async def ask_all(client, requests, statuses):
    for at in range(0, len(requests), ROUND_CALLS):
        part = requests[at : at + ROUND_CALLS]
        client.write(*part)
        for request in part:
            status, headers = await head_of(client)
            if not request.startswith(b"HEAD"):
                await client.reader.readexactly(int(headers.get("content-length", 0)))
            statuses[request.split(b" ", 1)[0], int(status.split()[1])] += 1


async def head_of(client):
    head = (await client.reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.split("\r\n")[:-2]
    return status, {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}


async def check_flat(service, clients, requests, count):
    """Have the requests asked, `count` in all; reader slots and descriptors are as many as before."""
    statuses = dict.fromkeys(itertools.product({r.split(b" ", 1)[0] for r in requests}, range(100, 600)), 0)
    share = count // len(clients)
    turns = [
        list(itertools.islice(itertools.cycle(requests[n::7] + requests), share)) for n in range(len(clients))
    ]
    before = descriptors()
    await asyncio.gather(
        *(ask_all(client, turn, statuses) for client, turn in zip(clients, turns, strict=True))
    )
    assert descriptors() == before
    check_reader_slots(service)
    assert service.engine.ready
    failed = sum(times for (_, status), times in statuses.items() if status >= 400)
    assert failed > count // 3
    assert not any(times for (_, status), times in statuses.items() if status >= 500)


async def flat_after(tmp_path, count):
    gc.disable()  # or what a collection happens to free would hide what nothing frees in time
    try:
        async with running(tmp_path) as service, asyncio.timeout(PATIENCE_S * max(1, count // MANY)):
            clients = [await service.client() for _ in range(CONNECTIONS)]
            for client in clients:
                client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await client.answer()
            requests = [one for requests in requests_of(service.server.app).values() for one in requests]
            await check_flat(service, clients[:1], requests, max(len(requests), count // 4))
            await check_flat(service, clients, requests, count)
    finally:
        gc.enable()


async def test_thousands_of_failing_calls_of_every_route_take_no_reader_slot_and_no_descriptor(tmp_path):
    await flat_after(tmp_path, MANY)


@pytest.mark.torture
async def test_a_hundred_thousand_failing_calls_take_no_reader_slot_and_no_descriptor(tmp_path):
    await flat_after(tmp_path, VERY_MANY)


async def test_every_read_route_that_names_something_is_among_the_failing_calls(tmp_path):
    async with running(tmp_path) as service:
        asked = requests_of(service.server.app)
        named = {
            (route.method, route.resource.canonical)
            for route in service.server.app.router.routes()
            if "{" in route.resource.canonical and route.method == hdrs.METH_GET
        }
        assert named - asked.keys() == {("GET", path) for path in STREAMS if "{" in path}
        for call in named & asked.keys():
            client = await service.client()
            client.write(asked[call][0])
            answer = await client.answer()
            assert answer.status.startswith(b"HTTP/1.1 ")
