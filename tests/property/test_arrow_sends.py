"""A send in Arrow against the same send in JSON: the same records, the same receipts, the same errors."""

import asyncio
import base64
import itertools
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.apps import app_of
from tests.harness.arrow_rows import MEDIA_TYPE, read_stream, stream_of, table_of
from tests.harness.clock import ManualClock
from tests.harness.raw_log import raw_log
from tests.harness.scratch import scratch_root
from tests.harness.served import Served
from timerwheel.engine import Engine
from timerwheel.settings import Settings

INT64 = 2**63
DUE = 1_800_000_000_000
LIMITS = {
    "queues_per_topic": 3,
    "body_bytes_max": 40,
    "properties_max": 3,
    "properties_bytes_max": 60,
    "messages_per_request_max": 12,
    "topics_max": 3,
}
NUMBERS = st.sampled_from([0, -5, 1, 60_000, 10**15, INT64 - 1, -INT64, DUE - 1, DUE + 7, DUE + 90_000])
NAMES = ["a", "b", "__SHARDINGKEY", "TIMER_DELAY_MS", "DELAY", "TRAN_MSG", "TAGS", "", "REAL_TOPIC", "ü"]
PROPERTIES = st.dictionaries(
    st.sampled_from(NAMES),
    st.sampled_from(["1", "true", "x" * 30, "grün", "", "900000"]),
    max_size=4,
).map(
    lambda given: {name: given[name] for name in NAMES if name in given}
)  # in the order of a struct's fields
FIELDS: dict[str, Any] = {
    "topic": st.sampled_from(
        ["orders", "orders", "tickets", "c", "d", "e", "no good", "%DLQ%x", "", "TBW102"]
    ),
    "body": st.sampled_from(["", "pay", "grün", "x" * 40, "x" * 41]),
    "properties": PROPERTIES,
    "tags": st.sampled_from(["paid", "", "ü"]),
    "keys": st.sampled_from(["k", "k l", ""]),
    "dedup_key": st.sampled_from(["k1", "k2", "schedule:x", ""]),
    "after_recall": st.sampled_from(["0" * 24]),
    "delay_ms": NUMBERS,
    "delay": st.sampled_from(["90s", "1h30m", "0s", "nonsense", "30000d"]),
    "deliver_at_ms": NUMBERS,
    "deliver_at": st.sampled_from(["2027-03-17T18:46:40.123+01:00", "2020-01-01T00:00:00Z", "soon"]),
    "delay_level": st.sampled_from([0, 1, 3, 99, -1]),
    "ttl_ms": st.sampled_from([1, 60_000]),
    "ttl": st.sampled_from(["10m", "0s", "soon"]),
    "max_attempts": st.sampled_from([1, 1_000]),
}
USUAL = ("topic", "body")
OFTEN = ("topic", "body", "delay_ms", "properties", "tags")


def row_of(names: tuple[str, ...]) -> Any:
    """Rows that have some of the fields."""
    return st.fixed_dictionaries({}, optional={name: FIELDS[name] for name in names})


GOOD: dict[str, Any] = {
    "body": st.sampled_from(["", "pay", "grün", "x" * 40]),
    "properties": st.sampled_from(
        [{}, {"a": "1"}, {"b": "grün", "__SHARDINGKEY": "k"}, {"__SHARDINGKEY": "l"}]
    ),
    "tags": st.sampled_from(["paid", "ü"]),
    "keys": st.sampled_from(["k", "k l"]),
    "ttl_ms": st.sampled_from([1, 60_000]),
    "max_attempts": st.sampled_from([1, 1_000]),
}
WHEN = st.one_of(
    st.just({}),
    st.sampled_from([0, -5, 1, 60_000]).map(lambda ms: {"delay_ms": ms}),
    st.sampled_from([0, DUE, DUE + 7, DUE + 90_000]).map(lambda ms: {"deliver_at_ms": ms}),
    st.sampled_from(["90s", "1h30m"]).map(lambda text: {"delay": text}),
    st.sampled_from([0, 1, 3, 99]).map(lambda level: {"delay_level": level}),
)
GOOD_ROW = st.builds(
    lambda topic, fields, when: {"topic": topic, **fields, **when},
    st.sampled_from(["orders", "tickets"]),
    st.fixed_dictionaries({}, optional=GOOD),
    WHEN,
)
GOOD_ROWS = st.lists(GOOD_ROW, min_size=1, max_size=12)
# Most keys are new, and some come again, with the same message or another one.
KEYED_ROWS = st.lists(
    st.builds(
        lambda row, key: {**row, "dedup_key": key},
        GOOD_ROW,
        st.one_of(
            st.none(),
            st.integers(0, 10**6).map(str),
            st.sampled_from(["k1", "k2", "kü", 'k"\\', "schedule:x"]),
        ),
    ).map(lambda row: {name: value for name, value in row.items() if value is not None}),
    min_size=1,
    max_size=12,
)
ROWS = st.one_of(
    GOOD_ROWS,
    GOOD_ROWS,
    KEYED_ROWS,
    KEYED_ROWS,
    *[
        st.lists(row_of(names), max_size=13)
        for names in (USUAL, OFTEN, (*USUAL, "deliver_at_ms", "delay_ms"), tuple(FIELDS))
    ],
)


