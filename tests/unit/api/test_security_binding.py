"""Where a service may listen, and what is said of it."""

import pytest

from tests.unit.test_tokens import make
from timerwheel.api.security.binding import check_binding
from timerwheel.errors import SettingsError
from timerwheel.settings import Serving
from timerwheel.tokens import Tokens

TOKENS = Tokens([make()])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_this_machine_alone_may_be_served_without_tokens(host, caplog):
    check_binding(Serving(host=host), Tokens())
    assert caplog.text == ""


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.7", "timers.example", "", "127.0.0.1.evil.example"]
)
def test_whom_others_can_reach_needs_tokens_or_a_clear_word(host, caplog):
    with pytest.raises(SettingsError, match=r"host = .*timerwheel tokens create.*--open-to-all"):
        check_binding(Serving(host=host), Tokens())
    check_binding(Serving(host=host), Tokens([make(expires_ms=0)]))
    check_binding(Serving(host=host, open_to_all=True), Tokens())
    assert "open to all" in caplog.text


def test_tokens_that_go_over_the_network_in_the_clear_are_warned_of(caplog, tmp_path):
    check_binding(Serving(host="0.0.0.0"), TOKENS)
    assert "no TLS" in caplog.text
    caplog.clear()
    pem = tmp_path / "own.pem"
    check_binding(Serving(host="0.0.0.0", tls_certificate=pem, tls_key=pem), TOKENS)
    assert caplog.text == ""


def test_a_port_for_rocketmqs_clients_that_others_can_reach_needs_tokens_too():
    serving = Serving(rocketmq="0.0.0.0:9876")
    with pytest.raises(SettingsError, match=r"rocketmq = '0\.0\.0\.0:9876': there are no API tokens"):
        check_binding(serving, Tokens())
    check_binding(serving, TOKENS)
    check_binding(Serving(rocketmq="0.0.0.0:9876", open_to_all=True), Tokens())
    check_binding(Serving(rocketmq="127.0.0.1:9876"), Tokens())


def test_the_certificate_of_the_service_protects_the_port_for_rocketmqs_clients(caplog, tmp_path):
    pem = tmp_path / "pem"
    check_binding(Serving(rocketmq="[::]:9876", tls_certificate=pem, tls_key=pem), TOKENS)
    assert not caplog.records
    check_binding(Serving(rocketmq="[::]:9876"), TOKENS)
    assert [record.getMessage() for record in caplog.records] == [
        "no TLS on [::]:9876: tokens and messages can be read on the network"
    ]


def test_the_grpc_port_needs_tokens_too_and_has_tls_with_the_certificate_of_the_service(caplog, tmp_path):
    with pytest.raises(SettingsError, match=r"rocketmq_grpc = '0\.0\.0\.0:8081': there are no API tokens"):
        check_binding(Serving(rocketmq_grpc="0.0.0.0:8081"), Tokens())
    check_binding(Serving(rocketmq_grpc="127.0.0.1:8081"), Tokens())
    pem = tmp_path / "pem"
    check_binding(Serving(rocketmq_grpc="0.0.0.0:8081", tls_certificate=pem, tls_key=pem), TOKENS)
    assert not caplog.records
