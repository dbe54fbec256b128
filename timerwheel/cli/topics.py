"""`topics list|set`: the topics of the running service."""

from typing import Annotated

import typer

from timerwheel.cli.connection import ask
from timerwheel.cli.options import JsonFlag, UrlOption
from timerwheel.cli.output import Output
from timerwheel.client import DEFAULT_URL


def list_topics(
    system: Annotated[bool, typer.Option("--system", help="The service's own topics too.")] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonFlag = False,
) -> None:
    """List the topics with what waits and what was delivered."""
    found = [topic for topic in ask(url, lambda client: client.topics()) if system or not topic.system]
    output = Output()
    if as_json:
        output.json({"topics": found})
        return
    output.table(
        ("topic", "#queues", "#delivered", "#waiting", "ordered"),
        [
            (
                topic.topic,
                str(len(topic.queues)),
                f"{topic.visible:,}",
                f"{topic.pending:,}",
                "by key" if topic.ordered else "-",
            )
            for topic in found
        ],
    )


def change(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    *,
    ordered: Annotated[
        bool,
        typer.Option(
            "--ordered/--unordered", help="One message of a sharding key at a time, for all groups."
        ),
    ],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonFlag = False,
) -> None:
    """Change a topic."""
    info = ask(url, lambda client: client.set_ordered(topic, ordered=ordered))
    output = Output()
    if as_json:
        output.json(info)
    else:
        output.line(f"topic {info.topic} is {'ordered by key' if info.ordered else 'not ordered'}")
