"""`topics list|set`: the topics of the running service."""

from typing import Annotated

import typer

from timerwheel.cli.connection import ask
from timerwheel.cli.options import JsonFlag, UrlOption
from timerwheel.cli.output import Output
from timerwheel.client import DEFAULT_URL


def list_topics(
    system: Annotated[bool, typer.Option("--system", help="Include the service's own topics.")] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonFlag = False,
) -> None:
    """List the topics with their numbers of waiting and delivered messages."""
    found = [topic for topic in ask(url, lambda client: client.topics()) if system or not topic.system]
    Output(as_json=as_json).listing(
        {"topics": found},
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
            "--ordered/--unordered",
            help="Deliver the messages of each sharding key one at a time, in all groups.",
        ),
    ],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonFlag = False,
) -> None:
    """Set whether a topic delivers in order by sharding key."""
    info = ask(url, lambda client: client.set_ordered(topic, ordered=ordered))
    text = f"topic {info.topic} is {'ordered by key' if info.ordered else 'not ordered'}"
    Output(as_json=as_json).result(info, text)
