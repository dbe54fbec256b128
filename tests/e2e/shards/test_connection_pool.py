"""TLS between a node and the processes of its shards, whose certificate is replaced while they run."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.harness.certificates import Authority, Issued
from timerwheel import tls
from timerwheel.errors import SettingsError
from timerwheel.settings import Serving
from timerwheel.shards.connection_pool import ConnectionPool

LIMIT = aiohttp.ClientTimeout(total=30)


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    return Serving(tls_certificate=tmp_path / "certificate.pem", tls_key=tmp_path / "key.pem")


def replace(serving: Serving, issued: Issued) -> None:
    assert serving.tls_certificate is not None
    assert serving.tls_key is not None
    serving.tls_certificate.write_bytes(issued.certificate.read_bytes())
    serving.tls_key.write_bytes(issued.key.read_bytes())


@asynccontextmanager
async def shard(serving: Serving, port: int = 0) -> AsyncIterator[TestServer]:
    """A process that has just started with the files as they are."""
    app = web.Application()
    app.router.add_get("/", here)
    server = TestServer(app, scheme="https", port=port)
    context = tls.ssl_context(serving)
    assert context is not None
    await server.start_server(ssl=context)
    try:
        yield server
    finally:
        await server.close()


async def here(_: web.Request) -> web.Response:
    return web.Response(text="here")


async def get(pool: ConnectionPool, url: str) -> int:
    async with await pool.request("GET", url, timeout=LIMIT) as response:
        return response.status


async def test_a_shard_that_starts_again_may_show_a_new_certificate(serving: Serving, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    replace(serving, authority.issue("node"))
    async with shard(serving) as first:
        url, port = str(first.make_url("/")), first.port
        pool = ConnectionPool(serving, [url])
        assert await get(pool, url) == 200
    replace(serving, authority.issue("node"))
    async with pool:
        async with shard(serving, port or 0):
            assert await get(pool, url) == 200
        other = serving_with(authority.issue("node"))
        async with shard(other, port or 0):
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await get(pool, url)


def serving_with(issued: Issued) -> Serving:
    return Serving(tls_certificate=issued.certificate, tls_key=issued.key)


async def test_files_that_cannot_be_used_change_nothing(serving: Serving, tmp_path: Path) -> None:
    replace(serving, Authority(tmp_path).issue("node"))
    async with shard(serving) as server, ConnectionPool(serving, [str(server.make_url("/"))]) as pool:
        assert serving.tls_certificate is not None
        serving.tls_certificate.write_text("nonsense")
        assert not pool.renew()
        assert await get(pool, str(server.make_url("/"))) == 200


def test_a_certificate_that_the_shards_would_refuse_is_refused_at_the_start(
    serving: Serving, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    other = Authority(made(tmp_path / "other"))
    replace(serving, authority.issue("node"))
    tls.check_own(serving)
    tls.check_own(msgspec.structs.replace(serving, tls_client_ca=authority.certificate))
    serving = msgspec.structs.replace(serving, tls_client_ca=other.certificate)
    with pytest.raises(SettingsError, match=r"shows them its own certificate, .*unable to get local issuer"):
        tls.check_own(serving)
    tls.check_own(Serving())


def test_a_certificate_that_has_expired_is_refused_at_the_start(serving: Serving, tmp_path: Path) -> None:
    replace(serving, Authority(tmp_path).issue("node", days="-1"))
    with pytest.raises(SettingsError, match="cannot call its shards with it: certificate has expired"):
        tls.check_own(serving)


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory
