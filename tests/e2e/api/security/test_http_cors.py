"""Pages of other origins: which may read answers, and what their browsers are told before a call."""

import asyncio

import orjson
import pytest

SHOP = "https://shop.example"
LOCAL = "http://localhost:3000"
GROUP = "/v1/topics/orders/groups/workers"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
ALLOWED = (
    "authorization, content-type, idempotency-key, if-match, if-none-match, traceparent, tracestate, "
    "x-request-id"
)
LIMIT_S = 60  # only keeps a failure from hanging


@pytest.fixture
async def service(start_service):
    return await start_service(cors_origins=f"{SHOP} {LOCAL}")


async def _ask(service, method, path, body=b"", **headers):
    """One request by hand; its answer as status, headers by lower-case name, and the connection."""
    reader, writer = await asyncio.open_connection(service.url.host, service.url.port)
    given = {"Host": "x", "Content-Length": str(len(body)), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
    await writer.drain()
    async with asyncio.timeout(LIMIT_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    told = [line.split(": ", 1) for line in head[1:] if line]
    assert len({name.lower() for name, _ in told}) == len(told), "a header is there twice"
    return int(head[0].split()[1]), {name.lower(): value for name, value in told}, (reader, writer)


async def _answer(service, method, path, body=b"", **headers):
    status, told, (_, writer) = await _ask(service, method, path, body, **headers)
    writer.close()
    return status, told


def _cors(told):
    return {name: value for name, value in told.items() if name.startswith("access-control-")}


READABLE = {
    "access-control-allow-origin": SHOP,
    "access-control-expose-headers": "ETag, Location, Retry-After, X-Request-Id",
}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/topics", b"", 200),
        ("HEAD", "/v1/topics", b"", 200),
        ("GET", "/openapi.json", b"", 200),
        ("POST", "/v1/messages", b'{"topic":"orders"}', 201),
        ("POST", "/v1/messages", b"{", 400),
        ("GET", "/v1/messages/x", b"", 404),
        ("GET", "/nowhere", b"", 404),
        ("PUT", "/v1/messages", b"", 405),
        ("GET", f"{GROUP}/stream?surprise=1", b"", 400),
    ],
)
async def test_every_answer_problems_too_may_be_read_by_an_allowed_origin(
    service, method, path, body, status
):
    found, told = await _answer(service, method, path, body, Origin=SHOP)
    assert found == status
    assert _cors(told) == READABLE
    assert told["vary"].split(", ")[-1] == "Origin"


async def test_an_answer_to_an_expectation_may_be_read_too(service):
    status, told = await _answer(service, "POST", "/v1/messages", b"{}", Origin=SHOP, Expect="tea")
    assert (status, _cors(told)) == (417, READABLE)


async def test_a_stream_may_be_read_by_an_allowed_origin(service):
    await service.send({"topic": "orders", "body": "hello"})
    status, told, (reader, writer) = await _ask(service, "GET", f"{GROUP}/stream?create=true", Origin=LOCAL)
    assert (status, told["content-type"]) == (200, "text/event-stream")
    assert _cors(told) == {**READABLE, "access-control-allow-origin": LOCAL}
    assert told["vary"] == "Origin"
    async with asyncio.timeout(LIMIT_S):
        data = (await reader.readuntil(b"data: ")) and await reader.readuntil(b"\n")
    assert orjson.loads(data)["body"] == "hello"
    writer.close()


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "https://shop.example.evil.example",
        "https://shop.example:8443",
        "http://shop.example",
        "https://SHOP.example",
        f"{SHOP} {LOCAL}",
        "null",
        "",
    ],
)
async def test_another_origin_is_served_without_cors_headers(service, origin):
    for method, path, status in (("GET", "/v1/topics", 200), ("GET", "/v1/messages/x", 404)):
        found, told = await _answer(service, method, path, Origin=origin)
        assert (found, _cors(told)) == (status, {})
    found, told = await _answer(service, "OPTIONS", "/v1/messages", Origin=origin, **PREFLIGHT)
    assert (found, _cors(told)) == (204, {})
    assert told["vary"] == "Origin"


async def test_a_request_without_an_origin_is_answered_as_ever(service):
    status, told = await _answer(service, "GET", "/v1/topics")
    assert (status, _cors(told), told["vary"]) == (200, {}, "Origin")
    status, _ = await _answer(service, "OPTIONS", "/v1/topics", **PREFLIGHT)
    assert status == 405


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/messages", "GET, HEAD, POST"),
        ("/v1/messages/recall", "POST"),
        ("/v1/messages/0123", "DELETE, GET, HEAD, PATCH"),
        (GROUP, "DELETE, GET, HEAD, PUT"),
        (f"{GROUP}/stream", "GET, HEAD"),
        ("/v1/subscriptions/s?x=1", "DELETE, GET, HEAD, PATCH"),
    ],
)
async def test_a_preflight_tells_the_methods_and_headers_of_a_call(service, path, methods):
    status, told = await _answer(service, "OPTIONS", path, Origin=SHOP, **PREFLIGHT)
    assert status == 204
    assert _cors(told) == {
        **READABLE,
        "access-control-allow-methods": methods,
        "access-control-allow-headers": ALLOWED,
        "access-control-max-age": "600",
    }
    assert told["vary"] == "Origin"
    assert "content-length" not in told


async def test_a_preflight_for_no_call_and_a_bare_options_are_problems(service):
    status, told = await _answer(service, "OPTIONS", "/nowhere", Origin=SHOP, **PREFLIGHT)
    assert (status, _cors(told)) == (404, READABLE)
    status, told = await _answer(service, "OPTIONS", "/v1/messages", Origin=SHOP)
    assert (status, _cors(told)) == (405, READABLE)


async def test_a_star_lets_every_origin_read(start_service):
    service = await start_service(cors_origins="*")
    for origin in (SHOP, "null", "moz-extension://0123"):
        _, told = await _answer(service, "GET", "/v1/topics", Origin=origin)
        assert _cors(told) == {**READABLE, "access-control-allow-origin": origin}
        assert told["vary"] == "Origin"
    for origin in ("", "http://h\xe9"):  # nothing that could not be written back as it came
        status, told = await _answer(service, "GET", "/v1/topics", Origin=origin)
        assert (status, _cors(told)) == (200, {})


async def test_without_the_setting_no_origin_gets_cors_headers(start_service):
    service = await start_service()
    status, told = await _answer(service, "GET", "/v1/topics", Origin=SHOP)
    assert (status, _cors(told), "vary" in told) == (200, {}, False)
    status, told = await _answer(service, "OPTIONS", "/v1/topics", Origin=SHOP, **PREFLIGHT)
    assert (status, _cors(told), "vary" in told) == (405, {}, False)
