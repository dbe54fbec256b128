"""The fast path of a plain send answers and does what the ordinary way does, and takes nothing else."""

import asyncio
import functools
import itertools
import json

import aiohttp
import pytest

from tests.harness.guarded import grant
from tests.harness.raw_http import MESSAGE, lines_of, post, running, until
from timerwheel import tokens
from timerwheel.api.aiohttp_private import check_parts, is_known
from timerwheel.api.app import make_app
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.fast_path.fast_path import FAST_PATH
from timerwheel.api.security.slow_clients import TimeLimits
from timerwheel.settings import Settings
from timerwheel.tokens import Scope


@pytest.fixture
async def both(tmp_path):
    async with running(tmp_path / "1") as fast, running(tmp_path / "2", fast=False) as ordinary:
        assert ordinary.path is None
        yield fast, ordinary


PLAIN = {
    "a delay": post(),
    "an instant": post(b'{"topic":"orders","body":"pay","deliver_at_ms":1900000000000}'),
    "a level": post(b'{"topic":"orders","body":"pay","delay_level":3}'),
    "a delay in words": post(b'{"topic":"orders","delay":"90s"}'),
    "properties": post(
        b'{"topic":"o","properties":{"a":"1","TIMER_DELAY_SEC":"60"},"tags":"t","keys":["k","l"]}'
    ),
    "bytes": post(b'{"topic":"o","body_base64":"AP8=","delay_ms":9999}'),
    "JSON": post(b'{"topic":"o","json":{"a":[1,2.50,null,{"b":"\\u00e9"}]},"delay_ms":9999}'),
    "JSON that is null, with a type": post(
        b'{"topic":"o","json":null,"properties":{"CONTENT_TYPE":"a/b+json"}}'
    ),
    "JSON in an array": post(b'[{"topic":"o","json":1e2,"delay":"9s"},{"topic":"o","json":""}]'),
    "at once": post(b'{"topic":"orders","body":"now"}'),
    "no type": post(kind=None),
    "the type of curl -d": post(kind=b"application/x-www-form-urlencoded"),
    "headers of a program": post(MESSAGE, b"User-Agent: x", b"Accept: */*", b"Accept-Encoding: gzip"),
    "headers in capitals": post(MESSAGE, b"USER-AGENT: x", b"ACCEPT: */*"),
    "kept alive": post(MESSAGE, b"Connection: keep-alive"),
    "an array": post(b"[" + b",".join([MESSAGE] * 3) + b"]"),
    "an array of many": post(b"[" + b",".join([MESSAGE] * 500) + b"]"),
    "a token that none asks for": post(MESSAGE, b"Authorization: Bearer tw_x"),
}
OTHERS = {
    "an empty array": post(b"[]"),
    "an array of too many to do at once": post(b"[" + b",".join([MESSAGE] * 501) + b"]"),
    "an array with a fault": post(b"[" + MESSAGE + b',{"topic":""}]'),
    "an array with a key": post(b"[" + MESSAGE + b',{"topic":"orders","dedup_key":"k"}]'),
    "an array that is none": post(b"[" + MESSAGE),
    "white space before it": post(b" " + MESSAGE),
    "lines": post(MESSAGE, kind=b"application/x-ndjson"),
    "a query": post(path=b"/v1/messages?a=1"),
    "an escaped path": post(path=b"/v1/message%73"),
    "an absolute target": post(path=b"http://localhost/v1/messages"),
    "another call": post(path=b"/v1/topics/orders/messages"),
    "a method in small letters": post().replace(b"POST", b"post"),
    "an older protocol": post(version=b"1.0"),
    "the last of its connection": post(MESSAGE, b"Connection: close"),
    "an upgrade": post(MESSAGE, b"Connection: upgrade", b"Upgrade: websocket"),
    "a charset": post(kind=b"application/json; charset=utf-8"),
    "a foreign charset": post(kind=b"application/json; charset=latin-1"),
    "a foreign type": post(kind=b"text/plain"),
    "a compressed body": post(MESSAGE, b"Content-Encoding: gzip"),
    "an id of the client's": post(MESSAGE, b"X-Request-Id: mine"),
    "a trace": post(MESSAGE, b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    "a key in the head": post(MESSAGE, b"Idempotency-Key: k"),
    "a key in the body": post(b'{"topic":"orders","dedup_key":"k"}'),
    "a page of another origin": post(MESSAGE, b"Origin: http://evil.example"),
    "another site": post(MESSAGE, b"Sec-Fetch-Site: cross-site"),
    "a rebound name": post(host=b"evil.example"),
    "two hosts": post(MESSAGE, b"Host: localhost"),
    "two types": post(MESSAGE, b"Content-Type: text/plain"),
    "an expectation": post(MESSAGE, b"Expect: magic"),
    "an expectation that is no text": post(MESSAGE, b"Expect: \xb4"),
    "an expectation that is no text, of no call": post(MESSAGE, b"Expect: \xb4", path=b"/v1/none"),
    "an unknown header": post(MESSAGE, b"X-Anything: at all"),
    "no body": post(b""),
    "no JSON": post(b'{"topic":'),
    "an unknown field": post(b'{"topic":"orders","delai_ms":1}'),
    "two delays": post(b'{"topic":"orders","delay_ms":1,"delay":"1s"}'),
    "a bad topic": post(b'{"topic":"or ders"}'),
    "a topic of the service's": post(b'{"topic":"SCHEDULE_TOPIC_XXXX"}'),
    "a reserved topic": post(b'{"topic":"%RETRY%g"}'),
    "a reserved property": post(b'{"topic":"orders","properties":{"SCHEDULE_NAME":"n"}}'),
    "a reserved key in an array": post(b"[" + MESSAGE + b',{"topic":"o","dedup_key":"schedule:n:1:2"}]'),
    "a recalled message without its key": post(b'{"topic":"orders","after_recall":"0"}'),
    "an integer in JSON that is too large": post(b'{"topic":"orders","json":[18446744073709551616]}'),
    "a number in JSON that is too large": post(b'{"topic":"orders","json":1e999}'),
    "JSON that is nested too deeply": post(b'{"topic":"o","json":' + b"[" * 400 + b"]" * 400 + b"}"),
    "JSON beside a body": post(b'{"topic":"orders","json":1,"body":"1"}'),
    "too late": post(b'{"topic":"orders","delay_ms":9000000000000000}'),
    "too large": post(b'{"topic":"orders","body":"' + b"x" * 5_000_000 + b'"}'),
    "chunks": (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"%x\r\n%b\r\n0\r\n\r\n" % (len(MESSAGE), MESSAGE)
    ),
}


@pytest.mark.parametrize("name", PLAIN)
async def test_a_plain_send_takes_it_and_its_answer_does_not_differ(both, name):
    answers = [(await service.ask(PLAIN[name])).shown for service in both]
    assert answers[0] == answers[1]
    assert answers[0][0] == b"HTTP/1.1 201 Created"
    assert await both[0].stored() == await both[1].stored()
    assert both[0].path.taken == 1


@pytest.mark.parametrize("name", OTHERS)
async def test_what_is_not_plain_goes_the_ordinary_way(both, name):
    answers = [(await service.ask(OTHERS[name])).shown for service in both]
    assert answers[0] == answers[1]
    assert await both[0].stored() == await both[1].stored()
    assert both[0].path.taken == 0


async def test_a_connection_may_send_in_both_ways_by_turns(both):
    fast, _ = both
    client = await fast.client()
    sent = [
        *PLAIN.values(),
        OTHERS["an array with a key"],
        OTHERS["no JSON"],
        *PLAIN.values(),
        OTHERS["chunks"],
    ]
    statuses = []
    for request in sent:
        client.write(request)
        statuses.append((await client.answer()).status.split()[1])
    assert statuses == [b"201"] * len(PLAIN) + [b"201", b"400"] + [b"201"] * len(PLAIN) + [b"201"]
    assert fast.path.taken >= 2 * len(PLAIN) - 1  # the first may find the connection not ready


async def test_every_cut_of_a_request_arrives_whole(both):
    fast, _ = both
    client = await fast.client()
    request = PLAIN["properties"]
    for at in range(1, len(request), 7):
        client.write(request[:at])
        await client.writer.drain()
        await asyncio.sleep(0)
        client.write(request[at:])
        assert (await client.answer()).status == b"HTTP/1.1 201 Created"
    assert len(await fast.stored()) == len(range(1, len(request), 7))


async def test_requests_in_one_piece_are_answered_in_order(both):
    fast, _ = both
    client = await fast.client()
    bodies = [b'{"topic":"orders","delay_ms":%d}' % delay_ms for delay_ms in range(1_000, 21_000, 1_000)]
    client.write(*map(post, bodies))
    due_ms = [json.loads((await client.answer()).content)["due_ms"] for _ in bodies]
    assert due_ms == sorted(due_ms)
    assert len(set(due_ms)) == len(bodies)


async def test_what_comes_while_a_send_is_on_its_way_is_answered_after_it(both):
    fast, _ = both
    client = await begun(fast)
    client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", PLAIN["a level"])
    await client.writer.drain()
    other = await fast.client()
    other.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await other.answer()).status == b"HTTP/1.1 200 OK"
    client.write(b"not HTTP\r\n\r\n")
    assert await fast.stored() == []
    await fast.store(1)
    assert b"201" in (await client.answer()).status
    assert b"200" in (await client.answer()).status
    await fast.store(2)
    assert b"201" in (await client.answer()).status
    assert b"400" in (await client.answer()).status


