"""Tokens, TLS, where it listens and SIGHUP, with the real process and the real command line."""

import asyncio
import signal
import ssl

import pytest

from tests.harness.certificates import Authority
from tests.harness.processes import serving, timerwheel
from timerwheel.client import Client, ClientError, DeniedError, UnreachableError
from timerwheel.clock import SystemClock
from timerwheel.tokens import is_secret

LIMIT_S = 60  # only keeps a failure from hanging
LOOK_MS = 50


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


async def eventually(met):
    """Wait until the process has noticed what was done to its files, or to it."""
    async with asyncio.timeout(LIMIT_S):
        while not await met():
            await SystemClock().sleep_for(LOOK_MS)


def test_an_address_that_others_reach_is_refused_without_tokens_unless_it_is_meant(tmp_path):
    data = tmp_path / "d"
    refused = timerwheel("serve", "--host", "0.0.0.0", "--port", 0, "--data", data)
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) == 1
    for word in (
        "host = '0.0.0.0' (all addresses of this machine)",
        "timerwheel tokens create",
        "--open-to-all",
    ):
        assert word in refused.err
    assert not data.exists()
    with serving(data, "--host", "0.0.0.0", "--open-to-all") as service:
        ended = service.end(signal.SIGTERM)
    assert ended.code == 0
    assert "open to all" in ended.err


def test_a_token_is_shown_once_and_then_only_what_it_is_for(tmp_path):
    flags = ("--scope", "send", "--topic", "orders*", "--rate", "600/m", "--expires", "30d")
    made = timerwheel("tokens", "create", "shop", *flags, "--data", tmp_path, "--json").json
    assert is_secret(made["token"])
    assert (made["scopes"], made["topics"], made["rate_per_s"]) == (["send"], ["orders*"], 10.0)
    assert made["expires_ms"] - made["made_ms"] == 30 * 86_400_000
    shown = timerwheel("tokens", "create", "boss", "--scope", "admin", "--data", tmp_path).out
    [boss] = [word for word in shown.split() if is_secret(word)]
    taken = timerwheel("tokens", "create", "shop", "--scope", "admin", "--data", tmp_path)
    assert (taken.code, taken.out) == (1, "")
    for flag in ((), ("--json",)):
        listed = timerwheel("tokens", "list", "--data", tmp_path, *flag).out
        assert ("shop" in listed, "boss" in listed) == (True, True)
        assert made["starts"] in listed
        assert made["token"] not in listed
        assert boss not in listed


async def test_commands_show_their_token_until_it_is_revoked(tmp_path):
    data, file = tmp_path / "d", tmp_path / "token"
    flags = ("--scope", "send", "--topic", "orders*", "--data", data, "--json")
    token = timerwheel("tokens", "create", "shop", *flags).json["token"]
    timerwheel("tokens", "create", "boss", "--scope", "admin", "--data", data)
    file.write_text(token + "\n")
    with serving(data) as service:
        send = ("send", "orders-eu", "hello", "--delay", "1h", "--url", service.url)
        unasked = timerwheel(*send)
        assert (unasked.code, unasked.out) == (1, "")
        assert "TIMERWHEEL_TOKEN" in unasked.err
        assert timerwheel(*send, TIMERWHEEL_TOKEN=token).code == 0
        assert timerwheel(*send, TIMERWHEEL_TOKEN=f"@{file}").code == 0
        assert timerwheel(*send, "--token", f"@{file}").code == 0
        closed = timerwheel(
            *("topics", "set", "orders-eu", "--ordered", "--url", service.url), TIMERWHEEL_TOKEN=token
        )
        assert (closed.code, "scope admin" in closed.err) == (1, True)
        for wrong in ("tw_x", f"@{tmp_path / 'nothing'}", token[:-1]):
            refused = timerwheel(*send, TIMERWHEEL_TOKEN=wrong)
            assert (refused.code, refused.out) == (2, "")
            assert wrong.startswith("@") or wrong not in refused.err, "what was given is not shown"
        async with Client(service.url, token=token) as client:
            await client.send("orders", "x", delay="1h")
            assert timerwheel("tokens", "revoke", "shop", "--data", data).code == 0
            await eventually(lambda: is_denied(client))
        ended = service.end(signal.SIGTERM)
    assert ended.code == 0
    assert "changeTopic by shop on /v1/topics/orders-eu: forbidden" in ended.err
    assert "tokenRevoked by service on shop: done" in ended.err
    assert "tw_" not in ended.err


async def is_denied(client):
    try:
        await client.topics()
    except DeniedError as error:
        return error.code == "unauthenticated"
    return False


def trusting(authority, shown=None):
    """What a client of the authority's servers needs, and shows of itself."""
    context = ssl.create_default_context(cafile=authority.certificate)
    if shown is not None:
        context.load_cert_chain(shown.both)
    return context


