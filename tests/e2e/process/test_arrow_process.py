"""Arrow against a service in a process of its own: hostile streams, and a service without pyarrow."""

import random
from pathlib import Path

import aiohttp
import pyarrow as pa
import pytest

from tests.harness.arrow_rows import MEDIA_TYPE, read_stream, stream_of, table_of
from tests.harness.processes import serving_alone

ROWS = [
    {
        "topic": "orders",
        "body": "x" * 20,
        "delay": "1h",
        "properties": {"a": "b"},
        "tags": "t",
        "keys": "k l",
    },
    {"topic": "bills", "body": "y", "delay": "90s", "properties": {}, "dedup_key": None},
]
JSON = {"Content-Type": "application/json"}
DICTIONARY = pa.dictionary(pa.int32(), pa.string())
FLIPPED = (0, 1, 127, 128, 255)


async def post(session, url, data, **headers):
    given = {"Content-Type": MEDIA_TYPE, **headers}
    async with session.post(f"{url}/v1/messages", data=data, headers=given) as answer:
        raw = await answer.read()
        return answer, raw


def maps(process):
    return Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.parametrize("compression", [pytest.param(None, marks=pytest.mark.torture), "zstd"])
async def test_a_service_outlives_thousands_of_damaged_streams(tmp_path, compression):
    whole = stream_of(table_of(ROWS, topic=DICTIONARY), compression=compression)
    draw = random.Random(11)
    with serving_alone(tmp_path / "data", "--flush", "async") as service:
        async with aiohttp.ClientSession() as session:
            for _ in range(1_500):
                damaged = bytearray(whole)
                for _ in range(draw.randint(1, 5)):
                    damaged[draw.randrange(len(damaged))] = draw.choice((*FLIPPED, draw.randrange(256)))
                end = draw.choice((None, draw.randrange(len(whole))))
                answer, raw = await post(session, service.url, bytes(damaged[:end]))
                assert answer.status in {200, 201, 400, 413}, raw
            answer, raw = await post(session, service.url, whole)
            assert answer.status == 201, raw
        assert service.process.poll() is None


async def test_pyarrow_is_loaded_by_the_first_request_that_needs_it(tmp_path):
    with serving_alone(tmp_path / "data") as service:
        async with aiohttp.ClientSession() as session:
            answer, _ = await post(session, service.url, b'{"topic": "t"}', **JSON)
            assert answer.status == 201
            assert "libarrow" not in maps(service.process)
            answer, raw = await post(session, service.url, stream_of(table_of(ROWS)), Accept=MEDIA_TYPE)
            assert (answer.status, read_stream(raw).num_rows) == (201, 2)
            assert "libarrow" in maps(service.process)


async def test_a_service_without_pyarrow_says_what_to_install(tmp_path):
    with serving_alone(tmp_path / "data", without="pyarrow") as service:
        async with aiohttp.ClientSession() as session:
            answer, _ = await post(session, service.url, stream_of(table_of(ROWS)))
            refused = await answer.json()
            assert (answer.status, refused["code"]) == (415, "unsupported_media_type")
            assert "pip install 'timerwheel[arrow]'" in refused["detail"]
            answer, _ = await post(session, service.url, b'{"topic": "t"}', Accept=MEDIA_TYPE, **JSON)
            refused = await answer.json()
            assert (answer.status, refused["code"]) == (406, "not_acceptable")
            assert "pip install 'timerwheel[arrow]'" in refused["detail"]
            async with session.get(f"{service.url}/v1/topics/t") as answer:
                assert answer.status == 404  # what cannot be answered is not done
            accept = f"{MEDIA_TYPE}, application/json;q=0.5"
            answer, _ = await post(session, service.url, b'{"topic": "t"}', Accept=accept, **JSON)
            assert (answer.status, answer.content_type) == (201, "application/json")
            path = f"{service.url}/v1/topics/t/queues/0/messages"
            async with session.get(path, headers={"Accept": MEDIA_TYPE}) as answer:
                assert (answer.status, (await answer.json())["code"]) == (406, "not_acceptable")
            receive = f"{service.url}/v1/topics/t/groups/g/receive"
            async with session.post(receive, json={"create": True}, headers={"Accept": MEDIA_TYPE}) as answer:
                assert answer.status == 406
            async with session.post(receive, json={"create": True}) as answer:
                assert len((await answer.json())["messages"]) == 1  # it was not leased to anybody before