def type_choices() -> Any:
    """Types that the columns may have besides the usual ones."""
    text = st.sampled_from([pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
    body = st.sampled_from(
        [pa.string(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.binary())]
    )
    struct = pa.struct([(name, pa.string()) for name in NAMES])
    properties = st.sampled_from([pa.map_(pa.string(), pa.string()), struct])
    return st.fixed_dictionaries(
        {}, optional={"topic": text, "tags": text, "dedup_key": text, "body": body, "properties": properties}
    )


class Pair:
    """Two services at the same moment; one is sent JSON, the other one Arrow."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.loop.run_until_complete(self._open())

    async def _open(self) -> None:
        self.engines: list[Engine] = []
        self.urls = []
        for number in range(2):
            directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory(dir=scratch_root())))
            changes = {"data": directory / str(number), "disk_reserve_bytes": 0, **LIMITS}
            engine = await Engine.open(Settings(**changes), ManualClock(DUE), threads=False)
            self.stack.push_async_callback(engine.close)
            await engine.topics.change("tickets", queues=5)
            server = Served(app_of(engine))
            await server.start_server()
            self.stack.push_async_callback(server.close)
            self.engines.append(engine)
            self.urls.append(server.make_url("/v1/messages"))
        self.session = await self.stack.enter_async_context(aiohttp.ClientSession())

    def post(self, number: int, body: bytes, kind: str, **headers: str) -> tuple[int, bytes]:
        async def call() -> tuple[int, bytes]:
            given = {"Content-Type": kind, **headers}
            async with self.session.post(self.urls[number], data=body, headers=given) as answer:
                return answer.status, await answer.read()

        return self.loop.run_until_complete(call())

    def close(self) -> None:
        self.loop.run_until_complete(self.stack.aclose())
        self.loop.close()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def receipts_of(content: list[dict[str, Any]]) -> list[Any]:
    """Receipts without the part of the id that differs between two logs."""
    return [
        (one["id"][:16], one["topic"], one["due_ms"], one["state"], one.get("duplicate", False))
        for one in content
    ]


def outcome_of(status: int, content: Any) -> Any:
    if isinstance(content, list):
        return status, receipts_of(content)
    faults = [(one["index"], one["code"]) for one in content.get("errors", [])]
    return status, content["code"], faults


def json_row(row: dict[str, Any], *, is_binary: bool) -> dict[str, Any]:
    if is_binary and "body" in row:
        return {name: value for name, value in row.items() if name != "body"} | {
            "body_base64": base64.b64encode(row["body"].encode()).decode()
        }
    return row


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, types=type_choices(), per_batch=st.sampled_from([None, 1, 3]))
def test_a_send_in_arrow_is_the_send_in_json(pair: Pair, rows: Any, types: Any, per_batch: Any) -> None:
    kind = types.get("body", pa.string())
    is_binary = not (pa.types.is_string(kind) or pa.types.is_large_string(kind))
    sent = [json_row(row, is_binary=is_binary) for row in rows]
    status, body = pair.post(0, orjson.dumps(sent), "application/json")
    wanted = outcome_of(status, orjson.loads(body))
    if is_binary:
        rows = [row | {"body": row["body"].encode()} if "body" in row else row for row in rows]
    status, body = pair.post(1, stream_of(table_of(rows, **types), per_batch), MEDIA_TYPE)
    assert outcome_of(status, orjson.loads(body)) == wanted
    assert raw_log(pair.engines[1]) == raw_log(pair.engines[0])


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(row_of(("body", "delay_ms", "dedup_key", "tags")), min_size=1, max_size=12))
def test_receipts_in_arrow_are_the_receipts_in_json(pair: Pair, rows: Any) -> None:
    for row, number in zip(rows, itertools.count()):
        row["topic"] = ("orders", "tickets")[number % 2]
    stream = stream_of(table_of(rows))
    status, body = pair.post(0, stream, MEDIA_TYPE)
    wanted = outcome_of(status, orjson.loads(body))
    status, body = pair.post(1, stream, MEDIA_TYPE, Accept=MEDIA_TYPE)
    if status >= 400:
        assert outcome_of(status, orjson.loads(body)) == wanted
        return
    table = read_stream(body)
    content = table.to_pylist()
    for one in content:
        one["due_ms"] = int(one["due_ms"].timestamp() * 1000 + 0.5)
    assert outcome_of(status, content) == wanted
    assert raw_log(pair.engines[1]) == raw_log(pair.engines[0])
