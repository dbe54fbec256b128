"""The fast path of plain receives and acknowledgements answers and does what the ordinary way does."""

import asyncio
import functools
import gc
import gzip
import json
import re

import pytest

from tests.harness.clock import ManualClock
from tests.harness.faulty import FaultyFiles
from tests.harness.gate import Gate
from tests.harness.guarded import grant
from tests.harness.raw_http import post, running, until
from timerwheel.api.fast_path import consumes
from timerwheel.api.fast_path.consumes import LARGE_RECEIVES
from timerwheel.api.http import arrow, compression, responses
from timerwheel.engine import Engine
from timerwheel.groups.config import Exponential, GroupConfig
from timerwheel.model.messages import Outgoing
from timerwheel.settings import Settings
from timerwheel.tokens import Scope
from timerwheel.wire.arrow import MEDIA_TYPE

GROUP = b"/v1/topics/orders/groups/g"
UNIQUE = re.compile(rb'"(receipt|id|message_id)":"[0-9a-f]+"')


@pytest.fixture
async def both(tmp_path):
    async with running(tmp_path / "1") as fast, running(tmp_path / "2", fast=False) as ordinary:
        for service in (fast, ordinary):
            await service.engine.groups.put("orders", "g", GroupConfig(backoff=Exponential()))
        yield fast, ordinary


async def send(service, *bodies, topic="orders", **properties):
    await service.engine.sender.send([Outgoing(topic, body.encode(), properties) for body in bodies])


def call(name, content=b"{}", *headers, path=GROUP):
    return post(content, *headers, path=path + b"/" + name)


def shown(answer):
    """What does not depend on the log that it comes from."""
    its_own = {"date", "x-request-id"}
    if "content-encoding" in answer.headers:
        its_own.add("content-length")
    headers = {k: v for k, v in answer.headers.items() if k not in its_own}
    return answer.status, headers, UNIQUE.sub(rb'"\1":""', plain(answer))


def plain(answer):
    return gzip.decompress(answer.content) if "content-encoding" in answer.headers else answer.content


def receipts(answer):
    return [one["receipt"] for one in json.loads(plain(answer))["messages"]]


def acked(*given):
    return json.dumps({"receipts": given}).encode()


def receive_and_ack(given, **fields):
    return call(b"receive", json.dumps({"ack": given, **fields}).encode())


async def asked(both, *requests):
    """The answers of both to these, which are made of the receipts of the answer before."""
    found = []
    for service in both:
        answers, held = [], []
        for request in requests:
            raw = request(held) if callable(request) else request
            answers.append(await service.ask(raw))
            content = json.loads(plain(answers[-1]))
            held = [one["receipt"] for one in content.get("messages", [])] or held
        found.append(answers)
    assert [shown(answer) for answer in found[0]] == [shown(answer) for answer in found[1]]
    return found[0]


