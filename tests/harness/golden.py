"""A data directory with something of everything in it, and what the service says of it: the golden files.

`python -m tests.harness.golden tests/golden/v2` makes those of a new format. The ones that are there stay as
they are: they were written by the programs of their time. See `doc/upgrade.md`.
"""

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.harness.drive import read_all
from tests.harness.receiver import Receiver
from tests.harness.tasking import Tasking
from tests.harness.world import World
from timerwheel import tokens
from timerwheel.engine import Engine
from timerwheel.errors import UnknownMessageError
from timerwheel.groups.config import Exponential, GroupConfig, GroupTerms
from timerwheel.model.messages import MessageView, Outgoing
from timerwheel.offline.backup.backup import back_up
from timerwheel.push.tasks.listing import Listing
from timerwheel.push.tasks.standings import Standings
from timerwheel.push.tasks.task_queue import TaskQueueOptions
from timerwheel.runtime.archived import Archived, write_archived
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec
from timerwheel.state.config_table import ConfigTable
from timerwheel.store.files import DiskFiles
from timerwheel.tokens import Scope, Token

SERVICE, BACKUP, EXPECTED = "service", "backup", "expected.json"
RETENTION_MS = 5_000
DAY_MS = 86_400_000
HOLD_MS = DAY_MS // 2
DELAYS_MS = (1_500, 90_000, 4 * 3_600_000, 40 * DAY_MS)  # one for each level of the wheel
GROUP = "closers"


async def make(directory: Path) -> None:
    """Write SERVICE, a data directory without an index, BACKUP of it, and EXPECTED."""
    world = World(directory / SERVICE)
    world.files = DiskFiles()
    await world.open(retention_ms=RETENTION_MS)
    await live(world)
    await world.restart()  # what is in memory only, such as parked messages, is not told
    now_ms = world.clock.now_ms()
    expected = {"now_ms": now_ms, "told": await told(world)}
    await world.engine.close()
    (directory / EXPECTED).write_bytes(msgspec.json.format(msgspec.json.encode(expected), indent=1) + b"\n")
    put_beside(world.directory, world.engine.core.log.log_id.hex(), now_ms)
    back_up(world.directory, directory / BACKUP, now_ms)
    shutil.rmtree(world.directory / "index")
    for place in (SERVICE, BACKUP):
        (directory / place / "lock").unlink()


async def live(world: World) -> None:
    """A life that leaves something of everything; the world is open with RETENTION_MS."""
    engine = world.engine
    config = GroupConfig(max_attempts=1, invisible_ms=HOLD_MS, backoff=Exponential(initial_ms=1_000))
    await engine.groups.put("orders", GROUP, config)
    await engine.topics.change("lanes", ordered=True)
    await engine.groups.put("lanes", "riders", GroupConfig(invisible_ms=HOLD_MS))
    await engine.sender.send([Outgoing("orders", b"dropped by retention")])
    [first] = await engine.groups.receive("orders", GROUP, terms=GroupTerms(create=True))
    await engine.groups.ack("orders", GROUP, [first.receipt])
    while engine.core.log.bases[0] == 0:  # until the log begins with the manifest `start`
        await world.roll()
        await world.advance(RETENTION_MS + 1)
        await world.retention_turn()
    await engine.schedules.put("daily", ScheduleSpec(topic="reports", recurrence=Recurrence(every_ms=DAY_MS)))
    await engine.sender.send([Outgoing("orders", b"at once %d" % n, {"TAGS": "a"}) for n in range(4)])
    lane = {"__SHARDINGKEY": "x"}
    await engine.sender.send([Outgoing("lanes", b"one", lane), Outgoing("lanes", b"two", lane)])
    await engine.sender.send([Outgoing("orders", b"keyed", {"DELAY": "18"}, "a key")])
    ids = await world.send_ids(*DELAYS_MS, *DELAYS_MS, topic="tickets", body="wörds".encode())
    await engine.recalls.recall(ids[4])
    await engine.recalls.reschedule(ids[5], {"TIMER_DELAY_MS": str(2 * DAY_MS)})
    done, given_back, _held = await engine.groups.receive("orders", GROUP, count_max=3)
    await engine.groups.ack("orders", GROUP, [done.receipt])
    await engine.groups.nack("orders", GROUP, [given_back.receipt], reason="broken")
    await engine.groups.receive("lanes", "riders", count_max=2, terms=GroupTerms(create=True))
    await limits_and_purges(world)
    await tasks(world)
    await world.advance(2_000)


