"""Refuses requests that a page of another site makes a browser send.

A page of any origin may have its visitor's browser send a form or a text, and never sees the answer: a
message would be stored all the same. And a page whose name the attacker's DNS turns to 127.0.0.1 is, to the
browser, of the same origin as a service there. Programs send none of the headers that are looked at here.
"""

from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from multidict import istr

from timerwheel.api.http.needs import SIGN

FETCH_SITE = istr("Sec-Fetch-Site")
OWN_SITES = frozenset({"same-origin", "none"})  # none: typed in, or a bookmark
ANY = "*"
HOSTS_KEPT = 256


def is_of_page(request: web.Request) -> bool:
    """Whether a browser sent this for a page, even one of the service itself."""
    return FETCH_SITE in request.headers or hdrs.ORIGIN in request.headers


def may_be_of_any_page(request: web.Request) -> bool:
    """Whether a page of any site could have had its visitor's browser send this GET, as for an image.

    Such a request has no `Origin`, and over plain HTTP to another machine no `Sec-Fetch-Site` either. A page
    cannot add a token or a header of its own to it without the browser asking first.
    """
    return (
        not is_of_page(request) and hdrs.AUTHORIZATION not in request.headers and SIGN not in request.headers
    )


def is_cross_site(request: web.Request, allowed: frozenset[str]) -> bool:
    """Whether a page of an origin that is not allowed made a browser send this.

    Browsers let no page set these headers. `Sec-Fetch-Site` is sent to https and to this machine only, so
    without it the page's origin must be the host that is called.
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

    An address cannot be rebound, only a name can.
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
