"""The calls of the console: its page and files, and what it shows live."""

from timerwheel.api.console.page import Pages
from timerwheel.api.http.needs import Need
from timerwheel.api.http.route import Route


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