PLAIN = {
    "one": (call(b"receive"),),
    "several": (call(b"receive", b'{"max":3,"invisible_ms":1000}'),),
    "none left": (call(b"receive", b'{"max":10}'), call(b"receive")),
    "a wait that need not": (call(b"receive", b'{"wait_ms":60000}'),),
    "an acknowledgement": (call(b"receive"), lambda held: call(b"ack", acked(*held))),
    "twice": (
        call(b"receive"),
        lambda held: call(b"ack", acked(*held, *held)),
        lambda held: call(b"ack", acked(*held)),
    ),
    "no receipt": (call(b"ack", acked("x" * 60, "0" * 60)),),
    "none at all": (call(b"ack", acked()),),
    "both in one": (call(b"receive", b'{"max":2}'), receive_and_ack),
    "both, and nothing left": (call(b"receive", b'{"max":4}'), receive_and_ack),
    "the group's own filter": (call(b"receive", b'{"tags":"*","start":"head"}'),),
    "headers of a program": (call(b"receive", b"{}", b"User-Agent: x", b"Accept-Encoding: gzip"),),
    "as many as are encoded in one step": (call(b"receive", b'{"max":256}'), receive_and_ack),
    "gzip, of few": (call(b"receive", b'{"max":16}', b"Accept-Encoding: gzip"),),
}
OTHERS = {
    "no such group": call(b"receive", path=b"/v1/topics/orders/groups/none"),
    "no body": call(b"receive", b""),
    "another filter": call(b"receive", b'{"tags":"B"}'),
    "too many": call(b"receive", b'{"max":1001}'),
    "more than are encoded in one step": call(b"receive", b'{"max":257}'),
    "gzip, of more than a few": call(b"receive", b'{"max":17}', b"Accept-Encoding: gzip"),
    "a field that is none": call(b"receive", b'{"maximum":1}'),
    "no JSON": call(b"receive", b"{"),
    "no receipts": call(b"ack"),
    "a query": call(b"receive?a=1"),
    "a malformed group": call(b"ack", acked(), path=b"/v1/topics/orders/groups/a.b"),
    "a malformed topic": call(b"receive", path=b"/v1/topics/or.ders/groups/g"),
    "an escaped name": call(b"receive", path=b"/v1/topics/order%73/groups/g"),
    "a page of another origin": call(b"receive", b"{}", b"Origin: http://evil.example"),
    "an id of the client's": call(b"receive", b"{}", b"X-Request-Id: mine"),
    "giving back": call(b"nack", acked("0" * 60)),
}


@pytest.mark.parametrize("name", PLAIN)
async def test_a_plain_call_takes_it_and_its_answer_does_not_differ(both, name):
    for service in both:
        await send(service, "a", "b", "c", "d")
    await asked(both, *PLAIN[name])
    assert both[0].path.taken == len(PLAIN[name])
    assert both[0].engine.groups.info("orders", "g") == both[1].engine.groups.info("orders", "g")


@pytest.mark.parametrize("name", OTHERS)
async def test_what_is_not_plain_goes_the_ordinary_way(both, name):
    for service in both:
        await send(service, "a")
    answers = await asked(both, OTHERS[name])
    assert both[0].path.taken == 0
    assert both[0].engine.groups.info("orders", "g") == both[1].engine.groups.info("orders", "g")
    assert answers


async def test_an_acknowledgement_of_a_group_that_is_not_there_is_refused_alike(both):
    [answer] = await asked(both, call(b"ack", acked("0" * 60), path=b"/v1/topics/orders/groups/none"))
    assert answer.status == b"HTTP/1.1 404 Not Found"


async def test_a_receive_makes_its_group_if_it_says_so(both):
    for service in both:
        await send(service, "a")
    request = call(b"receive", b'{"create":true}', path=b"/v1/topics/orders/groups/new")
    [answer] = await asked(both, request)
    assert len(receipts(answer)) == 1


@pytest.mark.parametrize(
    ("size", "accepts", "is_fast"),
    [
        (7_000, b"gzip", True),
        (9_000, b"gzip", False),
        (9_000, b"identity", True),
        (60_000, b"identity", True),
        (100_000, b"identity", False),
    ],
)
async def test_large_answers_are_left_to_the_ordinary_way_and_no_attempt_is_lost(
    both, size, accepts, is_fast
):
    for service in both:
        await send(service, "x" * size, "y" * size)
    receive = call(b"receive", b'{"max":1}', b"Accept-Encoding: " + accepts)
    answers = await asked(both, receive, receive)
    assert [json.loads(plain(answer))["messages"][0]["attempt"] for answer in answers] == [1, 1]
    assert both[0].path.taken == (2 if is_fast else 0)
    assert both[0].engine.groups.info("orders", "g").in_flight == 2


async def test_properties_make_an_answer_large_too(both):
    for service in both:
        for _ in range(12):
            await send(service, "a", note="x" * 30_000)
    [answer] = await asked(both, call(b"receive", b'{"max":20}'))
    assert len(receipts(answer)) == 12
    assert both[0].path.taken == 0


