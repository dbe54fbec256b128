"""Apache Arrow over HTTP: sends in streams, and receipts, queue reads and receives as streams."""

import asyncio
import datetime as dt
import json
import struct

import pyarrow as pa
import pytest

from tests.harness.arrow_rows import MEDIA_TYPE, read_stream, stream_of, table_of
from tests.harness.gate import Gate
from tests.harness.guarded import code, grant, guarded
from tests.harness.raw_http import MESSAGE, post, running, until
from timerwheel.api.messages import arrow_sends
from timerwheel.api.messages.arrow_sends import THREADS_MAX
from timerwheel.api.messages.arrow_stream import BATCHES_MAX, COLUMNS, STRUCT_FIELDS_MAX
from timerwheel.tokens import Scope

HOUR_MS = 3_600_000
DICTIONARY = pa.dictionary(pa.int32(), pa.string())
ARROW = {"Accept": MEDIA_TYPE}


def wide_struct(count):
    return pa.array([{}], pa.struct([(f"f{number}", pa.string()) for number in range(count)]))


def twin_struct():
    return pa.StructArray.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["a", "a"])


async def send(service, table, accept="application/json", **options):
    headers = {"Content-Type": MEDIA_TYPE, "Accept": accept}
    data = table if isinstance(table, bytes) else stream_of(table, **options)
    return await service.call("POST", "/v1/messages", data=data, headers=headers)


async def read(service, topic, query="offset=0&max=1000&wait_ms=20000", accept=MEDIA_TYPE):
    path = f"/v1/topics/{topic}/queues/0/messages?{query}"
    return await service.call("GET", path, headers={"Accept": accept})


async def test_a_stream_is_answered_as_an_array_is(service):
    answer = await send(service, table_of([{"topic": "orders", "delay_ms": HOUR_MS}, {"topic": "bills"}]))
    assert answer.status == 201
    assert answer.headers["Content-Type"] == "application/json"
    assert [set(one) for one in answer.content] == [{"id", "topic", "due_ms", "state"}] * 2
    assert [one["topic"] for one in answer.content] == ["orders", "bills"]
    assert [one["state"] for one in answer.content] == ["scheduled", "delivered"]
    view = (await service.call("GET", f"/v1/messages/{answer.content[0]['id']}")).content
    assert view["due_ms"] - view["enqueue_ms"] == HOUR_MS


async def test_a_stream_without_rows_stores_nothing(service):
    answer = await send(service, table_of([]))
    assert (answer.status, answer.content) == (200, [])
    answer = await send(service, table_of([]), MEDIA_TYPE)
    assert (answer.status, answer.content.num_rows) == (200, 0)


@pytest.mark.parametrize("rows_per_batch", [None, 1, 700])
async def test_ten_thousand_rows_are_one_unit_in_any_number_of_batches(service, rows_per_batch):
    rows_per_batch = rows_per_batch and max(rows_per_batch, 10)
    rows = [{"topic": "orders", "body": f"{number}", "delay_ms": HOUR_MS} for number in range(10_000)]
    answer = await send(service, stream_of(table_of(rows), rows_per_batch), MEDIA_TYPE)
    assert answer.status == 201
    assert len(set(answer.content["id"].to_pylist())) == 10_000
    assert await service.pending() == 10_000
    last = answer.content["id"][9_999].as_py()
    assert (await service.call("GET", f"/v1/messages/{last}")).content["body"] == "9999"


async def test_what_was_sent_in_columns_is_there_after_a_restart(service, start_service):
    rows = [{"topic": "orders", "body": f"{number}", "tags": "t"} for number in range(2_500)]
    await send(service, table_of(rows))
    await service.engine.close()
    again = await start_service(data=service.engine.settings.data)
    answer = await read(again, "orders", "offset=2499&max=1")
    assert answer.content["body"].to_pylist() == [b"2499"]
    assert answer.content["tags"].to_pylist() == ["t"]


