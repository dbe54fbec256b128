"""Histories: random work of a real engine, ended by a crash, as the data directory that it leaves."""

import contextlib
import random
from pathlib import Path

import msgspec

from tests.harness.drive import settle
from tests.harness.world import World
from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import GroupConfig
from timerwheel.model.admission import TASK_GROUP
from timerwheel.model.messages import Outgoing
from timerwheel.push.tasks.outcome import Ended, records_of
from timerwheel.push.tasks.task import Task, TaskOutcome, topic_of

TOPICS = ("orders", "tickets")
GROUPS = (("orders", "closers"), ("orders", "audit"), ("tickets", "printers"))
READER = ("tickets", "readers")
SPANS_MS = (5, 900, 3_000, 200_000, 9_000_000, 3 * 86_400_000, 40 * 86_400_000)
TASK_QUEUE = "mail"
TASKS = topic_of(TASK_QUEUE)
RETENTION_MS = 4_000_000


class History:
    """One engine and what was sent to it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(directory)
        self.ids: list[str] = []
        self.halves: list[str] = []
        self.receipts: list[tuple[str, str, str]] = []

    async def live(self, steps: int) -> "History":
        """Work for so many steps, crash, and leave on the real disk what the crash left."""
        await self.world.open(retention_ms=RETENTION_MS, segment_size_bytes=12_000)
        for _ in range(steps):
            step = self.random.choice(STEPS)
            with contextlib.suppress(
                TimerwheelError
            ):  # the message was delivered, the group is not there, ...
                await step(self)
        await self.world.engine.abandon()
        self.world.files = self.world.files.after_crash(self.random)
        for name, node in self.world.files.names_now.items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(node.data)
        return self

    def span_ms(self) -> int:
        return self.random.randint(1, self.random.choice(SPANS_MS))

    def outgoing(self) -> Outgoing:
        properties = {"TIMER_DELAY_MS": str(self.random.choice((0, self.span_ms(), self.span_ms())))}
        if self.random.random() < 0.2:
            properties = {"DELAY": str(self.random.randint(1, 18))}
        if self.random.random() < 0.3:
            properties["__SHARDINGKEY"] = self.random.choice("ab")
        if self.random.random() < 0.3:
            properties["TIMER_TTL_MS"] = str(self.span_ms())
        if self.random.random() < 0.2:
            properties["TIMER_MAX_ATTEMPTS"] = self.random.choice("124")
        key = f"key-{self.random.randint(0, 9)}" if self.random.random() < 0.2 else None
        topic, body = self.random.choice(TOPICS), self.random.randbytes(self.random.randint(0, 90))
        queue = self.random.choice((None, None, 0, 1))
        return Outgoing(topic, body, properties, key, queue=queue if topic == "tickets" else None)

    async def send(self) -> None:
        messages = [self.outgoing() for _ in range(self.random.choice((1, 1, 2, 7)))]
        self.ids += [receipt.id for receipt in await self.world.engine.sender.send(messages)]

    async def recall(self) -> None:
        if self.ids:
            await self.world.engine.recalls.recall(self.random.choice(self.ids))

    async def send_after_recall(self) -> None:
        topic, key = self.random.choice(TOPICS), f"key-{self.random.randint(0, 9)}"
        await self.world.engine.recalls.recall_key(topic, key)
        delay = {"TIMER_DELAY_MS": str(self.span_ms())}
        await self.world.engine.sender.send([Outgoing(topic, self.random.randbytes(9), delay, key)])

    async def replace(self) -> None:
        topic, key = self.random.choice(TOPICS), f"key-{self.random.randint(0, 9)}"
        delay = {"TIMER_DELAY_MS": str(self.random.choice((0, self.span_ms())))}
        message = Outgoing(topic, self.random.randbytes(9), delay, key, replaces=True)
        self.ids += [receipt.id for receipt in await self.world.engine.sender.send([message])]

    async def send_task(self) -> None:
        await self.world.engine.groups.put_own(TASKS, TASK_GROUP, GroupConfig(start="head"))
        callback = self.random.choice((None, "http://127.0.0.1:1/told"))
        task = Task(url="http://127.0.0.1:1/call", callback=callback, failure_callback=callback)
        key = f"key-{self.random.randint(0, 9)}" if self.random.random() < 0.2 else None
        message = task.message(TASK_QUEUE, self.random.randbytes(9), key)
        delay = {"TIMER_DELAY_MS": str(self.random.choice((0, 0, self.span_ms())))}
        message = msgspec.structs.replace(message, properties=delay)
        self.ids += [receipt.id for receipt in await self.world.engine.sender.send([message])]

    async def call_tasks(self) -> None:
        """Do what a queue does with the answers of its calls, but for the calls."""
        groups, now_ms = self.world.engine.groups, self.world.clock.now_ms()
        for delivery in await groups.receive(TASKS, TASK_GROUP, count_max=self.random.randint(1, 4)):
            if self.random.random() < 0.3:
                await groups.nack(TASKS, TASK_GROUP, [delivery.receipt], delay_ms=self.span_ms(), reason="r")
                continue
            found = await groups.message_of(TASKS, TASK_GROUP, delivery.receipt)
            task = None if found is None else Task.of(found[0].envelope)
            if found is None or task is None:
                continue
            state = self.random.choice(("succeeded", "failed", "cancelled"))
            outcome = TaskOutcome(state=state, finished_ms=now_ms, attempts=delivery.attempt)
            records = records_of(Ended(*found, task, TASK_QUEUE), outcome)
            await groups.conclude(
                TASKS, TASK_GROUP, delivery.receipt, records, given_up=self.random.random() < 0.1
            )

    async def reschedule(self) -> None:
        if self.ids:
            delay = str(self.random.choice((0, self.span_ms())))
            await self.world.engine.recalls.reschedule(
                self.random.choice(self.ids), {"TIMER_DELAY_MS": delay}
            )

    async def begin(self) -> None:
        message = self.outgoing()
        if message.dedup_key is None:
            self.halves.append((await self.world.engine.transactions.begin(message)).id)

    async def end_transaction(self) -> None:
        if self.halves:
            transactions = self.world.engine.transactions
            end = transactions.commit if self.random.random() < 0.7 else transactions.rollback
            await end(self.random.choice(self.halves))

    async def advance(self) -> None:
        await self.world.advance(self.span_ms())

    async def retain(self) -> None:
        await self.world.roll()
        await self.world.advance(RETENTION_MS + 1)
        await self.world.retention_turn()

    async def put_group(self) -> None:
        topic, group = self.random.choice(GROUPS)
        config = GroupConfig(
            max_attempts=self.random.randint(1, 3),
            invisible_ms=self.random.choice((900, 60_000)),
            max_age_ms=self.random.choice((None, self.span_ms())),
            expired=self.random.choice(("drop", "dead_letter")),
        )
        await self.world.engine.groups.put(topic, group, config)

    async def put_reader(self) -> None:
        start = self.random.choice(("head", "tail"))
        await self.world.engine.groups.put(*READER, GroupConfig(kind="offsets", start=start))

    async def commit(self) -> None:
        engine = self.world.engine
        queue = self.random.randrange(engine.queues.queues_of(READER[0]))
        end = engine.queues.queue_bounds(READER[0], queue)[1]
        engine.groups.offsets.commit(*READER, {queue: self.random.randint(0, end)})
        if self.random.random() < 0.7:
            await engine.groups.offsets.flush()

    async def move_reader(self) -> None:
        act = self.random.random()
        if act < 0.2:
            await self.world.engine.groups.delete(*READER)
        else:
            await self.world.engine.groups.rewind(*READER, offsets={0: self.random.randint(0, 9)})

    async def delete_group(self) -> None:
        await self.world.engine.groups.delete(*self.random.choice(GROUPS))

    async def rewind(self) -> None:
        topic, group = self.random.choice(GROUPS)
        rewind, queues = self.world.engine.groups.rewind, self.world.engine.queues.queues_of(topic)
        if self.random.random() < 0.5:
            await rewind(topic, group, to=self.random.choice(("head", "tail")))
        else:
            await rewind(topic, group, offsets={self.random.randrange(queues): self.random.randint(0, 9)})

    async def order(self) -> None:
        await self.world.engine.topics.change("tickets", ordered=self.random.random() < 0.7)

    async def grow(self) -> None:
        queues = self.world.engine.queues.queues_of("tickets") + self.random.choice((0, 1))
        await self.world.engine.topics.change("tickets", queues=queues, move_keys=True)

    async def receive(self) -> None:
        topic, group = self.random.choice(GROUPS)
        got = await self.world.engine.groups.receive(topic, group, count_max=self.random.randint(1, 6))
        self.receipts += [(topic, group, delivery.receipt) for delivery in got]

    async def acknowledge(self) -> None:
        for topic, group, receipt in self.some_receipts():
            await self.world.engine.groups.ack(topic, group, [receipt])

    async def give_back(self) -> None:
        for topic, group, receipt in self.some_receipts():
            await self.world.engine.groups.nack(topic, group, [receipt], delay_ms=self.span_ms(), reason="r")

    async def extend(self) -> None:
        for topic, group, receipt in self.some_receipts():
            await self.world.engine.groups.extend(topic, group, [receipt], self.span_ms())

    def some_receipts(self) -> list[tuple[str, str, str]]:
        return self.random.sample(self.receipts, min(len(self.receipts), self.random.randint(1, 3)))

    async def redrive(self) -> None:
        _, group = self.random.choice(GROUPS)
        office = self.world.engine.groups.dead
        act = self.random.choice((office.redrive, office.drop))
        await act(group, self.random.choice((None, [0], [1, 2])))

    async def delete_topic(self) -> None:
        topic = self.random.choice((*TOPICS, TASKS, "%DLQ%closers"))
        await self.world.engine.topic_deletions.delete(topic)
        if self.random.random() < 0.7:
            await settle(self.world.engine)

    async def purge_topic(self) -> None:
        topic = self.random.choice((*TOPICS, TASKS, "%DLQ%closers"))
        scheduled = self.random.random() < 0.5
        await self.world.engine.topic_purges.purge(topic, scheduled=scheduled, delivered=True)

    async def pause_topic(self) -> None:
        topics = self.world.engine.topics
        await self.random.choice((topics.pause, topics.resume))("tickets")

    async def crash(self) -> None:
        await self.world.crash(self.random)

    async def restart(self) -> None:
        await self.world.restart()


STEPS = (
    *([History.send] * 8 + [History.recall] * 2 + [History.reschedule] * 3 + [History.advance] * 5),
    *([History.receive] * 5 + [History.acknowledge] * 3 + [History.give_back] * 2 + [History.put_group] * 2),
    *(History.extend, History.rewind, History.delete_group, History.order, History.grow, History.redrive),
    *(History.put_reader, History.commit, History.commit, History.commit, History.move_reader),
    *(History.begin, History.begin, History.end_transaction, History.end_transaction),
    *(History.retain, History.retain, History.crash, History.restart, History.send_after_recall),
    *(History.delete_topic, History.purge_topic, History.pause_topic),
    *(History.replace, History.replace, History.send_task, History.send_task, History.call_tasks),
)
