"""What a task of `schedule` does with each answer of a service, or of something in its place."""

import contextlib
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
import pytest

from tests.harness.certificates import Authority
from tests.harness.clock import LeapingClock, ManualClock
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.schedule import sending
from timerwheel.spark_jobs.schedule.reach import problem_with_service
from timerwheel.spark_jobs.schedule.rows import RowMapping
from timerwheel.spark_jobs.schedule.sending import Sent, Target, send_rows
from timerwheel.wire.arrow import MEDIA_TYPE

MAPPING = RowMapping("due", "orders", key="key")
DUE_MS = 1_900_000_000_000


class Answer(NamedTuple):
    status: int
    content: object = None
    headers: Mapping[str, str] = MappingProxyType({})


def problem(status: int, code: str, *, retry_after: str | None = None, rows: tuple[int, ...] = ()) -> Answer:
    errors = [{"index": at, "code": code, "detail": f"row {at}"} for at in rows]
    content = {
        "type": "about:blank",
        "title": code,
        "status": status,
        "code": code,
        "detail": f"it is {code}",
    }
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Answer(status, content | ({"errors": errors} if errors else {}), headers)


STORED = Answer(200)


class Served(NamedTuple):
    url: str
    requests: list[tuple[int, int]]
    """When each request came by the clock of the task, and how many rows it had."""


@contextlib.contextmanager
def answering(
    *answers: Answer, clock: ManualClock, context: ssl.SSLContext | None = None
) -> Iterator[Served]:
    """A server that gives these answers, and then the last one again and again."""
    left = list(answers)
    requests: list[tuple[int, int]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            rows = pa.ipc.open_stream(body).read_all().num_rows
            requests.append((clock.mono_ms, rows))
            answer = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(answer.status)
            if answer.status == 200:
                content, kind = _receipts(rows), MEDIA_TYPE
            else:
                content, kind = json.dumps(answer.content).encode(), "application/problem+json"
            for name, value in {
                "Content-Type": kind,
                "Content-Length": len(content),
                **answer.headers,
            }.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        scheme = "http" if context is None else "https"
        yield Served(f"{scheme}://127.0.0.1:{server.server_port}", requests)
    finally:
        server.shutdown()
        server.server_close()


def _receipts(rows: int) -> bytes:
    table = pa.table({"duplicate": pa.array([False] * rows)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def table(count: int) -> pa.Table:
    return pa.table({"due": [DUE_MS] * count, "key": [f"k{n}" for n in range(count)], "body": ["b"] * count})


def send(served: Served, clock: ManualClock, count: int = 3, **target) -> Sent:
    return send_rows(table(count).to_batches(), MAPPING, Target(served.url, **target), clock)


@pytest.mark.parametrize("status", [429, 503, 507])
def test_a_request_is_not_repeated_before_the_service_says(status):
    clock = LeapingClock()
    with answering(problem(status, "wait", retry_after="7"), STORED, clock=clock) as served:
        assert send(served, clock).stored == 3
    [first, second] = served.requests
    assert second[0] - first[0] >= 7_000


def test_a_service_that_wants_more_patience_than_there_is_ends_the_task_at_once():
    clock = LeapingClock()
    with (
        answering(problem(503, "not_ready", retry_after="600"), clock=clock) as served,
        pytest.raises(JobError, match="tried for up to 120 s"),
    ):
        send(served, clock)
    assert len(served.requests) == 1


@pytest.mark.parametrize("status", [502, 504])
def test_what_a_proxy_answers_for_a_service_that_is_away_is_waited_for(status):
    clock = LeapingClock()
    with answering(Answer(status, "Bad Gateway"), STORED, clock=clock) as served:
        assert send(served, clock, count=1).stored == 1


def test_a_429_that_names_rows_is_not_waited_for():
    clock = LeapingClock()
    with answering(problem(429, "slot_congested", rows=(0, 2)), STORED, clock=clock) as served:
        sent = send(served, clock)
    assert (sent.stored, [one.key for one in sent.refused]) == (1, ["k0", "k2"])
    assert clock.mono_ms == LeapingClock().mono_ms


def test_a_table_for_one_full_second_ends_the_task(monkeypatch):
    monkeypatch.setattr(sending, "REFUSED_MAX", 10)
    clock = LeapingClock()
    with (
        answering(problem(429, "slot_congested"), clock=clock) as served,
        pytest.raises(JobError, match="refused more than 10 rows of one task"),
    ):
        send(served, clock, count=1_000)
    assert len(served.requests) < 100


def test_a_single_row_whose_second_is_full_is_refused():
    clock = LeapingClock()
    with answering(problem(429, "slot_congested"), clock=clock) as served:
        assert [one.code for one in send(served, clock, count=1).refused] == ["slot_congested"]


@pytest.mark.parametrize("answer", [problem(500, "internal"), Answer(404, "Not Found")])
def test_a_failure_of_the_service_is_not_the_fault_of_a_row(answer):
    clock = LeapingClock()
    with answering(answer, clock=clock) as served, pytest.raises(JobError, match="did not take the rows"):
        send(served, clock, count=1)


def test_a_request_that_is_too_large_for_a_proxy_is_sent_in_parts():
    clock = LeapingClock()
    with answering(Answer(413, "Too Large"), STORED, clock=clock) as served:
        assert send(served, clock, count=4).stored == 4
    assert [rows for _, rows in served.requests] == [4, 2, 2]
    with answering(Answer(413, "Too Large"), clock=clock) as served:
        assert [one.key for one in send(served, clock, count=2).refused] == ["k0", "k1"]


def test_repeated_requests_keep_to_the_rate():
    clock = LeapingClock()
    began_ms = clock.mono_ms
    busy = problem(503, "overloaded")
    with answering(busy, busy, busy, busy, STORED, clock=clock) as served:
        assert send(served, clock, count=300, rate=100).stored == 300
    assert sum(rows for _, rows in served.requests) == 700
    for at, (came_ms, _) in enumerate(served.requests):
        begun = sum(rows for _, rows in served.requests[: at + 1])
        assert begun <= 100 * ((came_ms - began_ms) / 1_000 + 1)


def test_errors_show_no_password_of_the_url():
    clock = LeapingClock()
    away, denied = problem(503, "not_ready", retry_after="600"), problem(403, "forbidden")
    for answer in (away, denied):
        with answering(answer, clock=clock) as served:
            hidden = served._replace(url=served.url.replace("http://", "http://proxy:s3cret@"))
            with pytest.raises(JobError) as raised:
                send(hidden, clock)
        assert "s3cret" not in str(raised.value)
        assert served.url in str(raised.value)


def test_a_certificate_that_is_not_trusted_is_not_waited_for(tmp_path):
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("localhost").both)
    clock = LeapingClock()
    with answering(STORED, clock=clock, context=context) as served:
        with pytest.raises(JobError, match="certificate is not trusted"):
            send(served, clock)
        assert clock.mono_ms == LeapingClock().mono_ms
        assert send(served, clock, ca=str(authority.certificate)).stored == 3


def test_a_busy_service_is_one_that_executors_reach():
    with answering(problem(503, "overloaded"), clock=ManualClock()) as served:
        assert problem_with_service(*Target(served.url)) == ""
    with answering(problem(403, "forbidden"), clock=ManualClock()) as served:
        assert "they cannot send to the service" in problem_with_service(*Target(served.url))
