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
