"""The calls of the console: its page and files, and what it shows live."""

from functools import partial

from timerwheel.api.console.page import Pages
from timerwheel.api.http.needs import Need
from timerwheel.api.http.route import Route


def page_routes() -> list[Route]:
    """Return the routes of the page and its files, which hold no data and are not part of the API."""
    file = partial(
        Route,
        method="GET",
        needs=Need.OPEN,
        handler=Pages().file,
        answer=str,
        described=False,
        compresses=False,
    )
    return [
        file(
            path="/",
            name="console",
            summary="The console",
        ),
        file(
            path="/console/{file}",
            pattern="/console/{file:.+}",
            name="consoleFile",
            summary="A file of the console's page",
        ),
    ]