async def test_each_type_of_a_column_means_the_same(service):
    text = pa.string()
    columns = {
        "topic": [text, pa.large_string(), pa.dictionary(pa.int8(), text), pa.dictionary(pa.uint32(), text)],
        "body": [pa.binary(), pa.large_binary(), pa.large_string(), pa.dictionary(pa.int32(), pa.binary())],
        "tags": [text, pa.dictionary(pa.int16(), pa.large_string()), pa.large_string(), text],
        "delay_ms": [pa.int64(), pa.int32(), pa.uint32(), pa.int16()],
    }
    for at in range(4):
        types = {name: kinds[at] for name, kinds in columns.items()}
        body = "pay" if pa.types.is_large_string(types["body"]) else b"pay"
        rows = [
            {"topic": f"t{at}", "body": body, "tags": "x", "delay_ms": 0},
            {"topic": f"t{at}"},
            {"topic": f"t{at}", "body": body},
        ]
        assert (await send(service, table_of(rows, **types))).status == 201
        found = (await read(service, f"t{at}")).content
        assert found["body"].to_pylist() == [b"pay", b"", b"pay"]
        assert found["tags"].to_pylist() == ["x", None, None]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
async def test_times_with_a_zone_and_lengths_of_time_are_due_times(service, unit):
    at = dt.datetime(2030, 3, 17, 18, 46, 40, tzinfo=dt.UTC)
    table = pa.table(
        {
            "topic": ["orders"] * 3,
            "deliver_at": pa.array([at, None, None], pa.timestamp(unit, tz="Europe/Berlin")),
            "delay": pa.array([None, dt.timedelta(hours=1), None], pa.duration(unit)),
        }
    )
    due_at, due_in, now = (await send(service, table)).content
    assert due_at["due_ms"] == int(at.timestamp()) * 1000
    assert due_in["state"] == "scheduled"
    view = (await service.call("GET", f"/v1/messages/{due_in['id']}")).content
    assert view["due_ms"] - view["enqueue_ms"] == HOUR_MS
    assert now["state"] == "delivered"


async def test_a_time_finer_than_a_millisecond_is_rounded_up_so_that_nothing_is_early(service):
    table = pa.table(
        {"topic": ["t"], "deliver_at": pa.array([1_900_000_000_000_000_001], pa.timestamp("ns", tz="UTC"))}
    )
    assert (await send(service, table)).content[0]["due_ms"] == 1_900_000_000_001


@pytest.mark.parametrize(
    "properties",
    [
        pa.array([[("a", "1"), ("b", "2")], None, []], pa.map_(pa.string(), pa.string())),
        pa.array(
            [{"a": "1", "b": "2"}, {"a": None, "b": None}, None],
            pa.struct({"a": pa.string(), "b": pa.string()}),
        ),
    ],
    ids=["map", "struct"],
)
async def test_properties_are_a_map_or_a_struct(service, properties):
    await send(service, pa.table({"topic": ["t"] * 3, "properties": properties}))
    found = (await read(service, "t")).content
    assert [dict(one) for one in found["properties"].to_pylist()] == [{"a": "1", "b": "2"}, {}, {}]


async def test_keys_are_a_text_or_a_list(service):
    keys = pa.array([["k", "l"], [], None], pa.list_(pa.string()))
    assert (await send(service, pa.table({"topic": ["t"] * 3, "keys": keys}))).status == 201
    assert (await read(service, "t")).content["keys"].to_pylist() == [["k", "l"], [], []]
    bad = pa.array([["k"], ["k l"], [None], [""]], pa.list_(pa.string()))
    answer = await send(service, pa.table({"topic": ["t"] * 4, "keys": bad}))
    assert [(one["index"], one["code"]) for one in answer.content["errors"]] == [
        (at, "invalid_field") for at in (1, 2, 3)
    ]
    assert all("keys" in one["detail"] for one in answer.content["errors"])


async def test_an_error_names_the_row_and_the_column(service):
    rows = [
        {"topic": "orders", "delay": "90s"},
        {"topic": "no good"},
        {"topic": "orders", "delay": "soon"},
        {"topic": "orders", "delay_ms": 2**62},
        {"topic": "orders", "properties": {"REAL_TOPIC": "x"}},
        {},
        {"topic": "orders", "delay_ms": 5, "delay": "90s"},
    ]
    answer = await send(service, table_of(rows))
    assert (answer.status, answer.code) == (400, "refused")
    assert [(one["index"], one["code"]) for one in answer.content["errors"]] == [
        (1, "illegal_topic"),
        (2, "illegal_delay"),
        (3, "delay_too_long"),
        (4, "reserved_property"),
        (5, "invalid_field"),
        (6, "conflicting_delay"),
    ]
    told = [one["detail"] for one in answer.content["errors"]]
    for column, detail in zip(("topic", "delay", "delay_ms", "properties", "topic"), told, strict=False):
        assert detail.startswith(f"column {column}: ")
    assert "delay_ms and delay" in told[5]
    assert await service.topics() == []


