"""Bytes that two readers of HTTP could take apart differently, paths that lead elsewhere, and too much."""

import asyncio

import pytest

from tests.harness.guarded import grant, guarded
from timerwheel.tokens import Scope

LIMIT_S = 60  # only keeps a failure from hanging
CARRIER = b"POST /v1/topics/carrier/messages HTTP/1.1\r\nHost: x\r\n"
SMUGGLED = b"POST /v1/topics/smuggled/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
NO_MORE = b"0\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


async def answers(url, sent):
    """The status of each answer to these bytes until the service closes the connection; the last body."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    statuses, body = [], b""
    writer.write(sent)
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                statuses.append(int(head.split()[1]))
                length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                body = await reader.readexactly(int(length or 0))
            except (asyncio.IncompleteReadError, ConnectionError):
                break
    writer.close()
    return statuses, body


AMBIGUOUS = {
    "length and chunks": b"Content-Length: 5\r\n" + CHUNKED + b"\r\n" + NO_MORE,
    "chunks and length": CHUNKED + b"Content-Length: 5\r\n\r\n" + NO_MORE,
    "two lengths": b"Content-Length: 0\r\nContent-Length: 108\r\n\r\n",
    "one length twice": b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "a list of lengths": b"Content-Length: 0, 108\r\n\r\n",
    "a signed length": b"Content-Length: +0\r\n\r\n",
    "a negative length": b"Content-Length: -1\r\n\r\n",
    "a hexadecimal length": b"Content-Length: 0x0\r\n\r\n",
    "an empty length": b"Content-Length:\r\n\r\n",
    "a length of other digits": "Content-Length: \u0660\r\n\r\n".encode(),
    "a length beyond 64 bits": b"Content-Length: 99999999999999999999\r\n\r\n",
    "a space before the colon": b"Content-Length : 0\r\n\r\n",
    "a folded header": b"X-A: b\r\n Content-Length: 108\r\n\r\n",
    "a line that is no header": b"nothing\r\n\r\n",
    "a bare LF": b"X-A: b\nContent-Length: 108\r\n\r\n",
    "a bare CR": b"X-A: b\rContent-Length: 108\r\n\r\n",
    "a NUL": b"X-A: b\x00\r\nContent-Length: 108\r\n\r\n",
    "two encodings": CHUNKED + CHUNKED + b"\r\n" + NO_MORE,
    "an encoding after chunked": b"Transfer-Encoding: chunked, identity\r\n\r\n" + NO_MORE,
    "an unknown encoding": b"Transfer-Encoding: xchunked\r\n\r\n" + NO_MORE,
    "an encoding in disguise": b"Transfer-Encoding: \x0bchunked\r\n\r\n" + NO_MORE,
    "a second host": b"Host: y\r\n\r\n",
    "a chunk of a signed size": CHUNKED + b"\r\n+0\r\n\r\n",
    "a chunk of a size with 0x": CHUNKED + b"\r\n0x0\r\n\r\n",
    "a chunk of an endless size": CHUNKED + b"\r\nfffffffffffffffff1\r\n\r\n",
    "a chunk without a size": CHUNKED + b"\r\n\r\n\r\n",
    "a chunk that ends with LF": CHUNKED + b"\r\n1\nx\r\n" + NO_MORE,
    "a chunk that is longer than it says": CHUNKED + b"\r\n1\r\nxx\r\n" + NO_MORE,
    "an extension with a bare LF": CHUNKED + b"\r\n1;a\nx\r\nx\r\n" + NO_MORE,
    "an extension with a bare CR": CHUNKED + b"\r\n1;a\rx\r\nx\r\n" + NO_MORE,
}


async def test_what_two_readers_could_read_differently_is_refused_and_nothing_behind_it_is_read(tmp_path):
    async with guarded(tmp_path / "data") as service:
        for name, rest in AMBIGUOUS.items():
            statuses, _ = await answers(service.url, CARRIER + rest + SMUGGLED)
            assert set(statuses) == {400}, name
        # Each of these was refused before anything of it was done.
        _, topics = await service.call("GET", "/v1/topics")
        assert [one["topic"] for one in topics["topics"] if not one["system"]] == []


@pytest.mark.parametrize(
    "first",
    [
        b"GET /v1/topics\r\n\r\n",
        b"GET /v1/topics HTTP/1.1\r\n\r\n",
        b"GET /v1/topics HTTP/1.1\nHost: x\n\n",
        b"GET\t/v1/topics\tHTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/topics HTTP/1.1 \r\nHost: x\r\n\r\n",
        b"GET /v1/topics HTTP/3.7\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"NONSENSE /v1/topics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET v1/topics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http:/v1/topics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/\x00topics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_request_line_of_http_1_is_refused(tmp_path, first):
    async with guarded(tmp_path / "data") as service:
        statuses, _ = await answers(service.url, first + SMUGGLED)
        assert statuses == [400]
        _, topics = await service.call("GET", "/v1/topics")
        assert "smuggled" not in {one["topic"] for one in topics["topics"]}


async def test_trailers_and_extensions_change_nothing_of_the_request(tmp_path):
    admin = grant(tmp_path / "data", "admin", Scope.ADMIN)
    body = b"1;name=value\r\nx\r\n0\r\n"
    last = b"GET /v1/topics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    token = f"Authorization: {admin['Authorization']}\r\n".encode()
    async with guarded(tmp_path / "data") as service:
        for trailers, expected in (
            (token, [401]),
            (b"Host: y\r\n", [400]),
            (b"Content-Length: 58\r\n", [400]),
        ):
            sent = CARRIER + CHUNKED + b"\r\n" + body + trailers + b"\r\n" + last
            assert (await answers(service.url, sent))[0] == expected


@pytest.mark.parametrize("upgrade", ["websocket", "h2c", "TLS/1.0"])
async def test_no_other_protocol_is_switched_to(tmp_path, upgrade):
    async with guarded(tmp_path / "data") as service:
        head = f"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: {upgrade}\r\n\r\n"
        statuses, _ = await answers(service.url, head.encode() + SMUGGLED)
        assert statuses == [200]
        _, topics = await service.call("GET", "/v1/topics")
        assert "smuggled" not in {one["topic"] for one in topics["topics"]}


async def test_the_service_is_no_proxy(tmp_path):
    async with guarded(tmp_path / "data") as service:
        end = b" HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
        for target, expected in (
            (b"GET http://evil.example/healthz", [200]),  # its own
            (b"GET http://evil.example/elsewhere", [404]),
            (b"CONNECT evil.example:443", [404]),
        ):
            statuses, _ = await answers(service.url, target + end)
            assert statuses == expected, target


TRICKS = [
    "/v1/topics/orders/../bills",
    "/v1/topics/orders/%2e%2e/bills",
    "/v1/topics/orders%2F..%2Fbills",
    "/v1/topics/orders%2f%2e%2e%2fbills",
    "/v1/topics/orders/..%2Fbills",
    "/v1/topics/./bills",
    "/v1/topics//bills",
    "//v1/topics/bills",
    "/v1//topics/bills",
    "/v1/topics/bills/",
    "/v1/topics/bills%00",
    "/v1/topics/bills%00orders",
    "/v1/topics/orders%00/../bills",
    "/v1/topics/%62ills",
    "/v1/topics/%2562ills",
    "/v1/topics/bills;orders",
    "/v1/topics/bills%3Forders",
    "/v1/topics/bills%23orders",
    "/v1/topics/bills#orders",
    "/v1/topics/bills%0d%0aX-A:%20b",
    "/v1/topics/bills%",
    "/v1/topics/bills%u0031",
    "/v1/topics/bills%ff",
    "/v1/topics/%EF%BD%82ills",
    "/v1/topics/BILLS",
    "/v1/topics/bills?topic=orders",
    "/v1/messages?topic=orders&topic=bills",
    "/v1/messages?topic=bills&topic=orders",
    "/v1/messages?topic=%62ills",
    "/v1/messages?Topic=orders",
    "/V1/topics/bills",
    "\\v1\\topics\\bills",
    "/v1/topics/..\\bills",
    "http://localhost/v1/topics/bills",
    "/console/../v1/topics/bills",
    "/healthz/../v1/topics/bills",
    "/healthz%2F..%2Fv1/topics/bills",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/console/../../../../etc/passwd",
    "/console/%2e%2e/page.py",
    "/console/..%2fpage.py",
    "/console//etc/passwd",
    "/console/%2Fetc%2Fpasswd",
    "/console/index.html%00.js",
]


async def test_no_path_leads_around_a_token_to_another_topic_or_file(tmp_path):
    data = tmp_path / "data"
    admin = grant(data, "admin", Scope.ADMIN)
    owner = grant(data, "owner", Scope.SEND, Scope.RECEIVE, topics=("orders",))
    async with guarded(data) as service:
        for topic in ("orders", "bills", "BILLS"):
            sent = {"topic": topic, "body": "a secret of its owner", "delay": "1h"}
            assert (await service.call("POST", "/v1/messages", admin, json=sent))[0] == 201
        for path in TRICKS:
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            for headers in ({}, owner):
                shown = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                [status], body = await answers(service.url, f"{head}{shown}\r\n".encode())
                assert status in {400, 401, 403, 404}, (path, status)
                assert b"a secret" not in body, path
                assert b"root:" not in body, path
                assert b"pending" not in body, path


async def test_a_head_that_is_too_large_is_refused_before_it_is_whole(tmp_path):
    async with guarded(tmp_path / "data") as service:
        for head, status in (
            (b"GET /" + b"a" * 20_000, 414),
            (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 20_000, 431),
            (b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a" * 20_000, 431),
            (
                b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: b\r\n" % n for n in range(1000)),
                431,
            ),
        ):
            statuses, _ = await answers(service.url, head)
            assert statuses == [status]


async def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(tmp_path):
    async with guarded(tmp_path / "data", request_bytes_max=1000) as service:
        reader, writer = await asyncio.open_connection(service.url.host, service.url.port)
        writer.write(CARRIER + b"Content-Length: 1001\r\n\r\n")
        async with asyncio.timeout(LIMIT_S):
            assert b" 413 " in await reader.readline()
        writer.close()


async def test_pipelined_requests_are_answered_each_for_itself(tmp_path):
    data = tmp_path / "data"
    shown = "Authorization: " + grant(data, "admin", Scope.ADMIN)["Authorization"]
    async with guarded(data) as service:
        one = "GET /v1/topics HTTP/1.1\r\nHost: x\r\n"
        sent = f"{one}{shown}\r\n\r\n{one}\r\n{one}{shown}\r\nConnection: close\r\n\r\n"
        assert (await answers(service.url, sent.encode()))[0] == [200, 401, 200]


FOREIGN_FRAMES = {
    b"Transfer-Encoding: gzip, chunked\r\n": 501,
    b"Transfer-Encoding: identity, chunked\r\n": 501,
    b"Transfer-Encoding: deflate,chunked\r\n": 501,
}


@pytest.mark.parametrize("frame", FOREIGN_FRAMES)
async def test_a_transfer_encoding_besides_chunks_is_refused_and_nothing_behind_it_is_read(tmp_path, frame):
    async with guarded(tmp_path / "data") as service:
        for expect in (b"", b"Expect: 100-continue\r\n"):
            sent = CARRIER + frame + expect + b"\r\n1\r\nx\r\n" + NO_MORE + SMUGGLED
            statuses, body = await answers(service.url, sent)
            assert statuses == [FOREIGN_FRAMES[frame]]
            assert b'"code":"unsupported_transfer_encoding"' in body
        _, topics = await service.call("GET", "/v1/topics")
        assert not [one for one in topics["topics"] if not one["system"]]


@pytest.mark.parametrize("version", [b"2.0", b"0.9", b"3.0"])
@pytest.mark.parametrize("path", [b"/v1/messages", b"/nowhere"])
async def test_another_version_than_http_1_is_refused_in_http_1(tmp_path, version, path):
    body = b'{"topic":"orders"}'
    head = b"POST %b HTTP/%b\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path, version, len(body))
    async with guarded(tmp_path / "data") as service:
        reader, writer = await asyncio.open_connection(service.url.host, service.url.port)
        writer.write(head + body + SMUGGLED)
        async with asyncio.timeout(LIMIT_S):
            answer = await reader.read()
        writer.close()
        assert answer.startswith((b"HTTP/1.1 505 ", b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))
        assert answer.count(b"HTTP/") == 1
        _, topics = await service.call("GET", "/v1/topics")
        assert not [one for one in topics["topics"] if not one["system"]]


async def test_a_transfer_encoding_in_http_1_0_is_refused(tmp_path):
    old = CARRIER.replace(b"HTTP/1.1", b"HTTP/1.0") + CHUNKED + b"\r\n1\r\nx\r\n" + NO_MORE
    async with guarded(tmp_path / "data") as service:
        assert (await answers(service.url, old))[0] == [400]