async def test_a_group_whose_answers_are_large_is_left_alone_for_a_while(both):
    fast, _ = both
    for _ in range(2 * LARGE_RECEIVES):
        await send(fast, "x" * 70_000)
    for _ in range(LARGE_RECEIVES + 1):
        assert len(receipts(await fast.ask(call(b"receive")))) == 1
    chosen = fast.engine.groups.info("orders", "g")
    assert (fast.path.taken, chosen.in_flight) == (0, LARGE_RECEIVES + 1)
    await send(fast, "small", topic="invoices")
    await fast.ask(call(b"receive", b'{"create":true}', path=b"/v1/topics/invoices/groups/h"))
    assert fast.path.taken == 1


async def test_more_groups_with_large_answers_than_are_known_are_tried_again(both, monkeypatch):
    monkeypatch.setattr(consumes, "LARGE_GROUPS_MAX", 1)
    fast, _ = both
    await send(fast, "x" * 70_000)
    await send(fast, "y" * 70_000, topic="invoices")
    other = b"/v1/topics/invoices/groups/h"
    for request in (call(b"receive"), call(b"receive", b'{"create":true}', path=other)):
        assert len(receipts(await fast.ask(request))) == 1
    assert fast.path.taken == 0
    await send(fast, "small")
    assert len(receipts(await fast.ask(call(b"receive")))) == 1
    assert fast.path.taken == 1


async def test_a_receive_that_finds_nothing_waits_in_the_ordinary_way(both):
    fast, _ = both
    client = await fast.client()
    client.write(call(b"receive", b'{"wait_ms":60000}'))
    await until(lambda: fast.engine.groups.info("orders", "g").lag == 0)
    await send(fast, "late")
    async with asyncio.timeout(20):
        answer = await client.answer()
    assert len(receipts(answer)) == 1
    assert fast.path.taken == 0


async def test_receipts_of_a_receive_that_then_waits_are_acknowledged_once(both):
    fast, _ = both
    await send(fast, "a")
    held = receipts(await fast.ask(call(b"receive")))
    client = await fast.client()
    client.write(receive_and_ack(held, wait_ms=60_000))
    await until(lambda: fast.engine.groups.info("orders", "g").in_flight == 0)
    await send(fast, "b")
    async with asyncio.timeout(20):
        answer = await client.answer()
    assert json.loads(answer.content)["results"] == [{"receipt": held[0], "ok": True}]
    assert len(receipts(answer)) == 1


async def test_the_next_of_a_key_comes_with_the_answer_that_acknowledges_the_first(both):
    for service in both:
        await service.engine.topics.change("orders", ordered=True)
        await send(service, "a1", "a2", __SHARDINGKEY="a")
    answers = await asked(both, call(b"receive", b'{"max":2}'), receive_and_ack)
    assert [json.loads(a.content)["messages"][0]["body"] for a in answers] == ["a1", "a2"]


async def test_a_full_disk_refuses_acknowledgements_alike_and_the_lease_stays(both):
    for service in both:
        await send(service, "a", "b")
    found = []
    for service in both:
        held = receipts(await service.ask(call(b"receive")))
        service.files.space_bytes = 10
        answers = [await service.ask(call(b"ack", acked(*held))), await service.ask(receive_and_ack(held))]
        service.files.space_bytes = 1 << 40
        found.append([(answer.status, answer.headers.keys()) for answer in answers])
        assert service.engine.groups.info("orders", "g").in_flight == 1
        assert json.loads((await service.ask(call(b"ack", acked(*held)))).content)["results"][0]["ok"]
    assert found[0] == found[1]
    assert found[0][0][0] == b"HTTP/1.1 507 Insufficient Storage"


async def test_a_log_that_fails_is_reported_alike(both):
    found = []
    for service in both:
        await send(service, "a")
        held = receipts(await service.ask(call(b"receive")))
        service.files.fail_sync = True
        found.append([shown(await service.ask(call(b"ack", acked(*held)))) for _ in range(2)])
    assert found[0] == found[1]
    assert b"500" in found[0][0][0]


