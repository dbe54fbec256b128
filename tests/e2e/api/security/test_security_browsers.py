"""A service on this machine, and a browser on it that looks at pages of others."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.harness.browser import browsing
from tests.harness.guarded import grant, guarded
from tests.harness.processes import serving, timerwheel
from timerwheel.clock import SystemClock
from timerwheel.settings import Serving
from timerwheel.tokens import Scope

FOREIGN = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}
REBOUND = {"Host": "evil.example"}

LIMIT_S = 60  # only keeps a failure from hanging
LOOK_MS = 50
WAYS = ("fetch", "json", "form", "stream")

# Every way to have a browser send something without asking first, and one that asks.
ATTACK = """async ([target, who]) => {
    const url = `${target}/v1/messages`;
    const message = (how) => `{"topic": "${who}-${how}"}`;
    const form_type = {"Content-Type": "application/x-www-form-urlencoded"};  // which is read as JSON
    await fetch(url, {method: "POST", mode: "no-cors", body: message("fetch"), headers: form_type})
        .catch(() => 0);
    await fetch(url, {method: "POST", body: message("json"), headers: {"Content-Type": "application/json"}})
        .catch(() => 0);
    document.body.append(Object.assign(document.createElement("iframe"), {name: "frame"}));
    const form = document.body.appendChild(document.createElement("form"));
    const raw = `${target}/v1/topics/${who}-form/messages`;
    Object.assign(form, {action: raw, method: "post", target: "frame"});
    form.submit();
    const stream = new EventSource(`${target}/v1/topics/orders/groups/${who}-stream/stream?create=true`);
    await new Promise((done) => { stream.onopen = done; stream.onerror = done; });
    stream.close();
}"""


class Empty(BaseHTTPRequestHandler):
    """A page with nothing on it, under whatever name it is called."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page</title><body>")

    def log_message(self, *_):
        pass


@contextmanager
def pages() -> Iterator[int]:
    """The port of a server with empty pages."""
    with HTTPServer(("127.0.0.1", 0), Empty) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def made(url: str) -> set[str]:
    """The names of all topics and groups of a service."""
    topics = timerwheel("topics", "list", "--url", url, "--json").json["topics"]
    groups = timerwheel("groups", "list", "--url", url, "--json").json["groups"]
    return {one["topic"] for one in topics if not one["system"]} | {one["group"] for one in groups}


async def test_a_page_of_another_origin_can_make_its_visitors_browser_do_nothing(tmp_path):
    allowed = {f"friend-{way}" for way in WAYS}
    with pages() as port:
        friend = f"http://friend.example:{port}"
        with serving(tmp_path / "d", "--cors-origins", friend) as service:
            await asyncio.to_thread(visit, port, service.url)
            async with asyncio.timeout(LIMIT_S):
                while not made(service.url) >= allowed:  # the attack is none when it is allowed, and works
                    await SystemClock().sleep_for(LOOK_MS)
            assert made(service.url) == allowed, "and what the other page sent came first"


def visit(port: int, url: str) -> None:
    """Look at a page that is not allowed, at one that is, and at the service by another name."""
    with browsing("--host-resolver-rules=MAP *.example 127.0.0.1") as browser:
        page = browser.new_page()
        for who in ("evil", "friend"):
            page.goto(f"http://{who}.example:{port}/")
            with page.expect_request("**/*-form/messages"):
                page.evaluate(ATTACK, [url, who])
        rebound = page.goto(url.replace("127.0.0.1", "evil.example") + "/v1/topics")
        assert (rebound.status, rebound.json()["code"]) == (421, "wrong_host")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/messages", 403),
        ("POST", "/v1/topics/a/messages", 403),
        ("DELETE", "/v1/topics/a/groups/g", 403),
        ("GET", "/v1/topics/a/groups/g/stream", 403),
        ("GET", "/v1/live", 403),
        ("GET", "/v1/topics", 200),  # the browser keeps the answer from the page
        ("OPTIONS", "/v1/messages", 405),
    ],
)
async def test_what_only_reads_is_answered_and_all_else_is_refused(tmp_path, method, path, status):
    async with guarded(tmp_path / "data") as service:
        found, content = await service.call(method, path, FOREIGN, data=b"{}" if method == "POST" else None)
        assert found == status
        if status == 403:
            assert content["code"] == "cross_site"
        _, topics = await service.call("GET", "/v1/topics")
        assert [one for one in topics["topics"] if not one["system"]] == []