async def test_with_an_authority_only_its_clients_are_let_in(tmp_path, authority):
    own, visitor = authority.issue("localhost"), authority.issue("visitor")
    (tmp_path / "foreign").mkdir()
    stranger = Authority(tmp_path / "foreign").issue("visitor")
    flags = ("--tls-certificate", own.certificate, "--tls-key", own.key)
    with serving(tmp_path / "d", *flags, "--tls-client-ca", authority.certificate) as service:
        assert service.url.startswith("https://")
        for shown in (None, stranger):
            async with Client(service.url, ssl_context=trusting(authority, shown)) as client:
                with pytest.raises(UnreachableError):
                    await client.topics()
        async with Client(service.url.replace("https:", "http:")) as client:
            with pytest.raises(ClientError):
                await client.topics()
        async with Client(service.url, ssl_context=trusting(authority, visitor)) as client:
            assert (await client.send("orders", "x", delay="1h")).id
        ask = ("topics", "list", "--url", service.url)
        trust = ("--ca", authority.certificate)
        assert timerwheel(*ask, *trust, "--cert", visitor.both).code == 0
        assert timerwheel(*ask, *trust, TIMERWHEEL_CERT=str(visitor.both)).code == 0
        assert timerwheel(*ask, *trust).code == 3
        mistrusting = timerwheel(*ask, "--cert", visitor.both)
        assert (mistrusting.code, "certificate is not trusted" in mistrusting.err) == (3, True)
        assert timerwheel(*ask, "--ca", tmp_path / "nothing").code == 2
        ended = service.end(signal.SIGTERM)
    assert ended.code == 0
    [refused] = [line for line in ended.err.splitlines() if "timerwheel.api.security.handshakes" in line]
    assert "refused a client at 127.0.0.1: it presented no client certificate" in refused


async def first_line(host, port, sent, context=None):
    """What a connection from this loopback address gets in answer to these bytes."""
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    writer.write(sent)
    try:
        return await reader.read(100)
    except OSError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        ("plain", "it sent plain HTTP to an HTTPS port"),
        ("plain delete", "it sent something that is not TLS"),
        ("nobody", "it presented no client certificate, and tls_client_ca requires one"),
        ("stranger", "its certificate fails verification against tls_client_ca: "),
    ],
)
async def test_a_client_refused_in_the_handshake_is_logged_with_address_and_reason(
    tmp_path, authority, client, reason
):
    own, visitor = authority.issue("localhost"), authority.issue("visitor")
    (tmp_path / "foreign").mkdir()
    stranger = Authority(tmp_path / "foreign").issue("visitor")
    flags = ("--tls-certificate", own.certificate, "--tls-key", own.key)
    shown = {"nobody": trusting(authority), "stranger": trusting(authority, stranger)}
    method = "DELETE" if client == "plain delete" else "GET"
    request = f"{method} /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    with serving(tmp_path / "d", *flags, "--tls-client-ca", authority.certificate) as service:
        port = int(service.url.rsplit(":", 1)[1])
        for _ in range(5):
            assert await first_line("127.0.0.1", port, request, shown.get(client)) == b""
        _, silent = await asyncio.open_connection("127.0.0.1", port)  # it hinders neither others nor the end
        served = await first_line("127.0.0.1", port, request, trusting(authority, visitor))
        assert b" 405 " in served if method == "DELETE" else b" 200 " in served
        ended = service.end(signal.SIGTERM)
        silent.close()
    assert ended.code == 0
    assert "Traceback" not in ended.err
    [refused] = [line for line in ended.err.splitlines() if "timerwheel.api.security.handshakes" in line]
    told = f"WARNING timerwheel.api.security.handshakes: refused a client at 127.0.0.1: {reason}"
    assert told in refused


def put(issued, certificate, key):
    certificate.write_bytes(issued.certificate.read_bytes())
    key.write_bytes(issued.key.read_bytes())


async def test_sighup_shows_a_new_certificate_and_a_wrong_one_changes_nothing(tmp_path, authority):
    certificate, key = tmp_path / "own.pem", tmp_path / "own.key"
    first, second = authority.issue("localhost"), authority.issue("localhost")
    put(first, certificate, key)
    with serving(tmp_path / "d", "--tls-certificate", certificate, "--tls-key", key) as service:
        before = await serial(service.url, authority)
        key.write_bytes(second.key.read_bytes())  # not the key of the certificate
        service.process.send_signal(signal.SIGHUP)
        assert await serial(service.url, authority) == before
        put(second, certificate, key)
        service.process.send_signal(signal.SIGHUP)

        async def is_new():
            return await serial(service.url, authority) != before

        await eventually(is_new)
        service.process.send_signal(signal.SIGHUP)
        await serial(service.url, authority)  # the signal is handled before the connection is taken
        ended = service.end(signal.SIGTERM)
    assert ended.code == 0
    assert "nothing was changed" in ended.err
    assert f"tls_certificate = {certificate}" in ended.err
    told = "configuration reloaded; changed: nothing; "
    assert f"{told}reloaded: tls_certificate, tls_key" in ended.err
    assert f"{told}the certificate has not changed" in ended.err


