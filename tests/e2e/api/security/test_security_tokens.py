"""Tokens over HTTP: who is let in, to what, for which topics, for how long and how often."""

import asyncio
import functools
import logging

import aiohttp
import pytest

from tests.harness.guarded import code, grant, guarded
from timerwheel import tokens
from timerwheel.api.security.auth import AUTH
from timerwheel.settings import Serving
from timerwheel.tokens import Scope

SIGN = {"X-Requested-With": "test"}
LIMIT_S = 60  # only keeps a failure from hanging
OPEN = {"/healthz", "/readyz", "/openapi.json", "/"}
PARTS = {
    "{topic}": "orders",
    "{queue}": "0",
    "{group}": "g",
    "{key}": "k",
    "{name}": "n",
    "{id}": "x",
    "{token}": "x",
}


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


async def every_call(service):
    """Method and path of each call of the document, with made-up names in the path."""
    _, document = await service.call("GET", "/openapi.json")
    for path, calls in document["paths"].items():
        filled = functools.reduce(lambda text, part: text.replace(*part), PARTS.items(), path)
        for method in calls:
            yield method.upper(), filled


# ---------------------------------------------------------------------- whether


async def test_with_tokens_nobody_gets_anything_without_one_but_health_document_and_page(data):
    grant(data, "somebody", Scope.ADMIN)
    async with guarded(data) as service:
        calls = [call async for call in every_call(service)]
        assert len(calls) > 40
        for method, path in [*calls, ("GET", "/"), ("HEAD", "/v1/topics")]:
            # The token in the path of an acknowledgement is what it takes, and that one is none.
            expected = 200 if path in OPEN else 404 if path.startswith("/v1/acks/") else 401
            status, content = await service.call(method, path)
            assert status == expected, (method, path)
            if status == 401 and method != "HEAD":
                assert content["code"] == "unauthenticated"


@pytest.mark.parametrize(
    "given",
    [
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Bearer " + "tw_" + "A" * 49,
        "Basic dHdfeDp5",
        "Bearer {} {}",
        "{}",
        "Bearer {}x",
        "token {}",
    ],
)
async def test_what_is_not_exactly_a_good_token_is_none(data, given):
    headers = grant(data, "somebody", Scope.ADMIN)
    secret = headers["Authorization"].removeprefix("Bearer ")
    async with guarded(data) as service:
        async with service.session.get(
            service.url / "v1/topics", headers={"Authorization": given.replace("{}", secret)}
        ) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"] == 'Bearer realm="timerwheel", error="invalid_token"'
        assert await service.call("GET", "/v1/topics", {"Authorization": f"bearer  {secret} "}) == (
            200,
            (await service.call("GET", "/v1/topics", headers))[1],
        )
        async with service.session.get(
            service.url / "v1/topics", headers=[("Authorization", f"Bearer {secret}")] * 2
        ) as response:
            assert response.status == 401, "which of two counts is anybody's guess"


async def test_another_services_token_and_the_hash_of_a_token_open_nothing(data, tmp_path):
    grant(data, "somebody", Scope.ADMIN)
    foreign = grant(tmp_path / "other", "somebody", Scope.ADMIN)
    kept = tokens.read(data).all[0].sha256
    async with guarded(data) as service:
        for headers in (foreign, {"Authorization": f"Bearer {kept}"}):
            assert code(await service.call("GET", "/v1/topics", headers)) == "unauthenticated"


# ---------------------------------------------------------------------- what for


async def test_each_scope_opens_its_own_calls_and_no_other(data):
    send = grant(data, "sender", Scope.SEND)
    receive = grant(data, "receiver", Scope.RECEIVE)
    admin = grant(data, "admin", Scope.ADMIN)
    both = grant(data, "both", Scope.SEND, Scope.RECEIVE)
    async with guarded(data) as service:
        for method, path, content, allowed in (
            ("POST", "/v1/messages", {"topic": "orders", "delay": "1h"}, {"sender"}),
            ("POST", "/v1/topics/orders/messages?TIMER_DELAY_SEC=3600", None, {"sender"}),
            ("GET", "/v1/messages", None, {"sender", "receiver"}),
            ("POST", "/v1/messages/recall", {"topic": "orders", "dry_run": True}, {"sender"}),
            ("GET", "/v1/topics/orders/queues/0/messages", None, {"receiver"}),
            ("POST", "/v1/topics/orders/groups/g/receive", {"create": True}, {"receiver"}),
            ("PUT", "/v1/topics/orders/groups/g", {"max_attempts": 3}, set()),
            ("PATCH", "/v1/topics/orders", {"ordered": False}, set()),
            ("PUT", "/v1/schedules/s", {"topic": "orders", "every": "1h"}, {"sender"}),
            ("GET", "/v1/subscriptions", None, {"receiver"}),
            ("GET", "/v1/wheel", None, {"sender", "receiver"}),
            ("GET", "/metrics", None, {"sender", "receiver"}),
        ):
            for name, headers in (("sender", send), ("receiver", receive), ("admin", admin), ("both", both)):
                status, answer = await service.call(method, path, headers, json=content)
                if name in allowed or name == "admin" or (name == "both" and allowed):
                    assert status < 300, (name, method, path, answer)
                else:
                    assert (status, answer["code"]) == (403, "forbidden"), (name, method, path)
                    assert name in answer["detail"]


