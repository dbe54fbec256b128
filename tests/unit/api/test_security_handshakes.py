"""Who is refused before TLS is spoken: told with address and reason, and not by each of its tries."""

import asyncio
import contextlib
import logging
import ssl

import pytest

from tests.harness.certificates import Authority
from tests.harness.clock import ManualClock
from timerwheel import tls
from timerwheel.api.security.handshakes import Handshakes
from timerwheel.settings import Serving
from timerwheel.telemetry.throttled_log import LOG_EACH_MS

LIMIT_S = 60  # only keeps a failure from hanging


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self._transport.write(data)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
async def listening(authority, clock):
    """Handshakes, and the port on which they are taken."""
    own = authority.issue("localhost")
    serving = Serving(tls_certificate=own.certificate, tls_key=own.key, tls_client_ca=authority.certificate)
    handshakes = Handshakes(tls.ssl_context(serving), clock)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: handshakes.greeter(Echo), "127.0.0.1", 0)
    async with server, asyncio.timeout(LIMIT_S):
        yield handshakes, server.sockets[0].getsockname()[1]


async def left(port, sent=b"GET / HTTP/1.1\r\n\r\n"):
    """Say something in plain text, and see the connection close."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    with contextlib.suppress(OSError):
        assert await reader.read() == b""
    writer.close()


def lines(caplog):
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "timerwheel.api.security.handshakes"
    ]


async def test_a_client_that_shakes_hands_is_served_by_what_is_made_for_it(listening, authority):
    handshakes, port = listening
    context = ssl.create_default_context(cafile=authority.certificate)
    context.load_cert_chain(authority.issue("visitor").both)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(b"hello\n")
    assert await reader.readline() == b"hello\n"
    assert len(handshakes) == 0
    writer.close()
    await writer.wait_closed()


async def test_of_many_refusals_of_one_address_a_line_a_minute_tells_how_many(listening, clock, caplog):
    _, port = listening
    for _ in range(4):
        await left(port)
    refused = "refused a client at 127.0.0.1: it sent plain HTTP to an HTTPS port"
    assert lines(caplog) == [refused]
    clock.advance(LOG_EACH_MS)
    await left(port)
    assert lines(caplog) == [refused, f"{refused} (4 times since the last report)"]


async def test_who_leaves_without_a_word_is_no_news(listening, caplog):
    handshakes, port = listening
    caplog.set_level(logging.INFO)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    while not len(handshakes):
        await asyncio.sleep(0)
    writer.close()
    while len(handshakes):
        await asyncio.sleep(0)
    assert lines(caplog) == []


async def test_a_silent_client_is_counted_and_closed_at_the_end(listening, monkeypatch):
    monkeypatch.setattr("timerwheel.api.security.handshakes.FINISH_S_MAX", 0)
    handshakes, port = listening
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while not len(handshakes):
        await asyncio.sleep(0)
    await handshakes.finish()
    with contextlib.suppress(OSError):
        assert await reader.read() == b""
    assert len(handshakes) == 0
    writer.close()