async def test_tokens_count_as_ever(tmp_path):
    found = []
    for number, fast in enumerate((True, False)):
        data = tmp_path / f"data{number}"
        data.mkdir()
        headers = {
            "receives": grant(data, "receives", Scope.RECEIVE),
            "another topic": grant(data, "other", Scope.RECEIVE, topics=("other",)),
            "sends": grant(data, "sends", Scope.SEND),
            "once": grant(data, "once", Scope.RECEIVE, rate_per_s=1.0),
            "none": {},
        }
        async with running(data, fast=fast) as service:
            await service.engine.groups.put("orders", "g", GroupConfig())
            await send(service, *"abcdef")
            found.append(await service.statuses(headers, functools.partial(call, b"receive", b"{}")))
    assert found[0] == found[1]
    assert found[0] == {
        "receives": [200, 200],
        "another topic": [403, 403],
        "sends": [403, 403],
        "once": [200, 429],
        "none": [401, 401],
    }


@pytest.mark.parametrize("way", ["fast", "ordinary"])
async def test_a_consumer_that_goes_away_while_it_is_served_leaves_its_message_to_others(both, way):
    service = both[0] if way == "fast" else both[1]
    await send(service, "a", "b")
    held = receipts(await service.ask(call(b"receive")))
    client = await service.client()
    client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await client.answer()
    service.gather()
    client.write(receive_and_ack(held))
    ending = service.engine.groups.runtimes["orders/g"].leasing.busy
    await until(lambda: bool(ending))
    if way == "fast":
        await until(lambda: service.engine.groups.info("orders", "g").in_flight == 2)
    client.writer.close()
    await client.writer.wait_closed()
    for _ in range(200):
        service.clock.advance(5)
        await asyncio.sleep(0.001)
        info = service.engine.groups.info("orders", "g")
        if (info.in_flight, info.waiting + info.ready + info.lag) == (0, 1):
            break
    info = service.engine.groups.info("orders", "g")
    assert (info.in_flight, info.waiting + info.ready + info.lag) == (0, 1)


LARGE = {
    "in steps": (b'{"max":1000}', b"Accept: application/json", 600, 1),
    "in gzip": (b'{"max":300}', b"Accept-Encoding: gzip", 200, 1_000),
    "in Arrow": (b'{"max":300}', b"Accept: " + MEDIA_TYPE.encode(), 200, 7_000),
}