async def test_a_key_stores_a_row_once(service):
    table = table_of([{"topic": "t", "dedup_key": "k", "body": "a"}, {"topic": "t", "body": "b"}])
    first = await send(service, table, MEDIA_TYPE)
    again = await send(service, table, MEDIA_TYPE)
    assert first.content["duplicate"].to_pylist() == [False, False]
    assert again.content["duplicate"].to_pylist() == [True, False]
    assert again.content["id"][0] == first.content["id"][0]
    other = await send(service, table_of([{"topic": "t", "dedup_key": "k", "body": "c"}]))
    assert (other.status, other.content["errors"][0]["code"]) == (422, "key_reused")
    assert other.content["errors"][0]["detail"].startswith("column dedup_key: ")


async def test_receipts_in_arrow_say_what_receipts_in_json_say(service):
    table = table_of([{"topic": "a", "deliver_at_ms": 1_900_000_000_123}, {"topic": "b"}])
    answer = await send(service, table, MEDIA_TYPE)
    assert (answer.status, answer.headers["Content-Type"]) == (201, MEDIA_TYPE)
    found = answer.content
    assert found.column_names == ["id", "topic", "due_ms", "state", "duplicate"]
    assert found.schema.field("due_ms").type == pa.timestamp("ms", tz="UTC")
    assert found["due_ms"].cast(pa.int64())[0].as_py() == 1_900_000_000_123
    for message_id, topic, state in zip(
        *(found[name].to_pylist() for name in ("id", "topic", "state")), strict=True
    ):
        view = (await service.call("GET", f"/v1/messages/{message_id}")).content
        assert (view["topic"], view["state"]) == (topic, state)


@pytest.mark.parametrize("content", [{"topic": "t"}, [{"topic": "t"}, {"topic": "t"}]])
async def test_a_send_in_json_may_be_answered_in_arrow(service, content):
    answer = await service.call("POST", "/v1/messages", json=content, headers=ARROW)
    assert answer.status == 201
    assert answer.content.num_rows == len(content if isinstance(content, list) else [content])


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (pa.table({"body": ["x"]}), "column topic is missing"),
        (pa.table({"topic": [1]}), "column topic: type int64; send string"),
        (pa.table({"topic": pa.nulls(1)}), "column topic: type null"),
        (pa.table({"topic": ["t"], "delay_ms": [1.5]}), "column delay_ms: type double; send int64"),
        (pa.table({"topic": ["t"], "delay_ms": pa.array([1], pa.uint64())}), "column delay_ms: type uint64"),
        (
            pa.table({"topic": ["t"], "deliver_at": pa.array([1], pa.timestamp("ms"))}),
            "timestamp with a zone",
        ),
        (pa.table({"topic": ["t"], "body": pa.array([["x"]])}), "column body: type list"),
        (
            pa.table({"topic": ["t"], "body": pa.array(["x"], pa.string_view())}),
            "column body: type string_view",
        ),
        (pa.table({"topic": ["t"], "properties": ['{"a": "1"}']}), "send map<string, string>"),
        (pa.table({"topic": ["t"], "properties": [{"a": {"b": "c"}}]}), "column properties: type struct"),
        (pa.table({"topic": ["t"], "properties": wide_struct(STRUCT_FIELDS_MAX + 1)}), "distinct names"),
        (pa.table({"topic": ["t"], "properties": twin_struct()}), "distinct names"),
        (pa.table({"topic": ["t"], "delays": [1]}), "unknown column 'delays'"),
        (pa.table({"topic": ["t"], "body_base64": ["eA=="]}), "the column body may be binary"),
        (pa.table({"topic": ["t"], "__index_level_0__": [1]}), "preserve_index=False"),
        (pa.table([["t"], ["t"]], names=["topic", "topic"]), "column topic is there twice"),
    ],
)
async def test_a_wrong_column_is_refused_and_says_what_to_send(service, table, told):
    answer = await send(service, table)
    assert (answer.status, answer.code) == (400, "invalid_field")
    assert told in answer.content["detail"]
    assert await service.topics() == []


