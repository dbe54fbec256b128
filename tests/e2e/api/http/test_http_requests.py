"""Each request has an id, which its answer carries and what is logged of it."""

import logging

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from tests.harness.apps import app_of
from tests.harness.served import Served
from timerwheel.api.http.responses import REQUEST_ID_HEADER as HEADER
from timerwheel.api.middleware import REQUEST_ID_BYTES_MAX
from timerwheel.engine import Engine
from timerwheel.settings import Settings
from timerwheel.telemetry.logs import note_request

ANY_ANSWER = [
    ("GET", "/healthz", 200),
    ("GET", "/v0", 404),
    ("PUT", "/v1/wheel", 405),
    ("GET", "/v1/wheel?a=b", 400),
]


@pytest.mark.parametrize(("method", "path", "status"), ANY_ANSWER)
async def test_the_answer_carries_the_id_that_the_client_gave(service, method, path, status):
    answer = await service.call(method, path, headers={HEADER: "order-17/a"})
    assert (answer.status, answer.headers.getall(HEADER)) == (status, ["order-17/a"])


async def test_so_does_the_refusal_of_what_a_client_expects(service):
    answer = await service.call("POST", "/v1/messages", headers={HEADER: "r-1", "Expect": "tea"})
    assert (answer.status, answer.headers[HEADER]) == (417, "r-1")


@pytest.mark.parametrize("given", [None, "", "x" * (REQUEST_ID_BYTES_MAX + 1), "two words", "ümlaut"])
async def test_without_a_usable_one_an_id_is_made_that_no_other_request_has(service, given):
    headers = {} if given is None else {HEADER: given}
    made = [(await service.call("GET", "/healthz", headers=headers)).headers[HEADER] for _ in range(3)]
    assert len(set(made)) == len(made)
    assert given not in made


async def test_a_line_tells_of_each_request_under_its_id_by_its_route_and_without_its_body(service, caplog):
    caplog.handler.addFilter(note_request)
    caplog.set_level(logging.DEBUG, "timerwheel.api.requests")
    body = {"topic": "orders", "body": "secret words", "properties": {"KEYS": "secret key"}}
    sent = await service.call("POST", "/v1/messages", json=body, headers={HEADER: "r-1"})
    await service.call("GET", f"/v1/messages/{sent.content['id']}", headers={HEADER: "r-2"})
    lines = [record for record in caplog.records if record.name == "timerwheel.api.requests"]
    assert [(line.request, line.method, line.route, line.status) for line in lines] == [
        ("r-1", "POST", "/v1/messages", 201),
        ("r-2", "GET", "/v1/messages/{id}", 200),
    ]
    assert "secret" not in "".join(str(vars(line)) for line in lines)


async def test_what_goes_wrong_is_logged_under_the_id_of_its_request(tmp_path, caplog):
    caplog.handler.addFilter(note_request)

    async def broken(_: web.Request) -> web.Response:
        raise RuntimeError("a bug")

    engine = await Engine.open(Settings(data=tmp_path, disk_reserve_bytes=0))
    app = app_of(engine)
    app.router.add_get("/broken", broken)
    async with TestClient(Served(app)) as client:
        answer = await client.get("/broken", headers={HEADER: "r-3"})
        assert (answer.status, answer.headers[HEADER]) == (500, "r-3")
        assert (await answer.json())["code"] == "internal"
    await engine.close()
    [error] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert error.request == "r-3"
    assert "a bug" in str(error.exc_info[1])
