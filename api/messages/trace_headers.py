"""The headers `traceparent` and `tracestate` of a send: its sender's context, for each of its messages."""

from collections.abc import Iterable

from aiohttp import web
from multidict import istr

from timerwheel.model.trace_context import TRACEPARENT, TRACESTATE, context_of

_PARENT, _STATE = istr(TRACEPARENT), istr(TRACESTATE)


def put_context(request: web.Request, messages: Iterable[dict[str, str]]) -> None:
    """Put the context of the request among the properties of messages that were just read from it.

    A message that brings a context of its own keeps that. Headers that are malformed count for nothing.
    """
    parents = request.headers.getall(_PARENT, ())
    if len(parents) != 1:
        return
    state = ",".join(request.headers.getall(_STATE, ()))  # may come in parts, as any list
    context = context_of({TRACEPARENT: parents[0], TRACESTATE: state})
    if not context:
        return
    for properties in messages:
        if TRACEPARENT not in properties:
            properties.pop(TRACESTATE, None)  # of some other trace
            properties.update(context)
