"""Checks at the start whether a service may listen on its address."""

import logging

from timerwheel.errors import SettingsError
from timerwheel.settings import Serving
from timerwheel.tokens import Tokens

logger = logging.getLogger(__name__)


def check_binding(serving: Serving, tokens: Tokens) -> None:
    """Raise SettingsError if other machines can reach the address and there are no tokens.

    Settings that are allowed but unwise are logged.
    """
    exposed = serving.exposed
    if not exposed:
        return
    name, address = next(iter(exposed.items()))
    if not tokens and not serving.open_to_all:
        raise SettingsError(
            f"{name} = {address!r}{_meaning(address)}: there are no API tokens, so other machines would "
            "have full access. Create one with `timerwheel tokens create`, listen on 127.0.0.1, or pass "
            "--open-to-all to serve everyone"
        )
    if not tokens:
        logger.warning("open to all: anyone who can reach %s has full access", address)
        return
    if serving.tls_certificate is None:
        for address in exposed.values():
            logger.warning("no TLS on %s: tokens and messages can be read on the network", address)


def _meaning(host: str) -> str:
    return " (all addresses of this machine)" if host in ("::", "0.0.0.0") else ""  # noqa: S104 - no binding
