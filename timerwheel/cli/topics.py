"""`topics list|show|set|pause|resume|purge|delete`: the topics of the running service."""

import sys
from typing import Annotated

import msgspec
import typer

from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.options import EtagFlag, IfMatchOption, YesFlag, confirm_or_exit
from timerwheel.cli.output import IdOutput, JsonOutput
from timerwheel.client import Client, NotFoundError, Topic, TopicDeletion, TopicPurged
from timerwheel.clock import SystemClock
from timerwheel.model.messages import GroupInfo, QueueInfo

_POLL_MS = 1_000
_KAFKA_WORDS = {True: "yes", False: "no", None: "-"}


def list_topics(
    everything: Annotated[
        bool, typer.Option("--all", "--system", help="Also the service's own topics, such as %DLQ%GROUP.")
    ] = False,
    *,
    service: ServiceOptions,
    output: IdOutput,
) -> None:
    """List the topics with their numbers of scheduled and delivered messages."""
    found = service.ask(lambda client: client.topics(reserved=everything))
    output.listing(
        {"topics": found},
        ("topic", "#queues", "#delivered", "#scheduled", "ordered", "consumers", "Kafka"),
        [
            (
                topic.topic,
                str(topic.queue_count or len(topic.queues)),
                f"{topic.visible:,}",
                f"{topic.pending:,}",
                "by key" if topic.ordered else "-",
                "paused" if topic.paused else "-",
                _KAFKA_WORDS[topic.to_kafka],
            )
            for topic in found
        ],
        ids=[topic.topic for topic in found],
    )


def show(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    *,
    etag: EtagFlag = False,
    service: ServiceOptions,
    output: IdOutput,
) -> None:
    """Show a topic: its options, its messages, and the groups that read it."""
    if etag:
        output.tag(service.ask(lambda client: client.topic_etag(topic)))
        return

    async def work(client: Client) -> tuple[Topic, list[GroupInfo]]:
        return await client.topic(topic), await client.groups(topic)

    info, groups = service.ask(work)
    state = "is being deleted" if info.ending else "paused" if info.paused else "active"
    output.details(
        info,
        [
            ("topic", info.topic),
            ("state", state),
            ("scheduled", f"{info.pending:,}"),
            ("delivered", f"{info.visible:,}"),
            ("order", "by sharding key" if info.ordered else "-"),
            ("Kafka", _KAFKA_WORDS[info.to_kafka]),
            ("queues", str(info.queue_count or len(info.queues))),
            *((f"queue {queue.queue}", _queue_words(queue)) for queue in info.queues),
            *((f"group {group.group}", f"lag {group.lag:,}") for group in groups),
        ],
        ids=[info.topic],
    )


def _queue_words(queue: QueueInfo) -> str:
    return f"offsets {queue.min_offset} to {queue.max_offset}"


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
    to_kafka: Annotated[
        bool | None,
        typer.Option(
            "--to-kafka/--not-to-kafka",
            help="Forward newly delivered messages to Kafka; or stop, and refuse Kafka records that name "
            "the topic.",
        ),
    ] = None,
    if_match: IfMatchOption = None,
    service: ServiceOptions,
    output: JsonOutput,
) -> None:
    """Set how many queues a topic has, whether it delivers in order by sharding key, or goes to Kafka."""
    if ordered is None and queues is None and to_kafka is None:
        raise typer.BadParameter("give --queues, --ordered, --unordered, --to-kafka or --not-to-kafka")
    info = service.ask(
        lambda client: client.change_topic(
            topic,
            ordered=ordered,
            queues=queues,
            move_keys=move_keys,
            to_kafka=to_kafka,
            if_match=if_match,
        ),
    )
    text = f"topic {info.topic} is {'ordered by key' if info.ordered else 'not ordered'}"
    if queues is not None:
        text += f" and has {info.queue_count} queue{'s' if info.queue_count > 1 else ''}"
    if to_kafka is not None:
        text += "; its messages go to Kafka from now on" if to_kafka else "; its messages do not go to Kafka"
    output.result(info, text)


def pause(
    topic: Annotated[str, typer.Argument(help="The topic.")], *, service: ServiceOptions, output: JsonOutput
) -> None:
    """Pause a topic: consumers get nothing until resume; sends and timers continue."""
    info = service.ask(lambda client: client.pause_topic(topic))
    output.result(info, f"topic {info.topic} is paused")


