"""The calls of the console: its page and files, and what it shows live."""

from timerwheel.api.console.page import Pages
from timerwheel.api.gate import Gate
from timerwheel.api.live import LiveCalls
from timerwheel.api.routes.route import ENGINE, EVENTS, Route
from timerwheel.api.security.needs import Need


def live_routes(gate: Gate) -> list[Route]:
    """What happens now, for the console and for whoever else looks on."""
    calls = LiveCalls(gate)
    return [
        Route(
            method="GET",
            path="/v1/live",
            name="live",
            summary="What happens now, as server-sent events that go on",
            needs=Need.TOKEN,
            handler=calls.live,
            head=calls.head,
            answer=str,
            answer_kind=EVENTS,
            problems=ENGINE,
        ),
    ]


def page_routes() -> list[Route]:
    """The page and its files: they hold no data, and are no part of the API."""
    pages = Pages()
    return [
        Route(
            method="GET",
            path="/",
            name="console",
            summary="The console",
            needs=Need.OPEN,
            described=False,
            compresses=False,
            handler=pages.page,
            answer=str,
        ),
        Route(
            method="GET",
            path="/console/{file}",
            pattern="/console/{file:.+}",
            name="consoleFile",
            summary="A part of the console's page",
            needs=Need.OPEN,
            described=False,
            compresses=False,
            handler=pages.file,
            answer=str,
        ),
    ]
