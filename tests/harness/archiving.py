"""A log with a bit of everything on a real disk, its archive, and what its engine says that waits."""

import asyncio
import functools
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness.consumers import ack, put, receive
from tests.harness.world import World
from tests.integration.runtime.test_retention import RETENTION_MS, age
from timerwheel.model.messages import MessageView, Outgoing
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec
from timerwheel.spark_jobs.archive.job import ArchivedLog, archive
from timerwheel.spark_jobs.archive.part import find_part
from timerwheel.spark_jobs.archive.restore import Restored, restore
from timerwheel.spark_jobs.archive.restored_log import restored_log
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.store.files import DiskFiles

SEGMENT_BYTES = 8192
CHUNK_BYTES = 2 * SEGMENT_BYTES
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
KEYED = Outgoing("orders", b"once", {"TIMER_DELAY_MS": str(2 * HOUR_MS)}, "order-17")
TOPICS = ("orders", "%odd|topic", "0042", "reports")


class ArchivedWorld(NamedTuple):
    """A data directory, its archive, and what waited at the end of its log."""

    data: Path
    archive: Path
    now_ms: int
    logs: list[ArchivedLog]
    waiting: list[MessageView]
    ids: dict[str, str]
    max_offsets: dict[str, int]


def on_disk(directory: Path, now_ms: int | None = None) -> World:
    world = World(directory)
    world.files = DiskFiles()
    world.limits["segment_size_bytes"] = SEGMENT_BYTES
    if now_ms is not None:
        world.clock.wall_ms = now_ms
    return world


def run_archive(spark: Any, progress: Any, data: Path, to: Path, **options: Any) -> ArchivedLog:
    options = {"now_ms": 1_800_000_000_000, "chunk_bytes_max": CHUNK_BYTES, **options}
    [log] = archive(spark, progress, find_logs([str(data)]), str(to), **options)
    return log


def run_restore(spark: Any, progress: Any, source: Path, data: Path, now_ms: int, **options: Any) -> Restored:
    part = find_part(str(source), options.pop("log_id", None), **options)
    staging = data.with_name(data.name + "-staging")
    staging.mkdir()
    with restored_log(data, SEGMENT_BYTES, "now") as target:
        return restore(spark, progress, part, target, str(staging), now_ms)


@functools.cache
def story_of(spark: Any, directory: Path) -> ArchivedWorld:
    """Lived once for all tests that read it."""
    directory = directory / "archiving"
    world = on_disk(directory / "node-1")
    return asyncio.run(_live(world, directory / "archive", spark, JobProgress(spark, show=False)))


async def _live(world: World, to: Path, spark: Any, progress: Any) -> ArchivedWorld:
    """Timers fired, recalled, rescheduled, moved by retention and keyed; groups, dead letters, a schedule.

    The log is archived twice, and retention removes in between what is archived.
    """
    engine = await world.open(retention_ms=RETENTION_MS, retention_archived_only=True)
    await put(world, topic="orders", invisible_ms=90_000)
    await engine.topics.change("tickets", ordered=True)
    moved = await world.send_ids(*[5 * HOUR_MS] * 6, *[4 * HOUR_MS + n for n in range(6)], body=b"kept")
    for topic in TOPICS[1:3]:
        moved += await world.send_ids(9 * DAY_MS, 500, topic=topic)
    ids = {"recalled_early": moved[0], "rescheduled": moved[1], "delivered": moved[-1]}
    await world.advance(500)
    await engine.recalls.recall(moved[0])
    await world.roll()
    first = run_archive(spark, progress, world.directory, to)
    assert await age(world) > 0
    [receipt] = await engine.sender.send([KEYED])
    ids["keyed"] = receipt.id
    await engine.recalls.reschedule(moved[1], {"TIMER_DELAY_MS": str(7 * HOUR_MS)})
    ids["recalled_late"] = moved[2]
    await engine.recalls.recall(moved[2])
    await world.send(*[700] * 12, body=b"soon")
    await engine.sender.send([Outgoing("orders", b"level", {"DELAY": "18", "__SHARDINGKEY": "s"})])
    daily = Recurrence(every_ms=DAY_MS)
    await engine.schedules.put("daily", ScheduleSpec(topic="reports", body=b"report", recurrence=daily))
    await world.advance(1_000)
    await put(world, topic="orders", group="hasty", max_attempts=1)
    [letter] = await receive(world, 1, group="hasty")
    await engine.groups.nack("orders", "hasty", [letter.receipt], delay_ms=0)
    await world.advance(60_000)
    got = await receive(world, 5)
    await ack(world, *got[:3])
    await world.roll()
    second = run_archive(spark, progress, world.directory, to)
    waiting = (await engine.messages.pending(limit=10_000)).messages
    max_offsets = {topic: engine.queues.queue_bounds(topic, 0)[1] for topic in TOPICS}
    now_ms = world.clock.now_ms()
    await engine.close()
    return ArchivedWorld(world.directory, to, now_ms, [first, second], waiting, ids, max_offsets)


def told(view: MessageView) -> tuple[Any, ...]:
    """What must be the same of a message after a restore: all but how often it was stored again."""
    properties = {name: text for name, text in view.properties.items() if name != "TIMER_ROLL_TIMES"}
    return view.id, view.topic, view.queue, view.due_ms, view.level, view.enqueue_ms, properties, view.body
