"""What the heads of answers say, whatever the call; HEAD, gzip, and requests whose own head is too long."""

import asyncio
import gzip

import aiohttp
import orjson
import pytest
from yarl import URL

from timerwheel.api.connection import FIELD_BYTES_MAX, LINE_BYTES_MAX
from timerwheel.api.http.compression import GZIP_BYTES_MIN, LOOP_BYTES_MAX, accepts_gzip

GROUP = "/v1/topics/a/groups/g"
SIGN = "X-Requested-With: test\r\n"
CLOSE = "Host: localhost\r\nConnection: close\r\n"


async def _raw(service, request: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to bytes as they are written."""
    reader, writer = await asyncio.open_connection(service.url.host, service.url.port)
    writer.write(request.encode())
    await writer.drain()
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *lines = head.decode().split("\r\n")
    return int(first.split(" ")[1]), dict(line.lower().split(": ", 1) for line in lines), body


async def _head_of_stream(service, path: str) -> dict[str, str]:
    reader, writer = await asyncio.open_connection(service.url.host, service.url.port)
    writer.write(f"GET {path} HTTP/1.1\r\n{SIGN}{CLOSE}\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.close()
    return dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)


# ---------------------------------------------------------------------- Server, Cache-Control

SEND = "POST /v1/messages HTTP/1.1\r\n"
BODY = 'Content-Length: 13\r\n\r\n{"topic":"a"}'
ANSWERS = {
    "a send by the fast path": f"{SEND}Host: localhost\r\n{BODY}GET /healthz HTTP/1.1\r\n{CLOSE}\r\n",
    "a send": f"{SEND}{CLOSE}X: y\r\n{BODY}",
    "a listing": f"GET /v1/topics HTTP/1.1\r\n{CLOSE}\r\n",
    "the document": f"GET /openapi.json HTTP/1.1\r\n{CLOSE}\r\n",
    "HEAD": f"HEAD /v1/topics HTTP/1.1\r\n{CLOSE}\r\n",
    "a problem": f"GET /v1/messages/x HTTP/1.1\r\n{CLOSE}\r\n",
    "an unknown route": f"GET /v0 HTTP/1.1\r\n{CLOSE}\r\n",
    "a wrong method": f"PUT /v1/topics HTTP/1.1\r\n{CLOSE}\r\n",
    "a wrong expectation": f"{SEND}{CLOSE}Expect: tea\r\n{BODY}",
    "a wrong version": f"GET /v1/topics HTTP/2.0\r\n{CLOSE}\r\n",
    "what is not HTTP": "good day\r\n\r\n",
    "a path that is too long": f"GET /{'x' * LINE_BYTES_MAX} HTTP/1.1\r\n{CLOSE}\r\n",
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_every_answer_names_the_server_without_a_version_and_json_is_never_stored(service, name):
    _, headers, _ = await _raw(service, ANSWERS[name])
    assert headers["server"] == "timerwheel"
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/console/app.js", "/metrics"])
async def test_pages_and_metrics_name_the_server_too(service, path):
    _, headers, _ = await _raw(service, f"GET {path} HTTP/1.1\r\n{CLOSE}\r\n")
    assert headers["server"] == "timerwheel"


@pytest.mark.parametrize("path", [f"{GROUP}/stream", "/v1/live"])
async def test_a_stream_names_the_server_and_is_neither_stored_nor_compressed(service, path):
    await service.call("PUT", GROUP, json={})
    headers = await _head_of_stream(service, path)
    assert (headers["server"], headers["cache-control"]) == ("timerwheel", "no-store")
    assert "content-encoding" not in headers


# ---------------------------------------------------------------------- HEAD


KNOWN = {"{topic}": "a", "{queue}": "0", "{group}": "g", "{key}": "k", "{name}": "s"}


async def test_head_answers_wherever_get_does_with_its_head_and_no_body(service):
    sent = await service.send({"topic": "a", "delay_ms": 3_600_000, "dedup_key": "k"})
    await service.call("PUT", GROUP, json={})
    await service.call("PUT", "/v1/schedules/s", json={"topic": "a", "every": "1d"})
    hook = {"id": "sub", "topic": "a", "url": "https://example.com/", "paused": True}
    await service.call("POST", "/v1/subscriptions", json=hook)
    task = await service.call(
        "POST", "/v1/tasks", json={"url": "https://example.com/", "delay": "1h", "queue": "0"}
    )
    document = (await service.call("GET", "/openapi.json")).content
    paths = [path for path, calls in document["paths"].items() if "get" in calls]
    assert len(paths) > 20
    for path in [*paths, "/", "/console/app.js"]:
        known_id = "sub" if "subscriptions" in path else sent.content["id"]
        url = path.replace("{id}", task.content["id"] if "/tasks/" in path else known_id)
        for part, known in KNOWN.items():
            url = url.replace(part, known)
        status, headers, body = await _raw(service, f"HEAD {url} HTTP/1.1\r\n{SIGN}{CLOSE}\r\n")
        assert (status, body) == (200, b""), path
        if path.endswith(("/stream", "/live")):
            told = await _head_of_stream(service, url)
        else:
            _, told, _ = await _raw(service, f"GET {url} HTTP/1.1\r\n{SIGN}{CLOSE}\r\n")
        assert headers["content-type"] == told["content-type"], path


async def test_head_of_a_stream_receives_nothing(service):
    await service.send({"topic": "a"})
    await service.call("PUT", GROUP, json={})
    await _raw(service, f"HEAD {GROUP}/stream?ack=auto HTTP/1.1\r\n{SIGN}{CLOSE}\r\n")
    group = (await service.call("GET", GROUP)).content
    assert (group["lag"], group["in_flight"]) == (1, 0)
    unknown = await service.call("HEAD", "/v1/topics/a/groups/none/stream", headers={"X-Requested-With": "t"})
    assert unknown.status == 404
    assert len((await service.call("GET", "/v1/groups")).content["groups"]) == 1


# ---------------------------------------------------------------------- gzip


@pytest.mark.parametrize(
    ("header", "accepts"),
    [
        ("", False),
        ("gzip", True),
        ("GZip", True),
        ("x-gzip", True),
        ("*", True),
        ("identity", False),
        ("br, deflate", False),
        ("deflate, gzip;q=1.0, *;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip ; Q=0.001", True),
        ("gzip;q=0, *", False),
        ("*;q=0", False),
        ("gzip;q=junk", True),
    ],
)
def test_who_accepts_gzip(header, accepts):
    assert accepts_gzip(header) is accepts


@pytest.fixture
async def plain(service):
    """A client that unpacks nothing and asks for nothing by itself."""
    skipped = ["Accept-Encoding"]
    async with aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=skipped) as session:

        async def get(path, accepted=None, method="GET", **more):
            headers = {} if accepted is None else {"Accept-Encoding": accepted}
            url = URL(f"{service.url}{path}", encoded=True)
            async with session.request(method, url, headers=headers, **more) as response:
                return response.headers, await response.read()

        yield get


@pytest.mark.parametrize("count", [100, 900])
async def test_a_large_answer_is_compressed_for_who_accepts_it_and_says_so_to_caches(service, plain, count):
    await service.send([{"topic": "a", "body": "b" * 100, "delay_ms": 3_600_000}] * count)
    path = f"v1/messages?limit={count}"
    headers, whole = await plain(path)
    assert ("Content-Encoding" in headers, headers["Vary"]) == (False, "Accept-Encoding")
    assert len(whole) > GZIP_BYTES_MIN
    assert (len(whole) > LOOP_BYTES_MAX) == (count == 900)
    headers, packed = await plain(path, "gzip")
    assert (headers["Content-Encoding"], headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert int(headers["Content-Length"]) == len(packed) < len(whole) / 4
    assert orjson.loads(gzip.decompress(packed)) == orjson.loads(whole)
    headers, body = await plain(path, "gzip", "HEAD")
    assert (headers["Content-Encoding"], body) == ("gzip", b"")


async def test_a_small_answer_a_problem_and_the_answer_to_a_send_are_not_compressed(plain):
    for method, path, more in (
        ("GET", "v1/topics", {}),
        ("GET", "v1/messages/x", {}),
        ("POST", "v1/messages", {"json": [{"topic": "a"}] * 400}),
    ):
        headers, body = await plain(path, "gzip", method, **more)
        assert "Content-Encoding" not in headers
        orjson.loads(body)
    assert len(body) > GZIP_BYTES_MIN


async def test_what_is_not_json_is_not_changed_by_compression(plain):
    for path in ("metrics", "openapi.json"):
        _, whole = await plain(path)
        headers, packed = await plain(path, "gzip")
        assert headers["Content-Encoding"] == "gzip"
        assert len(gzip.decompress(packed)) == pytest.approx(len(whole), rel=0.1)


async def test_an_allowed_origin_stays_in_vary_beside_the_encoding(start_service):
    service = await start_service(cors_origins="https://shop.example")
    await service.send([{"topic": "a", "body": "b" * 100, "delay_ms": 3_600_000}] * 100)
    answer = await service.call("GET", "/v1/messages", headers={"Origin": "https://shop.example"})
    assert answer.headers["Vary"] == "Accept-Encoding, Origin"
    assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"


# ---------------------------------------------------------------------- requests that are too long


@pytest.mark.parametrize(
    ("request_head", "status", "code"),
    [
        (f"GET /v1/messages?cursor={'x' * LINE_BYTES_MAX} HTTP/1.1\r\n{CLOSE}\r\n", 414, "uri_too_long"),
        (
            f"GET /v1/topics HTTP/1.1\r\n{CLOSE}X-A: {'x' * (FIELD_BYTES_MAX + 1)}\r\n\r\n",
            431,
            "headers_too_large",
        ),
        (
            f"GET /v1/topics HTTP/1.1\r\n{CLOSE}{'X' * (FIELD_BYTES_MAX + 1)}: x\r\n\r\n",
            431,
            "headers_too_large",
        ),
        (
            f"GET /v1/topics HTTP/1.1\r\n{CLOSE}Cookie: /{'x' * (FIELD_BYTES_MAX + 1)}\r\n\r\n",
            431,
            "headers_too_large",
        ),
        (
            f"GET /v1/topics HTTP/1.1\r\n{CLOSE}" + "".join(f"X-{n}: y\r\n" for n in range(200)) + "\r\n",
            431,
            "headers_too_large",
        ),
    ],
)
async def test_a_head_that_is_too_long_says_which_part(service, request_head, status, code):
    found, _, body = await _raw(service, request_head)  # which ends when the connection does
    assert (found, orjson.loads(body)["code"]) == (status, code)


async def test_a_head_within_the_limits_is_taken(service):
    path = f"/v1/messages?cursor={'0' * (LINE_BYTES_MAX - 40)}"
    status, _, body = await _raw(service, f"GET {path} HTTP/1.1\r\n{CLOSE}X-A: {'x' * 8_000}\r\n\r\n")
    assert (status, orjson.loads(body)["code"]) == (400, "illegal_cursor")
