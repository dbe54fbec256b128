"""Refuses requests that a page of another site makes a browser send.

A page of any origin can make its visitor's browser send a form or a text. It cannot read the answer, but the
message would be stored. And a page whose host name the attacker's DNS points to 127.0.0.1 has the same origin
as a service there, as far as the browser knows. Programs send none of the headers that are checked here.
"""

from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from multidict import istr

from timerwheel.api.http.route import SIGN

FETCH_SITE = istr("Sec-Fetch-Site")
OWN_SITES = frozenset({"same-origin", "none"})  # none: typed in, or a bookmark
ANY = "*"
HOSTS_KEPT = 256


def is_of_page(request: web.Request) -> bool:
    """Whether a browser sent this for a page, including the service's own."""
    return FETCH_SITE in request.headers or hdrs.ORIGIN in request.headers


def may_be_of_any_page(request: web.Request) -> bool:
    """Whether a page of any site could have made its visitor's browser send this GET, such as an image.

    Such a request has no `Origin`, and over plain HTTP to another machine no `Sec-Fetch-Site` either. A page
    cannot add a token or another header to it without a preflight request.
    """
    return (
        not is_of_page(request) and hdrs.AUTHORIZATION not in request.headers and SIGN not in request.headers
    )


def is_cross_site(request: web.Request, allowed: frozenset[str]) -> bool:
    """Whether a page of an origin that is not allowed made a browser send this.

    Pages cannot set these headers. Browsers send `Sec-Fetch-Site` only over https and to this machine;
    without it, the page's origin must be the called host.
    """
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and (origin in allowed or ANY in allowed):
        return False
    site = request.headers.get(FETCH_SITE)
    if site is not None:
        return site not in OWN_SITES
    return origin is not None and _host_of(origin) != request.headers.get(hdrs.HOST, "").lower()


@lru_cache(maxsize=HOSTS_KEPT)
def is_rebound(host: str) -> bool:
    """Whether this `Host`, sent to a loopback address, names another machine.

    Only a name can be rebound, not an address.
    """
    name = _hostname(host)
    if name in ("", "localhost") or name.endswith(".localhost"):
        return False
    try:
        ip_address(name)
    except ValueError:
        return True
    return False


def _host_of(origin: str) -> str:
    """Return host and port of an origin, as a browser writes them in `Host`."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _hostname(host: str) -> str:
    """Return the name or address in a `Host`, without port, brackets and trailing dot."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")