async def test_a_struct_of_as_many_fields_as_there_may_be_is_taken(service):
    table = pa.table({"topic": ["t"], "properties": wide_struct(STRUCT_FIELDS_MAX)})
    assert (await send(service, table)).status == 201


async def test_a_column_of_nulls_is_no_column(service):
    table = pa.table({name: ["t"] if name == "topic" else pa.nulls(1) for name in COLUMNS})
    assert (await send(service, table)).status == 201


# ---------------------------------------------------------------------- limits and hostile streams


async def test_the_limits_are_those_of_an_array(start_service):
    service = await start_service(messages_per_request_max=3, body_bytes_max=5, request_bytes_max=4096)
    assert (await send(service, table_of([{"topic": "t"}] * 3))).status == 201
    many = await send(service, table_of([{"topic": "t"}] * 4))
    assert (many.status, many.code) == (413, "too_many_messages")
    large = await send(service, table_of([{"topic": "t", "body": "x" * 5}, {"topic": "t", "body": "x" * 6}]))
    assert (large.status, large.content["errors"][0]["index"]) == (413, 1)
    whole = await send(service, table_of([{"topic": "t", "body": "x" * 5000}]))
    assert (whole.status, whole.code) == (413, "request_too_large")


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
async def test_compressed_buffers_are_unpacked_up_to_the_size_of_a_request(start_service, compression):
    service = await start_service(request_bytes_max=1 << 20, body_bytes_max=1 << 20)
    small = table_of([{"topic": "t", "body": "x" * 10_000}] * 3)
    assert (await send(service, small, compression=compression)).status == 201
    bomb = stream_of(table_of([{"topic": "t", "body": "x" * (1 << 19)}] * 3), compression=compression)
    assert len(bomb) < 1 << 16
    answer = await send(service, bomb)
    assert (answer.status, answer.code) == (413, "request_too_large")
    assert "request_size_max" in answer.content["detail"]


async def test_a_dictionary_counts_as_often_as_it_is_used(start_service):
    service = await start_service(request_bytes_max=1 << 20)
    for column in ("body", "tags"):
        value = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * 1000]))
        answer = await send(service, pa.table({"topic": ["t"] * 2000, column: value}))
        assert (answer.status, answer.code) == (413, "request_too_large")


async def test_bytes_that_a_stream_stands_for_are_bytes_in_progress(start_service):
    service = await start_service(request_bytes_max=1 << 20, in_progress_bytes_max=1 << 21)
    value = pa.DictionaryArray.from_arrays(pa.array([0] * 900, pa.int32()), pa.array(["x" * 1000]))
    table = pa.table({"topic": ["t"] * 900, "body": value})
    answers = await asyncio.gather(*[send(service, table) for _ in range(12)])
    assert {answer.status for answer in answers} <= {201, 503}
    assert any(answer.status == 201 for answer in answers)
    assert (await send(service, table)).status == 201  # all were given back


async def test_rows_with_very_many_properties_are_refused_in_steps(start_service):
    service = await start_service(properties_max=10)
    properties = pa.MapArray.from_arrays(
        [at * 3_000 for at in range(21)],
        pa.array([str(at % 3_000) for at in range(60_000)]),
        pa.array([""] * 60_000),
    )
    answer = await send(service, pa.table({"topic": ["t"] * 20, "properties": properties}))
    assert [(one["index"], one["code"]) for one in answer.content["errors"]] == [
        (at, "too_many_properties") for at in range(20)
    ]
    one_row = pa.MapArray.from_arrays([0, 200_000], pa.array([""] * 200_000), pa.array([""] * 200_000))
    answer = await send(service, pa.table({"topic": ["t"], "properties": one_row}))
    assert (answer.status, answer.code) == (413, "too_many_values")
    assert answer.content["detail"].startswith("column properties: row 0 has 200000 values")


