"""`levels`: the delay levels of the running service."""

from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.output import IdTimeOutput


def levels(*, service: ServiceOptions, output: IdTimeOutput) -> None:
    """List the delay levels with the number of scheduled messages in each."""
    found = service.ask(lambda client: client.levels())
    output.listing(
        {"levels": found},
        ("#level", "delay", "#scheduled", "next due"),
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
