"""The benchmark's sends in Arrow are the sends in JSON, in another form."""

import pyarrow as pa

from bench.wires.timerwheel import Sender
from tests.harness.arrow_rows import MEDIA_TYPE, read_stream

SPEC = {"wire": "timerwheel", "host": "127.0.0.1", "port": 1, "topic": "orders"}


def test_a_request_in_arrow_holds_the_messages_and_asks_for_arrow():
    sender = Sender({**SPEC, "arrow": True})
    head, _, stream = sender.request([b"a", b"\xff"], [5, 6], 0).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/messages HTTP/1.1"
    assert f"Content-Type: {MEDIA_TYPE}" in lines
    assert f"Accept: {MEDIA_TYPE}" in lines
    assert f"Content-Length: {len(stream)}" in lines
    table = read_stream(stream)
    assert table["topic"].to_pylist() == ["orders", "orders"]
    assert table["body"].to_pylist() == [b"a", b"\xff"]
    assert table["deliver_at_ms"].to_pylist() == [5, 6]
    assert table.schema.field("deliver_at_ms").type == pa.int64()


def test_an_answer_in_arrow_completes_its_request():
    sender = Sender({**SPEC, "arrow": True})
    answer = b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\n\x00\x01\x02\x03"
    assert sender.feed(answer[:-1]) == 0
    assert sender.feed(answer[-1:]) == 1
