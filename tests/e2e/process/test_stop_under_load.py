"""SIGTERM while clients send: requests that were taken are finished, and what was acknowledged is there."""

import asyncio
import signal
import ssl
from collections import Counter

import pytest

from tests.harness.certificates import Authority
from tests.harness.processes import serving, timerwheel
from tests.harness.raw_http import Client as Connection
from timerwheel.client import Client, ClientError, UnreachableError
from timerwheel.model.shards import shard_of_topic

CLIENTS = 8
SENDERS = 32
TOPIC = "orders"
SHARD = shard_of_topic(TOPIC, 2)
ARRAY = 50
HOUR_MS = 3_600_000


async def send_until_refused(url: str, acknowledged: list[str], refused: list[ClientError]) -> None:
    drafts = [{"topic": "orders", "body": "b" * 300, "delay_ms": HOUR_MS} for _ in range(ARRAY)]
    async with Client(url) as client:
        while True:
            try:
                acknowledged += [sent.id for sent in await client.send_many(drafts)]
            except ClientError as error:
                refused.append(error)
                return


async def test_a_stop_under_load_finishes_in_order_and_loses_nothing_that_was_acknowledged(tmp_path):
    acknowledged: list[str] = []
    refused: list[ClientError] = []
    with serving(tmp_path / "d", "--log-level", "warning") as service:
        load = [
            asyncio.create_task(send_until_refused(service.url, acknowledged, refused))
            for _ in range(CLIENTS)
        ]
        while len(acknowledged) < 2 * CLIENTS * ARRAY:
            await asyncio.sleep(0.001)
        ended = await asyncio.to_thread(service.end, signal.SIGTERM)
        await asyncio.gather(*load)
    assert (ended.code, ended.err) == (0, "")
    assert len(refused) == CLIENTS
    for error in refused:  # told that it stops, or the connection was closed: never an answer of another kind
        assert isinstance(error, UnreachableError) or error.code == "not_ready"
    records = timerwheel("log", "--data", tmp_path / "d", "--json").lines
    assert set(acknowledged) <= {record["id"] for record in records}
    assert timerwheel("fsck", "--data", tmp_path / "d", "--json").json["findings"] == []


async def send_each_on_a_connection_of_its_own(
    port: int, outcomes: Counter[str], tls: ssl.SSLContext | None
) -> None:
    """Send until the port refuses, as programs do that have no pool of connections."""
    body = b'{"topic":"%s","body":"b","delay_ms":3600000}' % TOPIC.encode()
    request = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    while True:
        try:
            connection = Connection(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))
        except ConnectionRefusedError:
            return
        except OSError:  # the handshake of TLS did not end, so nothing was sent
            if tls is None:
                raise
            continue
        try:
            connection.write(request)
            answer = await connection.answer()
            outcomes[answer.status.split()[1].decode()] += 1
        except (OSError, EOFError, ValueError) as error:
            outcomes[f"unknown: {error!r}"] += 1
        finally:
            connection.writer.close()


@pytest.mark.parametrize(
    ("flags", "process", "has_tls"),
    [
        pytest.param((), 0, False, id="a service"),
        pytest.param((), 0, True, id="a service with TLS"),
        pytest.param(("--shards", 2), 0, False, id="the front of a node"),
        pytest.param(("--shards", 2), 1 + SHARD, False, id="a shard, as other nodes call it"),
    ],
)
async def test_a_client_with_a_new_connection_for_each_request_knows_of_each_whether_it_was_stored(
    tmp_path, flags, process, has_tls
):
    tls = None
    if has_tls:
        authority = Authority(tmp_path)
        own = authority.issue("127.0.0.1")
        flags = (*flags, "--tls-certificate", own.certificate, "--tls-key", own.key)
        tls = ssl.create_default_context(cafile=str(authority.certificate))
    outcomes: Counter[str] = Counter()
    with serving(tmp_path / "d", *flags, "--log-level", "warning") as service:
        port = int(service.url.rsplit(":", 1)[1]) + process
        load = [
            asyncio.create_task(send_each_on_a_connection_of_its_own(port, outcomes, tls))
            for _ in range(SENDERS)
        ]
        while outcomes["201"] < 2 * SENDERS:
            await asyncio.sleep(0.001)
        ended = await asyncio.to_thread(service.end, signal.SIGTERM)
        await asyncio.gather(*load)
    assert (ended.code, ended.err) == (0, "")
    assert outcomes.keys() <= {"201", "503"}, outcomes
