"""Allowed push targets: which URLs are accepted, and which addresses are connected to.

1. A URL is checked when it is given, so that its author sees the error.
2. An address is checked when the socket for it is created, after every look-up and for every connection. A
   name that resolves differently the second time gains nothing, because there is no look-up between check and
   use.
3. Public means: reachable on the internet, for one receiver, and not a tunnel to an address that is not
   public.

`allow_private` turns off the checks of addresses, not those of the URL's form.
"""

import errno
import ipaddress
import logging
import re
import socket
from collections.abc import Callable
from typing import Any

from yarl import URL

from timerwheel.errors import TimerwheelError

URL_CHARACTERS_MAX = 2048
NOT_PUBLIC = "the host's address is not a public address"

logger = logging.getLogger(__name__)

_IPv4, _IPv6 = ipaddress.IPv4Address, ipaddress.IPv6Address
# Global by the registries in part or in whole, but no place for a webhook: protocol assignments (Oracle's
# metadata among them), 6to4 relays, the host agent of Azure.
_REFUSED_V4 = tuple(map(ipaddress.IPv4Network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")))
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
# Python learns of new special networks only with its releases; these are missing in some or all 3.11
# releases.
_REFUSED_V6 = (
    ipaddress.IPv6Network("2001::/23"),
    ipaddress.IPv6Network("2001:db8::/32"),
    ipaddress.IPv6Network("3fff::/20"),
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (
    0x00005EFE,
    0x02005EFE,
)  # the third quarter of an address that tunnels to the IPv4 one in the fourth

_AUTHORITY = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)
_NAME = re.compile(r"(?=.{1,254}\Z)(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?", re.IGNORECASE)
# With a number as its last part a name is an IPv4 address to inet_aton: octal, hexadecimal or short.
_ENDS_IN_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?", re.IGNORECASE)
_WITHIN_LOOPBACK = re.compile(r"(?:.*\.)?localhost\.?", re.IGNORECASE)

AddressInfo = tuple[Any, Any, int, str, tuple[Any, ...]]


class TargetError(TimerwheelError):
    """A URL cannot be a push target; the message says why."""

    code = "illegal_target"


def is_public(text: str) -> bool:
    """Tell whether an IP address in canonical text is public; other text is not."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return _is_public_v4(address) if isinstance(address, _IPv4) else _is_public_v6(address)


def _is_public_v4(address: ipaddress.IPv4Address) -> bool:
    if address.is_multicast or address.is_reserved or any(address in net for net in _REFUSED_V4):
        return False
    return address.is_global


def _is_public_v6(address: ipaddress.IPv6Address) -> bool:
    """Addresses that embed an IPv4 address are as public as that address."""
    if address.scope_id is not None:
        return False
    tail = _IPv4(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped is not None or address in _NAT64:
        return _is_public_v4(tail)
    if address not in _GLOBAL_UNICAST or any(address in net for net in _REFUSED_V6):
        return False
    if address.sixtofour is not None:
        return _is_public_v4(address.sixtofour)
    if int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
        return _is_public_v4(tail)
    return address.is_global


def check_url(text: str, *, allow_private: bool) -> str:
    """Return the URL in the form in which it will be called; TargetError if it may not be a target.

    Looks nothing up: a name that resolves to a private address is refused at each connection instead.
    """
    url = _parse(text)
    host = url.raw_host or ""
    if not url.port:
        raise TargetError("the port of the URL must be from 1 to 65535")
    if ":" in host:
        _check_v6(host, allow_private=allow_private)
    elif _ENDS_IN_NUMBER.fullmatch(host):
        _check_v4(host, allow_private=allow_private)
    elif not _NAME.fullmatch(host):
        raise TargetError(f"{host[:80]!r} is not a valid host name")
    elif not allow_private and _WITHIN_LOOPBACK.fullmatch(host):
        raise _private(host)
    return str(url)


def _parse(text: str) -> URL:
    """Return the parts as the HTTP client will see them, so that both agree on the host."""
    if len(text) > URL_CHARACTERS_MAX:
        raise TargetError(f"the URL is longer than {URL_CHARACTERS_MAX} characters")
    if any(character <= " " or character in "\\\x7f" for character in text):
        raise TargetError("the URL contains a space, a backslash or a control character")
    found = _AUTHORITY.match(text)
    if found is None:
        raise TargetError("the URL must begin with http:// or https://")
    if found[1].startswith("[") and ":" not in found[1].partition("]")[0]:
        raise TargetError("the text in brackets is not an IPv6 address")
    if "@" in found[1]:
        raise TargetError("the URL contains a user name; send credentials in a header")
    if "#" in text:
        raise TargetError("the URL has a fragment, which is never sent")
    try:
        url = URL(text)
    except ValueError as error:
        raise TargetError(f"not a valid URL: {error}") from None
    if not url.raw_host or url.user is not None or url.password is not None:
        raise TargetError("the URL has no host")
    return url


def _check_v4(host: str, *, allow_private: bool) -> None:
    try:
        address = _IPv4(host)
    except ValueError:
        raise TargetError(f"{host[:80]!r} is not an IPv4 address; write four decimal numbers") from None
    if not allow_private and not _is_public_v4(address):
        raise _private(host)


def _check_v6(host: str, *, allow_private: bool) -> None:
    try:
        address = _IPv6(host)
    except ValueError:
        raise TargetError(f"{host[:80]!r} is not an IPv6 address") from None
    if "%" in host:
        raise TargetError("the URL names a network interface")
    if not allow_private and not _is_public_v6(address):
        raise _private(host)


def _private(host: str) -> TargetError:
    return TargetError(
        f"{host} is not a public address; to allow it, set push_private_targets (--push-private-targets)"
    )


def guarded_sockets(*, allow_private: bool) -> Callable[[AddressInfo], socket.socket]:
    """Creates the sockets of an HTTP client, but none for an address that is not public.

    The refusal is a PermissionError, which the client reports as a failure to connect. It does not say which
    address a name resolves to: a caller who manages subscriptions need not know the network of the service.
    """

    def make(info: AddressInfo) -> socket.socket:
        family, kind, protocol, _, address = info
        if not allow_private and not is_public(str(address[0])):
            logger.info(
                "refused a push: the host name resolves to %s, which is not a public address", address[0]
            )
            raise PermissionError(errno.EACCES, NOT_PUBLIC)
        return socket.socket(family, kind, protocol)

    return make
