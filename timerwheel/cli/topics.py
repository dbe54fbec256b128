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
                str(topic.queue_count or len(topic.queues)),
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
        bool | None,
        typer.Option(
            "--ordered/--unordered",
            help="Deliver the messages of each sharding key one at a time, in all groups.",
        ),
    ] = None,
    queues: Annotated[
        int | None, typer.Option("--queues", help="Number of queues; it can grow, but not shrink.")
    ] = None,
    move_keys: Annotated[
        bool,
        typer.Option(
            "--move-keys",
            help="Let more --queues move sharding keys of an ordered topic; a key's order may break once.",
        ),
    ] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonFlag = False,
) -> None:
    """Set how many queues a topic has, and whether it delivers in order by sharding key."""
    if ordered is None and queues is None:
        raise typer.BadParameter("give --queues, --ordered or --unordered")
    info = ask(
        url,
        lambda client: client.change_topic(topic, ordered=ordered, queues=queues, move_keys=move_keys),
    )
    text = f"topic {info.topic} is {'ordered by key' if info.ordered else 'not ordered'}"
    if queues is not None:
        text += f" and has {info.queue_count} queue{'s' if info.queue_count > 1 else ''}"
    Output(as_json=as_json).result(info, text)