def resume(
    topic: Annotated[str, typer.Argument(help="The topic.")], *, service: ServiceOptions, output: JsonOutput
) -> None:
    """Deliver messages of a paused topic to consumers again."""
    info = service.ask(lambda client: client.resume_topic(topic))
    output.result(info, f"topic {info.topic} is not paused")


def purge(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    *,
    scheduled: Annotated[bool, typer.Option("--scheduled", help="Recall its scheduled messages.")] = False,
    delivered: Annotated[
        bool, typer.Option("--delivered", help="Remove delivered messages for all groups and readers.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be purged.")] = False,
    yes: YesFlag = False,
    service: ServiceOptions,
    output: JsonOutput,
) -> None:
    """Purge a topic's messages. The topic, its options, groups, schedules and subscriptions stay.

    You see the counts and confirm before anything is purged. Ctrl-C interrupts it; repeat it to finish.
    """
    if not (scheduled or delivered):
        raise typer.BadParameter("give --scheduled, --delivered or both")

    def run(*, dry: bool) -> TopicPurged:
        return service.ask(
            lambda client: client.purge_topic(topic, scheduled=scheduled, delivered=delivered, dry_run=dry),
        )

    if dry_run or not yes:
        counted = run(dry=True)
        if dry_run:
            output.result(counted, f"would purge {_purge_words(counted)}")
            return
        confirm_or_exit(f"Purge {_purge_words(counted)}?")
    purged = run(dry=False)
    missed = f"\n  {purged.missed:,} fell due during the call and are delivered" if purged.missed else ""
    output.result(purged, f"purged {_purge_words(purged)}{missed}")


def _purge_words(purged: TopicPurged) -> str:
    groups = ", ".join(f"{one.group} ({one.dropped:,} messages left)" for one in purged.groups if one.dropped)
    counts = f"{purged.scheduled:,} scheduled and {purged.delivered:,} delivered messages"
    return f"topic {purged.topic} of {counts}" + (f"\n  groups: {groups}" if groups else "")


def delete(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted.")] = False,
    yes: YesFlag = False,
    if_match: IfMatchOption = None,
    service: ServiceOptions,
    output: JsonOutput,
) -> None:
    """Delete a topic with its messages, groups, schedules and subscriptions.

    You see what will be deleted and confirm it; an empty topic is deleted without a question. Ctrl-C after
    that ends only the command: the service finishes the deletion.
    """
    if dry_run or not yes:
        planned = service.ask(lambda client: client.delete_topic(topic, dry_run=True, if_match=if_match))
        if dry_run:
            output.result(planned, f"would delete {_words(planned)}")
            return
        if not _is_empty(planned):
            confirm_or_exit(f"Delete {_words(planned)}?")
    deletion = service.ask(lambda client: _deleted(client, topic, if_match))
    output.result(deletion, f"deleted {_words(deletion)}")


def _is_empty(planned: TopicDeletion) -> bool:
    messages = planned.pending + planned.visible
    return not (messages or planned.groups or planned.schedules or planned.subscriptions)


async def _deleted(client: Client, topic: str, if_match: str | None) -> TopicDeletion:
    deletion = await client.delete_topic(topic, if_match=if_match)
    if deletion.state == "ending":
        clock = SystemClock()
        print(f"deleting {topic}: recalling its scheduled messages", file=sys.stderr)
        while (left := await _pending(client, topic)) is not None:
            print(f"{left:,} left", file=sys.stderr)
            await clock.sleep_for(_POLL_MS)
    return msgspec.structs.replace(deletion, state="deleted")


async def _pending(client: Client, topic: str) -> int | None:
    """Return how many timers a topic that is being deleted has left; None once it is deleted."""
    try:
        info = await client.topic(topic)
    except NotFoundError:
        return None
    return info.pending if info.ending else None


def _words(deletion: TopicDeletion) -> str:
    groups = [f"{one.group} ({one.left:,} messages left)" for one in deletion.groups]
    named = {"groups": groups, "schedules": deletion.schedules, "subscriptions": deletion.subscriptions}
    lines = [f"\n  {what}: {', '.join(names)}" for what, names in named.items() if names]
    counts = f"{deletion.pending:,} scheduled and {deletion.visible:,} delivered messages"
    return f"topic {deletion.topic} with {counts}{''.join(lines)}"
