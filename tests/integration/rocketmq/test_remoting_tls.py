"""TLS and plain text at the port for RocketMQ's clients, over real sockets of this machine."""

import asyncio
import contextlib
import logging
import socket
import ssl

import pytest

from tests.harness.certificates import Authority
from tests.harness.remoting import open_to_all
from timerwheel.rocketmq import front as fronts
from timerwheel.rocketmq.codes import Call
from timerwheel.rocketmq.frame import Frame, FrameReader, encode
from timerwheel.rocketmq.front import LOOK_MS, RemotingFront
from timerwheel.rocketmq.greeting import GREETING_MS_MAX
from timerwheel.settings import Serving


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@contextlib.asynccontextmanager
async def listening(engine, **serving):
    front = RemotingFront(Serving(rocketmq="127.0.0.1:0", **serving))
    front.bind()
    await front.open(engine, open_to_all())
    try:
        yield front
    finally:
        await front.close()


def files(issued):
    return {"tls_certificate": issued.certificate, "tls_key": issued.key}


def trusting(authority, own=None):
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


async def route_body(front, context=None):
    """What a client is answered, and the number of the certificate that it saw; None if it is let go."""
    with contextlib.suppress(OSError):
        return await asked(front, context)
    return None, None


async def asked(front, context):
    name = None if context is None else "localhost"
    reader, writer = await asyncio.open_connection(*front.address, ssl=context, server_hostname=name)
    try:
        writer.write(encode(Frame(Call.ROUTE, 1, {"topic": "orders"})))
        frames = FrameReader()
        while data := await reader.read(65_536):
            if found := frames.feed(data):
                tls = writer.get_extra_info("ssl_object")
                return found[0].body, tls and tls.getpeercert()["serialNumber"]
        return None, None
    finally:
        writer.close()


async def test_tls_and_plain_text_are_served_at_one_port(engine, authority):
    async with listening(engine, **files(authority.issue("localhost"))) as front:
        tls, _ = await route_body(front, trusting(authority))
        plain, _ = await route_body(front)
    assert tls == plain
    assert b"brokerAddrs" in plain


async def test_without_a_certificate_tls_is_no_frame(engine, authority):
    async with listening(engine) as front:
        assert await route_body(front, trusting(authority)) == (None, None)
        assert (await route_body(front))[0]


async def test_if_clients_must_show_certificates_nobody_else_is_served(engine, authority):
    own = files(authority.issue("localhost"))
    async with listening(engine, **own, tls_client_ca=authority.certificate) as front:
        assert (await route_body(front, trusting(authority, authority.issue("client"))))[0]
        assert await route_body(front, trusting(authority)) == (None, None)
        assert await route_body(front) == (None, None)


async def test_plain_text_of_another_machine_is_refused(engine, authority, caplog):
    async with listening(engine, **files(authority.issue("localhost"))) as front:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(encode(Frame(Call.ROUTE, 1, {"topic": "orders"})))
            front.greeting.begin(Transport(ours, ("10.0.0.7", 40_001)))
            while len(front.greeting):
                await asyncio.sleep(0)
            with pytest.raises(ConnectionResetError):
                theirs.recv(1)
    assert "10.0.0.7: it does not speak TLS; clients need tls.enable=true" in caplog.text


class Transport(asyncio.Transport):
    def __init__(self, own, peer):
        super().__init__({"socket": own, "peername": peer})
        self._own = own

    def abort(self):
        self._own.close()


async def test_a_new_certificate_is_used_for_the_next_connection(world, engine, authority, caplog):
    caplog.set_level(logging.INFO)
    first, second = authority.issue("localhost"), authority.issue("localhost")
    async with listening(engine, **files(first)) as front:
        _, before = await route_body(front, trusting(authority))
        first.key.write_text("half a key")
        await world.advance(LOOK_MS)
        assert "stays the old one" in caplog.text
        assert (await route_body(front, trusting(authority)))[1] == before
        first.certificate.write_bytes(second.certificate.read_bytes())
        first.key.write_bytes(second.key.read_bytes())
        await world.advance(LOOK_MS)
        assert (await route_body(front, trusting(authority)))[1] != before


async def test_a_client_that_says_nothing_is_let_go(world, engine, authority):
    async with listening(engine, **files(authority.issue("localhost"))) as front:
        reader, writer = await asyncio.open_connection(*front.address)
        while not len(front.greeting):
            await asyncio.sleep(0)
        await world.advance(GREETING_MS_MAX)
        await world.advance(LOOK_MS)
        assert await reader.read() == b""
        writer.close()
        assert len(front.greeting) == 0


async def test_clients_that_are_greeted_count_as_connections(engine, authority, monkeypatch):
    monkeypatch.setattr(fronts, "CONNECTIONS_MAX", 2)
    async with listening(engine, **files(authority.issue("localhost"))) as front:
        writers = [(await asyncio.open_connection(*front.address))[1] for _ in range(2)]
        while len(front.greeting) < len(writers):
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection(*front.address)
        assert await reader.read() == b""
        for one in (*writers, writer):
            one.close()