# ---------------------------------------------------------------------- for how long, how often


async def test_a_request_that_runs_is_cut_off_when_its_token_is_another_one_of_the_same_name(data):
    async with guarded(data) as service:
        changed = grant(data, "changed", Scope.RECEIVE)
        same = grant(data, "same", Scope.RECEIVE)
        service.look()
        streams = [
            await service.session.get(
                service.url / f"v1/topics/a/groups/{group}/stream" % {"create": "true"}, headers=headers
            )
            for group, headers in (("g", changed), ("h", same))
        ]
        assert [stream.status for stream in streams] == [200, 200]
        tokens.revoke(data, "changed")
        grant(data, "changed", Scope.RECEIVE, topics=("other",))
        service.look()
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(aiohttp.ClientError):
                await streams[0].read()
        assert not streams[1].content.at_eof()
        streams[1].close()


async def test_other_fronts_learn_whether_a_caller_still_has_its_rights(data):
    grant(data, "admin", Scope.ADMIN)
    async with guarded(data) as service:
        short, revoked, changed = (
            grant(data, name, Scope.RECEIVE, **more)["Authorization"].partition(" ")[2]
            for name, more in (
                ("short", {"expires_ms": service.clock.now_ms() + 2_500}),
                ("revoked", {}),
                ("changed", {}),
            )
        )
        auth = service.app[AUTH]
        auth.look()
        callers = [auth.of_key(secret) for secret in (short, revoked, changed)]
        assert [auth.is_current(caller) for caller in callers] == [True] * 3
        tokens.revoke(data, "revoked")
        tokens.revoke(data, "changed")
        grant(data, "changed", Scope.RECEIVE, topics=("other",))
        auth.look()
        assert [auth.is_current(caller) for caller in callers] == [True, False, False]
        service.clock.advance(2_500)
        assert not auth.is_current(callers[0])


async def test_a_token_ends_at_its_time_or_when_it_is_revoked_also_for_requests_that_run(data):
    admin = grant(data, "admin", Scope.ADMIN)
    async with guarded(data) as service:
        short = grant(data, "short", Scope.RECEIVE, expires_ms=service.clock.now_ms() + 2_500)
        revoked = grant(data, "revoked", Scope.RECEIVE)
        service.look()
        waiting = [
            asyncio.create_task(
                service.call(
                    "POST", "/v1/topics/a/groups/g/receive", headers, json={"wait_ms": 60_000, "create": True}
                )
            )
            for headers in (short, revoked)
        ]
        streaming = await service.session.get(
            service.url / "v1/topics/a/groups/g/stream" % {"create": "true"}, headers=revoked
        )
        assert streaming.status == 200
        for headers in (short, revoked):
            assert (await service.call("GET", "/v1/topics/a/groups", headers))[0] == 200
        tokens.revoke(data, "revoked")
        service.look()
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(aiohttp.ClientError):
                await waiting[1]
            with pytest.raises(aiohttp.ClientError):
                await streaming.read()
        assert not waiting[0].done()
        assert code(await service.call("GET", "/v1/topics", revoked)) == "unauthenticated"
        service.look()
        _, problem = await service.call("GET", "/v1/topics", short)
        assert problem["detail"] == "the token 'short' has expired"
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(aiohttp.ClientError):
                await waiting[0]
        assert (await service.call("GET", "/v1/topics", admin))[0] == 200


async def test_a_token_may_call_as_often_as_it_says_and_an_array_counts_its_messages(data):
    slow = grant(data, "slow", Scope.SEND, rate_per_s=2.0)
    other = grant(data, "other", Scope.SEND)
    async with guarded(data) as service:
        assert [code(await service.call("GET", "/v1/wheel", slow)) for _ in range(3)] == [
            200,
            200,
            "rate_limited",
        ]
        assert (await service.call("GET", "/v1/wheel", other))[0] == 200
        for nothing_good, status in (([], 200), ([{"topic": 1}] * 2, 400)):
            service.look(1_000)
            asked = [await service.call("POST", "/v1/messages", slow, json=nothing_good) for _ in range(3)]
            assert [code(one) for one in asked][-1] == "rate_limited"
            assert asked[0][0] == status
            service.look(4_000)
        service.look(1_000)
        array = [{"topic": "a"}] * 9
        assert (await service.call("POST", "/v1/messages", slow, json=array))[0] == 201
        async with service.session.get(service.url / "v1/wheel", headers=slow) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "4")
        service.look(4_000)
        assert (await service.call("GET", "/v1/wheel", slow))[0] == 200


