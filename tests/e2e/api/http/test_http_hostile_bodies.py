"""Bodies that would take seconds to decode: no turn of the event loop makes more than a part of them.

The amount is counted as bytes that are allocated within one turn, which no load of the machine changes.
"""

import asyncio
import gc
import tracemalloc

import pytest

from tests.harness.raw_http import PATIENCE_S, running

MIB = 1 << 20
TURN_BYTES_MAX = 20 * MIB
"""A text of DIRECT_BYTES that holds nothing but short properties takes up to 12 MiB."""
COUNT = 150_000
PARTS = {"{topic}": "orders", "{group}": "g", "{key}": "k", "{name}": "n", "{id}": f"{64:016x}00000000"}

MANY = b"".join(b'"%d":"",' % number for number in range(COUNT))
DICT = b'{%b"z":""}' % MANY
LIST = b'[%b""]' % (b'"",' * 4 * COUNT)
NUMBERS = b"[%b1]" % (b"1," * 8 * COUNT)
# A field of each call that takes many values; what is no field is unknown, and what is no message as well.
FIELDS = (
    b"properties",
    b"keys",
    b"receipts",
    b"ids",
    b"offsets",
    b"headers",
    b"backoff",
    b"tags",
    b"nothing",
)
BODIES = {
    "properties": DICT,
    "list": LIST,
    "array of messages": b'[{"topic":"t"},{"topic":"t","properties":%b}]' % DICT,
    "array of arrays": b"[%b[]]" % (b"[]," * 4 * COUNT),
    "array of nothing": b"[%b{}]" % (b"{}," * 4 * COUNT),
    "lines": b"\n" * 8 * COUNT,
    "lines of messages": b'{"topic":"t","properties":%b}\n' % DICT * 2,
    "white space": b" " * 4 * MIB + b"{}",
    "nested": b"[" * 4 * MIB,
    "strings": b'{"topic":"%b"}' % (b"\\u0001" * (MIB // 2)),
}


class Turns:
    """The most that one turn of the loop has allocated."""

    def __init__(self):
        self.most_bytes = 0
        self._begin_bytes = 0
        self._handle = None

    def __enter__(self):
        gc.collect()
        tracemalloc.start(1)
        self._turn()
        return self

    def _turn(self):
        now, peak = tracemalloc.get_traced_memory()
        self.most_bytes = max(self.most_bytes, peak - self._begin_bytes)
        self._begin_bytes = now
        tracemalloc.reset_peak()
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def __exit__(self, *_):
        self._handle.cancel()
        tracemalloc.stop()


def bodies_of(template):
    """What a call is sent; only those that take messages are sent all of it."""
    if template == "/v1/messages":
        yield from BODIES.values()
        yield from (b'{"topic":"t","%b":%b}' % (field, DICT) for field in FIELDS[:2])
        yield b'{"topic":"t","keys":%b}' % LIST
        return
    if template == "/v1/messages/recall":
        yield b'{"ids":%b}' % LIST
    yield DICT
    yield b'{"receipts":%b}' % LIST
    yield b'{"offsets":%b}' % NUMBERS
    yield b'{"properties":%b}' % DICT


async def ask(service, method, path, body, kind):
    client = await service.client()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    client.write(head.encode(), b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body), body)
    answer = await client.answer()
    client.writer.close()
    return answer


TAKE_ANYTHING = {f"/v1/topics/{{topic}}/{call}" for call in ("messages", "pause", "resume")}
"""A raw send takes any bytes; a pause looks at none, and needs no topic that exists."""


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
async def test_no_body_of_any_call_is_decoded_in_one_turn_of_the_loop(tmp_path, kind):
    limits = {"body_bytes_max": MIB, "messages_per_request_max": 1_000, "request_bytes_max": 16 * MIB}
    async with running(tmp_path, **limits) as service, asyncio.timeout(PATIENCE_S):
        calls = [
            (route.method, route.resource.canonical)
            for route in service.server.app.router.routes()
            if route.method in {"POST", "PUT", "PATCH"}
        ]
        if kind.endswith("ndjson"):
            calls = [("POST", "/v1/messages")]
        assert ("POST", "/v1/messages") in calls
        with Turns() as turns:
            for method, template in calls:
                path = template
                for name, value in PARTS.items():
                    path = path.replace(name, value)
                for body in bodies_of(template):
                    answer = await ask(service, method, path, body, kind)
                    assert turns.most_bytes <= TURN_BYTES_MAX, (method, path, body[:40], answer.status)
                    if template not in TAKE_ANYTHING:
                        assert answer.status[9:10] == b"4", (method, path, body[:40], answer.status)
        assert service.engine.ready