async def test_a_stream_of_very_many_batches_is_refused(service):
    table = table_of([{"topic": "t"}])
    batch = table.to_batches()[0].slice(0, 0)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for _ in range(BATCHES_MAX + 1):
            writer.write_batch(batch)
    answer = await send(service, sink.getvalue().to_pybytes())
    assert (answer.status, answer.code) == (400, "malformed_arrow")
    assert f"more than {BATCHES_MAX} record batches" in answer.content["detail"]


async def test_every_truncation_is_refused_and_stores_nothing(service):
    whole = stream_of(
        table_of([{"topic": "t", "body": "x" * 50, "properties": {"a": "b"}}] * 5, topic=DICTIONARY)
    )
    ends = len(whole) - 8  # without its end mark a stream is whole
    for size in range(0, ends, 37):
        answer = await send(service, whole[:size])
        assert (answer.status, answer.code) == (400, "malformed_arrow"), size
    assert await service.topics() == []
    assert (await send(service, whole + b"x")).code == "malformed_arrow"
    assert (await send(service, whole)).status == 201


def numbers(*values):
    return struct.pack(f"<{len(values)}i", *values)


OFFSETS, INDICES = numbers(0, 7, 12), numbers(0, 1, 1, 0, 1, 0, 0, 1)
TEXTS = table_of([{"topic": "abcdefg"}, {"topic": "hijkl"}])
CHOSEN = table_of([{"topic": "ab"[at]} for at in (0, 1, 1, 0, 1, 0, 0, 1)], topic=DICTIONARY)


@pytest.mark.parametrize(
    ("table", "old", "new"),
    [
        (TEXTS, OFFSETS, numbers(-5, 7, 12)),
        (TEXTS, OFFSETS, numbers(0, 14, 12)),
        (TEXTS, OFFSETS, numbers(0, 7, 1 << 30)),
        (TEXTS, OFFSETS, numbers(0, 7, -1)),
        (TEXTS, b"abcdefg", b"abc\xff\xfefg"),
        (CHOSEN, INDICES, numbers(0, 1, 2, 0, 1, 0, 0, 1)),
        (CHOSEN, INDICES, numbers(0, 1, -1, 0, 1, 0, 0, 1)),
    ],
)
async def test_buffers_that_do_not_agree_are_refused(service, table, old, new):
    stream = stream_of(table)
    assert stream.count(old) == 1
    answer = await send(service, stream.replace(old, new))
    assert (answer.status, answer.code) == (400, "malformed_arrow")
    assert (await send(service, stream)).status == 201


async def test_a_stream_in_content_encoding_is_refused(service):
    headers = {"Content-Type": MEDIA_TYPE, "Content-Encoding": "gzip"}
    answer = await service.call("POST", "/v1/messages", data=b"x", headers=headers)
    assert (answer.status, answer.code) == (415, "unsupported_encoding")


async def test_an_idempotency_key_is_for_one_message(service):
    headers = {"Content-Type": MEDIA_TYPE, "Idempotency-Key": "k"}
    answer = await service.call(
        "POST", "/v1/messages", data=stream_of(table_of([{"topic": "t"}])), headers=headers
    )
    assert (answer.status, answer.code) == (400, "invalid_field")


async def test_the_trace_context_of_a_request_travels_with_every_row(service):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"Content-Type": MEDIA_TYPE, "traceparent": parent}
    data = stream_of(table_of([{"topic": "t"}, {"topic": "t", "tags": "x"}]))
    await service.call("POST", "/v1/messages", data=data, headers=headers)
    found = (await read(service, "t")).content
    assert [dict(one)["traceparent"] for one in found["properties"].to_pylist()] == [parent, parent]


# ---------------------------------------------------------------------- receiving