@pytest.mark.parametrize("form", LARGE)
async def test_messages_go_back_at_once_if_their_consumer_goes_away_while_the_answer_is_made(
    both, form, monkeypatch
):
    _, service = both
    content, header, count, size = LARGE[form]
    for _ in range(count // 100):
        await send(service, *["x" * size] * 100)
    gate, entered = None, asyncio.Event()
    if form == "in steps":

        async def wait_for_nothing():
            entered.set()
            await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(responses, "_breathe", wait_for_nothing)
    elif form == "in gzip":
        gate = Gate(compression.compressed)
        monkeypatch.setattr(compression, "compressed", gate)
    else:
        gate = Gate(arrow._stream_of)
        monkeypatch.setattr(arrow, "_stream_of", gate)
    client = await service.client()
    client.write(call(b"receive", content, header))
    await until(lambda: entered.is_set() if gate is None else gate.entered == 1)
    assert in_state(service).in_flight == count
    client.writer.close()
    try:
        await until(lambda: (in_state(service).waiting, in_state(service).in_flight) == (count, 0))
    finally:
        if gate is not None:
            gate.open()


async def test_an_answer_that_cannot_be_made_gives_its_messages_back_at_once(both, monkeypatch):
    _, service = both

    async def fail(*_args, **_more):
        raise RuntimeError("cannot encode")

    await send(service, "a")
    monkeypatch.setattr(responses, "page", fail)
    answer = await service.ask(call(b"receive"))
    assert answer.status.endswith(b"500 Internal Server Error")
    info = service.engine.groups.info("orders", "g")
    assert (info.in_flight, info.waiting) == (0, 1)


async def test_a_late_acknowledgement_counts_before_the_same_call_receives(both):
    for service in both:
        await send(service, "a")
        held = receipts(await service.ask(call(b"receive", b'{"invisible_ms":1000}')))
        await until(lambda service=service: service.clock.advance(500) or in_state(service).ready)
        answer = await service.ask(receive_and_ack(held, max=10))
        found = json.loads(plain(answer))
        assert found["results"] == [{"receipt": held[0], "ok": True}]
        assert found["messages"] == []
        assert in_state(service).ready == 0


def in_state(service):
    return service.engine.groups.info("orders", "g")


@pytest.mark.parametrize("ahead", [0, 1])
async def test_after_a_crash_what_a_call_acknowledges_is_not_received_by_it(tmp_path, ahead):
    """`ahead`: others have received before, so that what comes next was read already."""
    files, clock = FaultyFiles(), ManualClock()
    settings = Settings(data=tmp_path, disk_reserve_bytes=0)
    engine = await Engine.open(settings, clock, files)
    await engine.groups.put("orders", "g", GroupConfig(backoff=Exponential()))
    await engine.sender.send([Outgoing("orders", body.encode(), {}) for body in "abc"])
    held = [one.receipt for one in await engine.groups.receive("orders", "g", count_max=3)]
    await engine.abandon()
    async with running(tmp_path, files=files) as service:
        others = [receipts(await service.ask(call(b"receive"))) for _ in range(ahead)]
        answer = await service.ask(receive_and_ack(held[2:], max=10))
        found = json.loads(plain(answer))
        assert found["results"] == [{"receipt": held[2], "ok": True}]
        assert len(found["messages"]) == 2 - len(others)


async def test_acknowledgements_that_cannot_be_stored_are_refused_before_the_call_waits(both):
    found = []
    for service in both:
        await send(service, "a")
        held = receipts(await service.ask(call(b"receive")))
        service.files.space_bytes = 10
        answers = []
        for fields in ({"wait_ms": 60_000}, {"tags": "other"}):
            async with asyncio.timeout(20):
                answers.append(await service.ask(receive_and_ack(held, **fields)))
        service.files.space_bytes = 1 << 40
        found.append([(answer.status, answer.headers.keys()) for answer in answers])
    assert found[0] == found[1]
    assert [status for status, _ in found[0]] == [b"HTTP/1.1 507 Insufficient Storage"] * 2


async def test_what_fails_of_a_receive_that_acknowledges_is_reported_once_and_to_its_client(both, caplog):
    _, service = both
    await send(service, "a")
    held = receipts(await service.ask(call(b"receive")))
    missing = b"/v1/topics/orders/groups/none"
    content = json.dumps({"ack": held}).encode()
    assert (await service.ask(call(b"receive", content, path=missing))).status.split()[1] == b"404"
    await service.engine.groups.put("orders", "offsets", GroupConfig(kind="offsets"))
    answer = await service.ask(call(b"receive", content, path=b"/v1/topics/orders/groups/offsets"))
    assert answer.status.split()[1] == b"409"
    service.files.space_bytes = 10
    assert (await service.ask(receive_and_ack(held, tags="other"))).status.split()[1] == b"507"
    service.files.space_bytes = 1 << 40
    gc.collect()
    assert [one.message for one in caplog.records if one.name == "asyncio"] == []


async def test_requests_are_counted_in_both_ways_alike(both):
    counted = []
    for service in both:
        await send(service, "a", "b")
        held = receipts(await service.ask(call(b"receive")))
        await service.ask(call(b"ack", acked(*held)))
        text = (await service.ask(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")).content.decode()
        counted.append(
            sorted(line for line in text.splitlines() if line.startswith("timerwheel_http_requests_total{"))
        )
    assert counted[0] == counted[1]
    assert both[0].path.taken == 2