# ---------------------------------------------------------------------- the file


async def test_the_first_token_closes_an_open_service_and_the_last_one_opens_it_again(data):
    async with guarded(data) as service:
        assert (await service.call("GET", "/v1/topics"))[0] == 200
        streaming = await service.session.get(
            service.url / "v1/topics/a/groups/g/stream" % {"create": "true"}, headers=SIGN
        )
        assert streaming.status == 200
        first = grant(data, "first", Scope.ADMIN)
        service.look()
        assert (await service.call("GET", "/v1/topics"))[0] == 401
        assert (await service.call("POST", "/v1/messages", first, json={"topic": "a"}))[0] == 201
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(aiohttp.ClientError):
                await streaming.read()
        tokens.revoke(data, "first")
        service.look()
        assert (await service.call("GET", "/v1/topics"))[0] == 200


async def test_a_service_that_others_reach_stays_closed_when_the_last_token_is_revoked(data):
    grant(data, "only", Scope.ADMIN)
    async with guarded(data, serving=Serving(host="0.0.0.0")) as service:
        tokens.revoke(data, "only")
        service.look()
        assert (await service.call("GET", "/v1/topics"))[0] == 401
        assert (await service.call("GET", "/healthz"))[0] == 200


@pytest.mark.parametrize("body", [None, b"", b"{}", b'{"version": 9, "tokens": []}'])
async def test_a_file_that_is_gone_or_broken_lets_nobody_in_and_locks_nobody_out(data, body, caplog):
    admin = grant(data, "admin", Scope.ADMIN)
    async with guarded(data) as service:
        path = data / tokens.FILE
        if body is None:
            path.unlink()
        else:
            path.write_bytes(body)
        for _ in range(3):
            service.look()
            assert (await service.call("GET", "/v1/topics"))[0] == 401
            assert (await service.call("GET", "/v1/topics", admin))[0] == 200
    told = [record for record in caplog.records if record.name == "timerwheel.api.security.keyring"]
    assert [record.levelname for record in told] == ["ERROR"], "it is said once"


# ---------------------------------------------------------------------- the audit


async def test_the_audit_tells_who_did_what_and_how_it_went_and_no_secret(data, caplog):
    admin, sender = grant(data, "admin", Scope.ADMIN), grant(data, "sender", Scope.SEND, rate_per_s=2.0)
    caplog.set_level(logging.INFO, "timerwheel.audit")
    group = "/v1/topics/orders/groups/g"
    async with guarded(data) as service:
        await service.call("PUT", group, admin, json={"max_attempts": 3})
        await service.call("PUT", group, admin, json={"max_attempts": "many"})
        await service.call("DELETE", group, sender)
        await service.call("DELETE", group)
        await service.call("POST", "/v1/messages", sender, json={"topic": "orders", "body": "b0dy"})
        await service.call("DELETE", group, sender)
        await service.call("DELETE", f"{group}%0A%00forged", admin)
        grant(data, "new", Scope.SEND)
        tokens.revoke(data, "sender")
        service.look()
        await service.call("GET", "/healthz")  # by now it has looked
    told = [record for record in caplog.records if record.name == "timerwheel.audit"]
    assert [(one.who, one.what, one.target, one.outcome) for one in told] == [
        ("admin", "putGroup", group, "201"),
        ("admin", "putGroup", group, "invalid_field"),
        ("sender", "deleteGroup", group, "forbidden"),
        ("nobody", "deleteGroup", group, "401"),
        ("sender", "deleteGroup", group, "429"),
        ("admin", "deleteGroup", f"{group}%0A%00forged", "illegal_group"),
        ("service", "tokenRevoked", "sender", "done"),
        ("service", "tokenCreated", "new", "done"),
    ]
    assert {one.remote for one in told[:6]} == {"127.0.0.1"}
    for record in told:
        text = record.getMessage()
        assert "\n" not in text
        assert "tw_" not in text
        assert "b0dy" not in text


async def test_without_tokens_the_audit_still_tells_what_was_done(data, caplog):
    caplog.set_level(logging.INFO, "timerwheel.audit")
    async with guarded(data) as service:
        await service.call("PATCH", "/v1/topics/orders", json={"ordered": True})
    [told] = [record for record in caplog.records if record.name == "timerwheel.audit"]
    assert (told.who, told.what, told.outcome) == ("open", "changeTopic", "200")
