"""TLS: what is offered, and what is refused with the name of the setting."""

import ssl

import pytest

from tests.harness.certificates import Authority
from timerwheel import tls
from timerwheel.errors import SettingsError
from timerwheel.settings import Serving


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def own(authority):
    return authority.issue("localhost")


def test_without_a_certificate_there_is_no_tls():
    assert tls.ssl_context(Serving()) is None


def test_nothing_below_tls_1_2_is_spoken_and_no_client_is_asked(own):
    context = tls.ssl_context(Serving(tls_certificate=own.certificate, tls_key=own.key))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_with_an_authority_clients_must_show_a_certificate(own, authority):
    serving = Serving(tls_certificate=own.certificate, tls_key=own.key, tls_client_ca=authority.certificate)
    assert tls.ssl_context(serving).verify_mode == ssl.CERT_REQUIRED


def test_files_that_cannot_be_used_are_named(own, authority, tmp_path):
    other = authority.issue("other")
    missing, rubbish = tmp_path / "missing.pem", tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    for named, certificate, key, client_ca in (
        ("tls_certificate", missing, own.key, None),
        ("tls_key", own.certificate, missing, None),
        ("tls_certificate", rubbish, own.key, None),
        ("tls_key", own.certificate, other.key, None),
        ("tls_client_ca", own.certificate, own.key, missing),
        ("tls_client_ca", own.certificate, own.key, rubbish),
    ):
        serving = Serving(tls_certificate=certificate, tls_key=key, tls_client_ca=client_ca)
        with pytest.raises(SettingsError, match=named):
            tls.ssl_context(serving)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(own, authority):
    key = authority.protect(own.key)
    with pytest.raises(SettingsError, match="password"):
        tls.ssl_context(Serving(tls_certificate=own.certificate, tls_key=key))


def _shown(context, authority):
    """The certificate that a server with this context shows, by a handshake in memory."""
    client = ssl.create_default_context(cafile=authority.certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        context.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return sides[1].getpeercert()["serialNumber"]


def test_a_change_of_the_files_is_noticed(own, tmp_path):
    certificate, key = tmp_path / "own.pem", tmp_path / "own.key"
    serving = Serving(tls_certificate=certificate, tls_key=key)
    certificate.write_bytes(b"another one")
    key.write_bytes(own.key.read_bytes())
    before = tls.digests(serving)
    assert tls.news(before, tls.digests(serving)) == "the certificate has not changed"
    certificate.write_bytes(own.certificate.read_bytes())
    assert tls.news(before, tls.digests(serving)) == "reloaded: tls_certificate"
    certificate.unlink()
    assert set(tls.digests(serving)) == {"tls_key"}
    assert tls.digests(Serving()) == {}


def test_a_reload_shows_the_new_certificate_and_a_wrong_one_changes_nothing(authority, tmp_path):
    first, second = authority.issue("localhost"), authority.issue("localhost")
    certificate, key = tmp_path / "own.pem", tmp_path / "own.key"

    def put(issued):
        certificate.write_bytes(issued.certificate.read_bytes())
        key.write_bytes(issued.key.read_bytes())

    put(first)
    serving = Serving(tls_certificate=certificate, tls_key=key)
    context = tls.ssl_context(serving)
    before = _shown(context, authority)
    key.write_bytes(second.key.read_bytes())
    with pytest.raises(SettingsError):
        tls.reload(context, serving)
    assert _shown(context, authority) == before
    put(second)
    tls.reload(context, serving)
    assert _shown(context, authority) != before