async def test_by_another_name_a_service_without_tokens_answers_nothing_not_even_its_page(tmp_path):
    async with guarded(tmp_path / "data", serving=Serving()) as service:
        for path in ("/", "/v1/topics", "/healthz", "/nowhere", "/openapi.json"):
            assert (await service.call("GET", path, REBOUND))[0] == 421, path
        assert (await service.call("GET", "/v1/topics"))[0] == 200
        grant(tmp_path / "data", "somebody", Scope.ADMIN)
        service.look()
        assert (await service.call("GET", "/v1/topics", REBOUND))[0] == 401
        assert (await service.call("GET", "/healthz", REBOUND))[0] == 200


async def test_a_service_that_others_may_reach_answers_to_every_name(tmp_path):
    async with guarded(tmp_path / "data", serving=Serving(host="0.0.0.0", open_to_all=True)) as service:
        assert (await service.call("GET", "/v1/topics", REBOUND))[0] == 200


PLACES = {"topic": "orders", "queue": "0", "group": "g", "key": "k", "name": "daily", "file": "app.js"}
SIGN = {"X-Requested-With": "test"}


def state_of(service):
    """What the log holds and what is leased: nothing changes without one of the two.

    The generation of the state is no part of it: the index takes over what was sent whenever its time comes.
    """
    engine = service.engine
    return engine.core.log.tail, engine.core.state.leases, engine.groups.all()


async def test_no_get_changes_anything_without_a_header_that_a_page_cannot_send(tmp_path):
    async with guarded(tmp_path / "data", push_private_targets=True) as service:
        sent = await service.call("POST", "/v1/messages", json={"topic": "orders", "dedup_key": "k"})
        await service.call("PUT", "/v1/topics/orders/groups/g", json={})
        schedule = {"topic": "orders", "every_ms": 3_600_000, "paused": True}
        await service.call("PUT", "/v1/schedules/daily", json=schedule)
        hook = {"topic": "orders", "url": "http://127.0.0.1:9/", "group": "hooks", "paused": True}
        await service.call("POST", "/v1/subscriptions", json={**hook, "id": "hook"})
        task = {"url": "http://127.0.0.1:9/", "delay": "1h", "queue": str(PLACES["queue"])}
        tasked = await service.call("POST", "/v1/tasks", json=task)
        values = {**PLACES, "id": sent[1]["id"]}
        for route in list(service.app.router.routes()):
            template = route.resource.canonical
            if route.method != "GET" or template == "/v1/live":
                continue
            values["id"] = "hook" if "subscriptions" in template else sent[1]["id"]
            if "/tasks/" in template:
                values["id"] = tasked[1]["id"]
            before = state_of(service)
            status, _ = await service.call("GET", template.format(**values))
            assert status == (403 if template.endswith("/stream") else 200), template
            assert state_of(service) == before, template


@pytest.mark.parametrize("ack", ["auto", "manual"])
async def test_an_image_of_a_page_takes_no_messages(tmp_path, ack):
    path = f"/v1/topics/orders/groups/g/stream?ack={ack}&create=true"
    async with guarded(tmp_path / "data") as service:
        await service.call("POST", "/v1/messages", json={"topic": "orders"})
        status, content = await service.call("GET", path)
        assert (status, content["code"]) == (403, "header_required")
        assert (await service.call("GET", "/v1/groups"))[1] == {"groups": []}
        for allowed in (SIGN, {"Sec-Fetch-Site": "same-origin"}):
            assert (await service.call("GET", path, allowed))[0] == 200
        grant(tmp_path / "data", "reader", Scope.RECEIVE)
        service.look()
        assert (await service.call("GET", path))[0] == 401


async def test_a_token_is_sign_enough_for_a_stream(tmp_path):
    reader = grant(tmp_path / "data", "reader", Scope.RECEIVE)
    async with guarded(tmp_path / "data") as service:
        assert (await service.call("GET", "/v1/topics/orders/groups/g/stream?create=true", reader))[0] == 200