async def serial(url, authority):
    """The number of the certificate that a new connection is shown; the service answers over it."""
    host, port = url.removeprefix("https://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=trusting(authority))
    found = writer.get_extra_info("peercert")["serialNumber"]
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert b" 200 " in await reader.readline()
    writer.close()
    return found


def test_sighup_takes_over_what_may_change_in_a_run_and_names_the_rest(tmp_path):
    file = tmp_path / "timerwheel.toml"
    file.write_text('retention = "1d"\nlog_level = "warning"\n')
    with serving(tmp_path / "d", "--config", file) as service:
        file.write_text("retention = 7\n")
        service.process.send_signal(signal.SIGHUP)
        # Signals are handled in the order of their arrival, once the first has been.
        assert timerwheel("topics", "list", "--url", service.url).code == 0
        file.write_text('retention = "2d"\ntopics_max = 7\nlog_level = "info"\n')
        service.process.send_signal(signal.SIGHUP)
        assert timerwheel("topics", "list", "--url", service.url).code == 0
        ended = service.end(signal.SIGTERM)
    assert ended.code == 0
    assert "the configuration is invalid, so nothing was changed" in ended.err
    assert f"{file}: retention: 7" in ended.err
    assert "changed: retention, log_level; needs a restart: topics_max" in ended.err
    assert "INFO timerwheel.api.server: stopping" in ended.err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--tls-certificate", "none.pem"), "tls_key"),
        (("--tls-certificate", "none.pem", "--tls-key", "none.key"), "tls_certificate = none.pem"),
        (("--tls-client-ca", "none.pem"), "tls_client_ca"),
    ],
)
def test_tls_that_cannot_be_served_is_one_line_that_names_the_setting(tmp_path, flags, named):
    refused = timerwheel("serve", "--port", 0, "--data", tmp_path / "d", *flags)
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) == 1
    assert named in refused.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("create", "a b", "--scope", "send", "--topic", "x"), "'a b' is not a valid name"),
        (("create", "a", "--scope", "send"), "topics"),
        (("create", "a", "--scope", "root"), "root"),
        (("create", "a", "--scope", "send", "--topic", "[x]"), "pattern"),
        (("create", "a", "--scope", "send", "--topic", "x", "--rate", "often"), "100/s"),
        (("create", "a", "--scope", "send", "--topic", "x", "--expires", "soon"), "soon"),
        (("create", "a", "--scope", "send", "--topic", "x", "--expires", "0s"), "from 1ms"),
        (("create", "a", "--scope", "admin", "--topic", "x"), "admin"),
        (("revoke", "a"), "no token 'a'"),
    ],
)
def test_a_token_that_breaks_a_rule_is_refused_with_what_to_do(tmp_path, arguments, named):
    (tmp_path / "d" / "log").mkdir(parents=True)
    refused = timerwheel("tokens", *arguments, "--data", tmp_path / "d")
    assert refused.code in (1, 2)
    assert refused.out == ""
    assert named in refused.err


@pytest.mark.parametrize("command", [("list",), ("list", "--json"), ("revoke", "a")])
def test_a_mistyped_data_directory_is_no_directory_without_tokens(tmp_path, command):
    typo = tmp_path / "typo"
    refused = timerwheel("tokens", *command, "--data", typo)
    assert (refused.code, refused.out) == (1, "")
    assert (
        f"{typo} is not a data directory of timerwheel: there is no such directory; give the" in refused.err
    )
    assert not typo.exists()


def test_a_token_for_a_directory_without_a_log_is_made_and_said_to_be_for_a_service_to_come(tmp_path):
    flags = ("--scope", "admin", "--data", tmp_path / "d")
    early = timerwheel("tokens", "create", "early", *flags)
    assert (early.code, "no service has used" in early.err) == (0, True)
    (tmp_path / "d" / "log").mkdir()
    assert timerwheel("tokens", "create", "late", *flags).err == ""


def test_the_last_token_is_revoked_with_a_word_on_what_comes_of_it_wherever_the_service_listens(tmp_path):
    for name in ("one", "other"):
        timerwheel("tokens", "create", name, "--scope", "admin", "--data", tmp_path)
    assert timerwheel("tokens", "revoke", "one", "--data", tmp_path).out == "revoked token one\n"
    last = timerwheel("tokens", "revoke", "other", "--data", tmp_path).out
    for words in (
        "no token is left",
        "on a loopback address: from now on every program",
        "it refuses all calls",
        "--open-to-all",
    ):
        assert words in last
    refused = timerwheel("serve", "--host", "0.0.0.0", "--port", 0, "--data", tmp_path)
    assert (refused.code, "there are no API tokens" in refused.err) == (2, True)
