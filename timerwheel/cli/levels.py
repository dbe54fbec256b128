"""`levels`: the delay levels of the running service."""

from timerwheel.cli.connection import ask
from timerwheel.cli.form import prints_ids
from timerwheel.cli.options import JsonFlag, UrlOption, UtcFlag
from timerwheel.cli.output import Output
from timerwheel.client import DEFAULT_URL


@prints_ids
def levels(url: UrlOption = DEFAULT_URL, utc: UtcFlag = False, as_json: JsonFlag = False) -> None:
    """List the delay levels with the number of waiting messages in each."""
    found = ask(url, lambda client: client.levels())
    output = Output(utc=utc, as_json=as_json)
    output.listing(
        {"levels": found},
        ("#level", "delay", "#waiting", "next due"),
        [
            (
                str(level.level),
                level.text,
                f"{level.pending:,}",
                output.when(level.next_due_ms),
            )
            for level in found
        ],
        ids=[str(level.level) for level in found],
    )
