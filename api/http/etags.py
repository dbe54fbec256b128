"""`ETag`, `If-Match` and `If-None-Match`: a change of what the client has seen, or none (RFC 9110, 13).

A tag covers what a change can change; see `timerwheel.model.precondition`. Comparison is strong, so a weak
tag matches nothing. What is unknown, or comes too late, is answered as without these headers.
"""

import re

from aiohttp import hdrs, web
from multidict import istr

from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import Handler
from timerwheel.model.precondition import ALWAYS, Precondition

IF_MATCH, IF_NONE_MATCH, ETAG = istr("If-Match"), istr("If-None-Match"), hdrs.ETAG
TAGS_MAX = 100
REFUSED = "invalid_field"

# A tag of a list, with the comma behind it: there may be commas in the tag, too.
_TAG = re.compile(r'[ \t]*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"[ \t]*(,(?=.)|$)')


def precondition(request: web.Request) -> Precondition:
    """Return what the headers ask of the resource; raises `RequestError` invalid_field."""
    if IF_MATCH not in request.headers and IF_NONE_MATCH not in request.headers:
        return ALWAYS
    tags, exists = _tags(request, IF_MATCH)
    others, is_new = _tags(request, IF_NONE_MATCH)
    if others is not None:
        raise RequestError("invalid_field", f"{IF_NONE_MATCH} may only be *, which means: create it")
    if is_new and request.method != hdrs.METH_PUT:
        raise RequestError("invalid_field", f"{IF_NONE_MATCH}: * is for PUT, which may create the resource")
    return Precondition(tags, exists, is_new)


def refusing(handler: Handler) -> Handler:
    """Wrap a change that cannot honour a condition: with one it raises `RequestError` invalid_field."""

    async def refuse_or_handle(request: web.Request) -> web.StreamResponse:
        for name in (IF_MATCH, IF_NONE_MATCH):
            if name in request.headers:
                raise RequestError(REFUSED, f"{name}: this call has no conditions; leave it out here")
        return await handler(request)

    return refuse_or_handle


def tagged(response: web.Response, tag: str) -> web.Response:
    """Return the response with the tag of the resource in its header."""
    response.headers[ETAG] = f'"{tag}"'
    return response


def _tags(request: web.Request, name: istr) -> tuple[frozenset[str] | None, bool]:
    """Return the strong tags in a header, None without it, and whether it is `*` instead."""
    given = request.headers.getall(name, [])
    if not given:
        return None, False
    if [one.strip() for one in given] == ["*"]:
        return None, True
    text, at, count = ",".join(given), 0, 0
    found: set[str] = set()
    while at < len(text) or not count:
        tag, count = _TAG.match(text, at), count + 1
        if tag is None or count > TAGS_MAX:
            raise RequestError(
                "invalid_field", f'{name} must be * or up to {TAGS_MAX} tags in quotes, such as "5f0c"'
            )
        if tag[1] is None:
            found.add(tag[2])
        at = tag.end()
    return frozenset(found), False
