"""Errors: one shape, stable codes, nothing of the inside."""

import re
from pathlib import Path

import pytest
from aiohttp import web

from tests.harness.apps import app_of
from tests.harness.served import Served
from timerwheel.api.http.problems import PROBLEMS

DOC = Path(__file__).parents[4] / "doc" / "http-api.md"


@pytest.mark.parametrize(
    "path", ["/v0", "/v1", "/v1/messages/", "/v1/messages/a/b", "//v1/messages", "/%ff", "/%C3%A9", "/%00"]
)
async def test_an_unknown_route_is_a_problem(service, path):
    answer = await service.call("GET", path)
    assert (answer.status, answer.code) == (404, "unknown_route")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/messages", {"GET", "HEAD", "POST"}),
        ("POST", "/v1/messages/x", {"GET", "HEAD", "DELETE", "PATCH"}),
        ("PUT", "/v1/topics/a", {"GET", "HEAD", "PATCH", "DELETE"}),
        ("OPTIONS", "/v1/wheel", {"GET", "HEAD"}),
        ("GET", "/v1/topics/a/messages", {"POST"}),
        ("GET", "/v1/messages/recall", {"POST"}),
        ("GET", "/v1/messages/reschedule", {"POST"}),
        ("PUT", "/v1/topics/a/groups/g/stream", {"GET", "HEAD"}),
        ("GET", "/v1/topics/a/groups/g/ack", {"POST"}),
        ("POST", "/v1/topics/a/groups/g", {"GET", "HEAD", "PUT", "DELETE"}),
        ("POST", "/v1/schedules", {"GET", "HEAD"}),
        ("PUT", "/v1/subscriptions/s", {"GET", "HEAD", "PATCH", "DELETE"}),
    ],
)
async def test_a_wrong_method_is_a_problem_that_names_the_right_ones(service, method, path, allowed):
    answer = await service.call(method, path)
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert set(answer.headers["Allow"].split(", ")) == allowed


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/messages"),
        ("GET", "/v1/messages/x"),
        ("DELETE", "/v1/messages/x"),
        ("PATCH", "/v1/messages/x"),
        ("GET", "/v1/topics"),
        ("GET", "/v1/topics/a"),
        ("GET", "/v1/wheel"),
        ("GET", "/v1/levels"),
        ("GET", "/v1/cluster"),
        ("POST", "/v1/cluster/move"),
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/openapi.json"),
        ("POST", "/v1/messages/recall"),
        ("GET", "/v1/topics/a/keys/k"),
        ("PATCH", "/v1/topics/a"),
        ("POST", "/v1/topics/a/groups/g/receive"),
        ("POST", "/v1/topics/a/groups/g/ack"),
        ("POST", "/v1/topics/a/groups/g/rewind"),
        ("GET", "/v1/topics/a/groups/g/stream"),
        ("GET", "/v1/topics/a/groups"),
        ("PUT", "/v1/topics/a/groups/g"),
        ("GET", "/v1/groups"),
        ("GET", "/v1/groups/g/dead-letters"),
        ("POST", "/v1/groups/g/dead-letters/drop"),
        ("GET", "/v1/schedules"),
        ("PUT", "/v1/schedules/s"),
        ("POST", "/v1/schedules/s/pause"),
        ("GET", "/v1/schedules/s/runs"),
        ("POST", "/v1/subscriptions"),
        ("DELETE", "/v1/subscriptions/s"),
        ("POST", "/v1/subscriptions/s/test"),
    ],
)
async def test_no_call_takes_parameters_it_does_not_know(service, method, path):
    body = b'{"topic":"a","delay_ms":1}' if method == "POST" else None
    headers = {"X-Requested-With": "test", "Content-Type": "application/json"}
    answer = await service.call(method, f"{path}?surprise=1", data=body, headers=headers)
    assert (answer.status, answer.code) == (400, "invalid_parameter")
    assert "surprise" in answer.content["detail"]


async def test_an_unknown_expectation_is_a_problem(service):
    answer = await service.call("POST", "/v1/messages", data=b"{}", headers={"Expect": "tea"})
    assert (answer.status, answer.code) == (417, "expectation_failed")


async def test_a_mistake_of_the_service_is_logged_and_not_shown(service, caplog):
    app = app_of(service.engine)

    async def divide(request):
        return web.Response(text=str(1 / len(request.query)))

    app.router.add_get("/mistake", divide)
    server = Served(app)
    await server.start_server()
    service.url = server.make_url("/")
    answer = await service.call("GET", "/mistake")
    assert (answer.status, answer.code) == (500, "internal")
    assert "division" not in str(answer.content)
    assert "ZeroDivisionError" in caplog.text
    await server.close()


def test_the_document_lists_every_code_with_its_status():
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \|", DOC.read_text(), re.MULTILINE)
    assert {code: int(status) for code, status in rows} == {
        code: status for code, (status, _) in PROBLEMS.items()
    }
    assert len(rows) == len(PROBLEMS)