async def test_a_queue_read_in_arrow_says_what_it_says_in_json(service):
    await service.send(
        [
            {"topic": "t", "body": "grün", "tags": "a", "keys": ["k", "l"], "properties": {"p": "1"}},
            {"topic": "t", "body_base64": "AP8=", "dedup_key": "d", "delay_level": 0},
            {"topic": "t", "delay_ms": 20},
        ]
    )
    await read(service, "t", "offset=2&wait_ms=20000")
    messages = (await service.read("t")).content
    answer = await read(service, "t")
    table = answer.content
    assert answer.headers["Content-Type"] == MEDIA_TYPE
    told = {name.decode(): int(value) for name, value in table.schema.metadata.items()}
    assert told == {name: messages[name] for name in ("next_offset", "min_offset", "max_offset")}
    for row, message in zip(table.to_pylist(), messages["messages"], strict=True):
        assert set(message) <= {*row, "body_base64"}
        for name in ("id", "topic", "queue", "offset", "state", "lateness_ms"):
            assert row[name] == message[name]
        assert dict(row["properties"]) == message["properties"]
        assert (row["tags"], row["keys"]) == (message.get("tags"), message.get("keys", []))
        assert row["dedup_key"] == message.get("dedup_key")
        assert row["level"] == message.get("level", 0)
    for name in ("due_ms", "enqueue_ms", "delivered_ms"):
        assert table[name].cast(pa.int64()).to_pylist() == [one[name] for one in messages["messages"]]
    assert table["body"].to_pylist() == ["grün".encode(), b"\x00\xff", b""]


async def test_a_long_poll_in_arrow_waits_and_an_empty_one_has_the_columns(service):
    await service.send({"topic": "t"})
    waiting = asyncio.create_task(read(service, "t", "offset=1&wait_ms=20000"))
    await service.send({"topic": "t", "body": "late", "delay_ms": 30})
    assert (await waiting).content["body"].to_pylist() == [b"late"]
    empty = (await read(service, "t", "offset=2")).content
    assert empty.num_rows == 0
    assert "body" in empty.column_names
    assert empty.schema.metadata[b"next_offset"] == b"2"


async def receive(service, content, accept=MEDIA_TYPE):
    path = "/v1/topics/t/groups/g/receive"
    return await service.call("POST", path, json=content, headers={"Accept": accept})


async def test_a_receive_in_arrow_leases_as_one_in_json(service):
    await service.send([{"topic": "t", "body": f"{number}"} for number in range(3)])
    answer = await receive(service, {"max": 2, "create": True, "wait_ms": 20_000})
    table = answer.content
    assert answer.headers["Content-Type"] == MEDIA_TYPE
    assert table["body"].to_pylist() == [b"0", b"1"]
    assert table["attempt"].to_pylist() == [1, 1]
    assert table.schema.field("invisible_until_ms").type == pa.timestamp("ms", tz="UTC")
    receipts = table["receipt"].to_pylist()
    answer = await receive(service, {"max": 2, "ack": [receipts[0], "nonsense"]})
    assert answer.content["body"].to_pylist() == [b"2"]
    results = json.loads(answer.content.schema.metadata[b"results"])
    assert [(one["receipt"], one["ok"]) for one in results] == [(receipts[0], True), ("nonsense", False)]
    nothing = await receive(service, {"max": 2})
    assert nothing.content.num_rows == 0


@pytest.mark.parametrize("size_bytes", [100_000, 400_000])  # made at once, and in a thread
async def test_large_answers_come_in_pieces_and_in_gzip(service, size_bytes):
    body = "x" * size_bytes
    for _ in range(5):
        await service.send({"topic": "t", "body": body})
    answer = await read(service, "t")
    assert answer.content["body"].to_pylist() == [body.encode()] * 5
    headers = {"Accept": MEDIA_TYPE, "Accept-Encoding": "gzip"}
    path = "/v1/topics/t/queues/0/messages?offset=0&max=100"
    answer = await service.call("GET", path, headers=headers)
    assert answer.headers["Content-Encoding"] == "gzip"
    assert answer.content.num_rows == 5


async def test_a_page_that_finds_no_room_is_refused_before_it_is_made(start_service):
    service = await start_service(in_progress_bytes_max=1 << 20)
    await service.send([{"topic": "t", "body": "x" * 100_000} for _ in range(8)])
    answer = await read(service, "t")
    assert (answer.status, answer.code) == (503, "overloaded")
    assert (await read(service, "t", "offset=0&max=2")).status == 200