async def begun(service):
    """A connection whose send is on its way, until the clock moves."""
    service.gather()
    client = await service.client()
    client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await client.answer()
    client.write(post())
    await until(lambda: service.path.taken > 0)
    return client


async def test_a_sender_that_goes_away_has_sent(both):
    fast, _ = both
    client = await begun(fast)
    client.writer.transport.abort()
    await fast.store(1)
    assert await requests_in_progress(fast) == 1  # which asks
    assert (await fast.ask(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")).status == b"HTTP/1.1 200 OK"


async def requests_in_progress(service):
    answer = await service.ask(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    [line] = [
        line
        for line in answer.content.split(b"\n")
        if line.startswith(b"timerwheel_http_requests_in_progress ")
    ]
    return float(line.split()[1])


async def test_a_stop_waits_for_the_answer(both):
    fast, _ = both
    client = await begun(fast)
    stopping = asyncio.create_task(fast.server.close())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not stopping.done()
    await fast.store(1)
    assert (await client.answer()).status == b"HTTP/1.1 201 Created"
    assert await client.reader.read() == b""
    await stopping


async def test_an_idle_connection_is_closed_and_one_whose_send_is_on_its_way_is_not(tmp_path):
    async with running(tmp_path / "data", limits=TimeLimits(head_ms=50)) as service:
        client = await begun(service)
        await asyncio.sleep(0.2)  # several times as long as an idle one is left open
        await service.store(1)
        assert (await client.answer()).status == b"HTTP/1.1 201 Created"
        async with asyncio.timeout(20):
            assert await client.reader.read() == b""


async def test_a_full_disk_has_the_same_error(both):
    answers = []
    for service in both:
        service.files.space_bytes = 10
        answers.append(await service.ask(post()))
        service.files.space_bytes = 1 << 40
    assert answers[0].status == answers[1].status == b"HTTP/1.1 507 Insufficient Storage"
    assert answers[0].headers.keys() == answers[1].headers.keys()
    details = [json.loads(answer.content).pop("detail") for answer in answers]
    assert details[0].replace("/1/", "/2/") == details[1]
    assert both[0].path.taken == 1
    for service in both:
        await service.engine.watch_once()
        assert (await service.ask(post())).status == b"HTTP/1.1 201 Created"


async def test_a_log_that_fails_has_the_same_error(both):
    answers = []
    for service in both:
        service.files.fail_sync = True
        answers.append([(await service.ask(post())).shown for _ in range(2)])
    assert answers[0] == answers[1]
    assert b"500" in answers[0][0][0]
    assert both[0].path.taken == 1


async def test_of_many_that_arrive_together_each_gets_its_own_answer(both):
    fast, _ = both
    clients = [await fast.client() for _ in range(60)]
    for client in clients:
        client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await client.answer()
    bodies = [b'{"topic":"t%d","delay_ms":%d}' % (place, 1_000 + place) for place in range(60)]
    bodies[7], bodies[8] = b'{"topic":"or ders"}', b'{"topic":"orders","delay_ms":9000000000000000}'
    bodies[9] = b"[" + MESSAGE + b"]"
    for client, body in zip(clients, bodies, strict=True):
        client.write(post(body))
    answers = [await client.answer() for client in clients]
    for place, answer in enumerate(answers):
        content = json.loads(answer.content)
        if place in {7, 8}:
            assert content["code"] == ("illegal_topic" if place == 7 else "delay_too_long")
        elif place != 9:
            assert content["topic"] == f"t{place}"
            found = await fast.ask(
                b"GET /v1/messages/%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % content["id"].encode()
            )
            view = json.loads(found.content)
            assert (view["topic"], view["due_ms"]) == (f"t{place}", content["due_ms"])
    assert len(await fast.stored()) == 58
    assert len({answer.headers["x-request-id"] for answer in answers}) == 60


async def test_many_that_arrive_together_are_written_in_batches_of_the_size_that_is_set(tmp_path):
    async with running(tmp_path / "data", batch_bytes_max=1_000) as service:
        statuses = await at_once(service, [b'{"topic":"t","body":"%b","delay_ms":9000}' % (b"x" * 600)] * 40)
        assert statuses == [b"201"] * 40
        assert service.path.taken == 40
        assert service.engine.counters.batch_records.counts[0] == 40  # one in each
        assert len(await service.stored()) == 40


async def test_topics_that_are_too_many_are_refused_and_the_others_sent(tmp_path):
    async with running(tmp_path / "data", topics_max=3) as service:
        bodies = [b'{"topic":"t%d","delay_ms":9000}' % (place % 30) for place in range(60)]
        assert [(await service.ask(post(body))).status.split()[1] for body in bodies[:3]] == [b"201"] * 3
        statuses = await at_once(service, bodies)
        assert statuses == [b"201" if place % 30 < 3 else b"400" for place in range(60)]
        assert len(await service.stored()) == 3 + 2 * 3


async def at_once(service, bodies):
    """The statuses of requests that arrive in one turn of the loop, each over a connection of its own."""
    clients = [await service.client() for _ in bodies]
    for client in clients:
        client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await client.answer()
    for client, body in zip(clients, bodies, strict=True):
        client.write(post(body))
    return [(await client.answer()).status.split()[1] for client in clients]


async def test_tokens_count_as_ever(tmp_path):
    for number, fast in enumerate((True, False)):
        data = tmp_path / f"data{number}"
        data.mkdir()
        headers = {
            "sends": grant(data, "sends", Scope.SEND),
            "one topic": grant(data, "topic", Scope.SEND, topics=("ord*",)),
            "another topic": grant(data, "other", Scope.SEND, topics=("other",)),
            "receives": grant(data, "receives", Scope.RECEIVE),
            "rules": grant(data, "rules", Scope.ADMIN),
            "once": grant(data, "once", Scope.SEND, rate_per_s=1.0),
            "was": grant(data, "was", Scope.SEND, expires_ms=1),
            "none": {},
            "wrong": {"Authorization": "Basic eDp5"},
        }
        async with running(data, fast=fast) as service:
            found = await service.statuses(headers, functools.partial(post, MESSAGE))
            foreign = await service.ask(post(MESSAGE, *lines_of(headers["sends"]), host=b"proxied.example"))
            assert foreign.status == b"HTTP/1.1 201 Created"
            if service.path is not None:
                assert service.path.taken == 2 + 2 + 2 + 1 + 1
        assert found == {
            "sends": [201, 201],
            "one topic": [201, 201],
            "another topic": [403, 403],
            "receives": [403, 403],
            "rules": [201, 201],
            "once": [201, 429],
            "was": [401, 401],
            "none": [401, 401],
            "wrong": [401, 401],
        }


async def test_a_send_whose_token_is_revoked_while_it_runs_is_cut_off(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    [header] = lines_of(grant(data, "sends", Scope.SEND))
    grant(data, "rules", Scope.ADMIN)
    async with running(data) as service:
        client = await service.client()
        client.write(post(MESSAGE, header))
        assert b"201" in (await client.answer()).status
        service.gather()
        before = service.path.taken
        client.write(post(MESSAGE, header))
        await until(lambda: service.path.taken > before)
        tokens.revoke(data, "sends")

        def is_cut_off():
            service.guard_clock.advance(1_000)
            return client.reader.at_eof() or client.reader.exception() is not None

        await until(is_cut_off)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.answer()


async def test_nothing_takes_it_with_settings_that_ask_more_of_each_request(tmp_path):
    async with running(tmp_path / "data", cors_origins="https://shop.example") as service:
        answer = await service.ask(post())
        assert answer.headers["vary"] == "Origin"
        assert service.path.taken == 0


def test_this_aiohttp_is_known_and_others_are_not():
    assert is_known(aiohttp.__version__)
    assert not any(map(is_known, ("3.13.9", "3.15.0", "4.0.0")))


def test_an_aiohttp_that_lacks_a_part_is_refused_by_name():
    check_parts()
    with pytest.raises(ImportError, match="its connections have no _drain_helper"):
        check_parts(type("Other", (), dict.fromkeys(("_close", "_handle_request", "_paused"))))


async def test_with_an_aiohttp_that_is_not_known_it_is_not_there_and_the_log_says_so(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("timerwheel.api.aiohttp_private.AIOHTTP", "9.")
    app = make_app(EngineHandle(Settings(data=tmp_path)))
    assert FAST_PATH not in app
    assert "the fast path is off" in caplog.text


async def test_requests_are_counted_in_both_ways_alike(both):
    counted = []
    for service in both:
        for request in itertools.islice(PLAIN.values(), 5):
            await service.ask(request)
        text = (await service.ask(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")).content.decode()
        counted.append(
            [line for line in text.splitlines() if line.startswith("timerwheel_http_requests_total{")]
        )
    assert sorted(counted[0]) == sorted(counted[1])
    assert both[0].path.taken == 5