async def limits_and_purges(world: World) -> None:
    """Messages with limits of their own, one that took the place of another, and topics that were changed."""
    engine = world.engine
    limits = {"TIMER_TTL_MS": "60000", "TIMER_MAX_ATTEMPTS": "3"}
    await engine.groups.put("limited", "workers", GroupConfig(max_age_ms=DAY_MS, expired="dead_letter"))
    await engine.sender.send([Outgoing("limited", b"at once", limits)])
    await engine.sender.send([Outgoing("limited", b"later", {**limits, "TIMER_DELAY_MS": str(DAY_MS)})])
    for body in (b"replaced", b"in its place"):
        kept = Outgoing("limited", body, {"TIMER_DELAY_MS": str(DAY_MS)}, "one", replaces=True)
        await engine.sender.send([kept])
    for _ in range(2):
        await engine.sender.send([Outgoing("purged", b"before"), Outgoing("purged", b"b", {"DELAY": "18"})])
    await engine.topic_purges.purge("purged", scheduled=True, delivered=True)
    await engine.sender.send([Outgoing("purged", b"after")])
    await engine.topics.pause("limited")


async def tasks(world: World) -> None:
    """A task of each state that stays, and a callback; the queue is paused, so that none begins."""
    async with Receiver() as receiver:
        receiver.behave |= {"bad": 410, "again": 500}
        tasking = Tasking(world, receiver)
        await tasking.start()
        values = {"queue": "mail", "headers": {"X-Of": "golden"}}
        done = await tasking.create("done", b"done", callback=receiver.url("told"), **values)
        failed = await tasking.create("bad", b"failed", **values)
        again = await tasking.create("again", b"again", backoff=Exponential(DAY_MS, 1.0, DAY_MS), **values)
        for task, state in ((done, "succeeded"), (failed, "failed"), (again, "retrying")):
            await tasking.until_state(task, state)
        await tasking.until(lambda: tasking.count("told") == 1)
        await tasking.until(lambda: world.engine.groups.info("%TASK%mail", "tasks").in_flight == 0)
        await tasking.tasks.put_queue("mail", TaskQueueOptions(paused=True, rate_limit=5))
        cancelled = await tasking.create("never", **values)
        await tasking.tasks.cancel(cancelled)
        await tasking.create("ready", **values)
        await tasking.create("later", delay_ms=DAY_MS, dedup_key="a task", **values)
        await tasking.push.close()


def put_beside(data: Path, log_id: str, now_ms: int) -> None:
    """What lies beside the log."""
    secret = tokens.new_secret()
    starts, digest = secret[: tokens.SHOWN_CHARACTERS], tokens.hash_of(secret)
    token = Token(
        name="shop", starts=starts, sha256=digest, scopes=(Scope.SEND,), topics=("orders",), made_ms=now_ms
    )
    tokens.create(data, token)
    write_archived(DiskFiles(), data, Archived(log_id, 0, "/backup/timers", now_ms))


async def told(world: World) -> dict[str, Any]:
    """What the service says of everything that a client can ask for, as JSON values."""
    engine = world.engine
    topics = sorted(one.topic for one in engine.queues.topics() if not one.system)
    letters = (await engine.groups.dead.page(GROUP)).letters
    delivered = {topic: [_message(one) for one in await read_all(engine, topic)] for topic in topics}
    found = {
        "waiting": [_message(one) for one in (await engine.messages.pending(limit=1_000)).messages],
        # A topic of which nothing is left may be forgotten.
        "delivered": {topic: messages for topic, messages in delivered.items() if messages},
        "groups": [
            [one.topic, one.group, one.ordered, one.lag, one.in_flight, one.waiting, one.ready, one.parked]
            for one in engine.groups.all()
        ],
        "dead": [[one.offset, one.origin_id, one.reason, one.attempts] for one in letters],
        "schedules": [[one.name, one.spec.topic, one.next_run_ms] for one in await engine.schedules.all()],
        "key": await _key(engine),
    }
    if queues := engine.control.items(ConfigTable.TASK_QUEUE):
        found["task queues"] = {name: {**value, "secrets": None} for name, value in queues.items()}
        found["tasks"] = [await _tasks(engine, name) for name in queues]
        found["paused"] = [topic for topic in topics if engine.topics.paused(topic)]
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
    return decoded


async def _tasks(engine: Engine, queue: str) -> list[list[object]]:
    page = await Listing(engine, Standings(engine, {})).page(queue, lambda _: True, 500, None)
    return [
        [one.id, one.state, one.url, one.header_names, one.attempts, one.finished_ms] for one in page.tasks
    ]


async def _key(engine: Engine) -> str | None:
    try:
        return await engine.keys.id_of("orders", "a key")
    except UnknownMessageError:
        return None  # it has ended


def _message(view: MessageView) -> list[object]:
    text = view.body.decode()
    return [view.id, view.state, view.due_ms, view.level, view.queue_offset, view.properties, text]


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
