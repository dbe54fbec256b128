"""TLS: what is offered, and what is refused with the name of the setting."""

import ssl
import subprocess

import pytest

from api.security import tls
from tests.harness.certificates import Authority
from timerwheel.errors import SettingsError
from timerwheel.serving import Serving


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


def _end_by_openssl(certificate):
    run = ("openssl", "x509", "-in", str(certificate), "-noout", "-enddate", "-dateopt", "iso_8601")
    told = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    return told.strip().removeprefix("notAfter=").replace(" ", "T")


def test_what_the_files_hold_now_is_told_apart_from_before_with_the_end_of_the_certificate(
    authority, own, tmp_path
):
    certificate, key = tmp_path / "own.pem", tmp_path / "own.key"
    serving = Serving(tls_certificate=certificate, tls_key=key)
    certificate.write_bytes(own.certificate.read_bytes() + authority.certificate.read_bytes())
    key.write_bytes(own.key.read_bytes())
    before = tls.tls_files(serving)
    end = f"the certificate is good until {_end_by_openssl(own.certificate)}"
    assert before.news(before) == f"the certificate is the same; {end}"
    certificate.write_bytes(own.certificate.read_bytes())
    assert tls.tls_files(serving).news(before) == f"read anew: tls_certificate; {end}"
    assert tls.tls_files(Serving()) is None


@pytest.mark.parametrize(("days", "of"), [("1", "a two-digit year"), ("36500", "a year from 2050 on")])
def test_the_end_of_a_certificate_is_read_as_openssl_reads_it(tmp_path, days, of):
    certificate, key = tmp_path / "own.pem", tmp_path / "own.key"
    made = ("-x509", "-newkey", "ed25519", "-nodes", "-keyout", key, "-out", certificate, "-days", days)
    subprocess.run(["openssl", "req", *map(str, made), "-subj", f"/CN={of}"], check=True, capture_output=True)
    found = tls.tls_files(Serving(tls_certificate=certificate, tls_key=key))
    assert found.until == _end_by_openssl(certificate)


@pytest.mark.parametrize(
    "held", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nMAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_file_whose_certificate_cannot_be_read_has_no_end(tmp_path, held):
    certificate = tmp_path / "own.pem"
    certificate.write_bytes(held)
    assert tls.tls_files(Serving(tls_certificate=certificate, tls_key=tmp_path / "gone")).until is None


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