@pytest.mark.parametrize(
    ("accept", "is_arrow"),
    [
        (MEDIA_TYPE, True),
        (f"{MEDIA_TYPE}, application/json", True),
        (f"application/json;q=0.5, {MEDIA_TYPE.upper()};q=0.9", True),
        (f"application/json, {MEDIA_TYPE};q=0.5", False),
        (f"{MEDIA_TYPE};q=0", False),
        (f"{MEDIA_TYPE};q=x", False),
        ("*/*", False),
        ("application/*", False),
        ("", False),
    ],
)
async def test_arrow_is_for_those_who_ask_for_it(service, accept, is_arrow):
    await service.send({"topic": "t"})
    answer = await read(service, "t", accept=accept)
    assert answer.headers["Content-Type"] == (MEDIA_TYPE if is_arrow else "application/json")


async def test_the_fast_path_leaves_whoever_asks_for_arrow_to_the_ordinary_path(tmp_path):
    async with running(tmp_path / "data") as fast:
        before = fast.path.taken
        accept = b"Accept: " + MEDIA_TYPE.encode()
        for request in (
            post(MESSAGE, accept),
            post(b"[" + MESSAGE + b"]", accept),
            post(b'{"create":true}', accept, path=b"/v1/topics/orders/groups/g/receive"),
        ):
            answer = await fast.ask(request)
            assert answer.headers["content-type"] == MEDIA_TYPE
        assert fast.path.taken == before


# ---------------------------------------------------------------------- who may


async def test_a_token_sends_rows_of_its_own_topics_only(tmp_path):
    owner = grant(tmp_path, "owner", Scope.SEND, topics=("orders*",))
    async with guarded(tmp_path) as service:

        async def does(*topics, **fields):
            data = stream_of(table_of([{"topic": topic, **fields} for topic in topics]))
            headers = {**owner, "Content-Type": MEDIA_TYPE}
            return code(await service.call("POST", "/v1/messages", headers, data=data))

        assert await does("orders-eu", "orders-us") == 201
        assert await does("orders-eu", "bills") == "forbidden"
        assert await does("orders-eu", "bills", dedup_key="k") == "forbidden"
        assert await does("orders-eu", "no good") == "forbidden"
        names = [one for one in service.engine.queues.topic_names() if one.startswith(("orders", "bills"))]
        assert names == ["orders-eu", "orders-us"]


async def test_a_stream_counts_as_many_messages_as_it_has_rows(tmp_path):
    slow = grant(tmp_path, "slow", Scope.SEND, rate_per_s=10)
    async with guarded(tmp_path) as service:
        headers = {**slow, "Content-Type": MEDIA_TYPE}
        data = stream_of(table_of([{"topic": "t"}] * 500))
        assert code(await service.call("POST", "/v1/messages", headers, data=data)) == 201
        assert code(await service.call("POST", "/v1/messages", headers, data=data)) == "rate_limited"


def test_a_stream_read_back_is_the_stream_written():
    table = table_of([{"topic": "t", "properties": {"a": "b"}}])
    assert read_stream(stream_of(table)) == table


async def test_a_stream_whose_client_goes_away_is_charged_until_its_thread_is_done(tmp_path, monkeypatch):
    gate = Gate(arrow_sends.unpacked_bytes)
    monkeypatch.setattr(arrow_sends, "unpacked_bytes", gate)
    content = stream_of(table_of([{"topic": "orders", "body": "x" * 100_000}]))
    request = post(content, kind=MEDIA_TYPE.encode())
    async with running(tmp_path) as service:
        budget, traffic = service.path.middleware.budgets.requests, service.path.middleware.traffic
        gone = [await service.client() for _ in range(THREADS_MAX)]
        for client in gone:
            client.write(request)
        await until(lambda: gate.entered == THREADS_MAX)
        for client in gone:
            client.writer.transport.abort()
        await until(lambda: traffic.in_progress == 0)
        assert budget.used_bytes >= THREADS_MAX * len(content)
        waiting = await service.client()
        waiting.write(request)
        await until(lambda: budget.used_bytes >= (THREADS_MAX + 1) * len(content))
        for _ in range(100):
            await asyncio.sleep(0)
        assert gate.entered == THREADS_MAX
        gate.open()
        assert (await waiting.answer()).status == b"HTTP/1.1 201 Created"
        await until(lambda: budget.used_bytes == 0)
