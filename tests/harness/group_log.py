"""Logs with records of consumer groups, those of earlier versions too, written without an engine.

`GroupLog` writes what it is told and lets it take effect, as the service does. `RandomGroups` lives at
random: first as an earlier version, which kept its leases in the log, then for a while as this one.
"""

import random
from pathlib import Path

import msgspec

from tests.harness import old_leases
from timerwheel.groups.config import GroupConfig
from timerwheel.state import lease_records
from timerwheel.state.config_table import ConfigTable, Put, encode_puts
from timerwheel.state.groups import DEAD_QUEUE, GroupState, Item, ItemState, dead_topic
from timerwheel.state.log_manifest import LogStart, write_start
from timerwheel.state.state import LogState
from timerwheel.store.files import DiskFiles
from timerwheel.store.log import CommitLog
from timerwheel.store.moved_timer import moved, topic_of
from timerwheel.store.record import Kind, encode, unit_of
from timerwheel.store.table import table_of

BEGIN_MS = 1_800_000_000_000
LOG_ID = bytes(range(16))
CONFIG = msgspec.to_builtins(GroupConfig())


class GroupLog:
    """A log in `data`, and the state that follows from it."""

    def __init__(self, data: Path, segment_size_bytes: int = 2_000) -> None:
        self.data = data
        self.log = CommitLog(data / "log", DiskFiles(), segment_size_bytes)
        self.log.open(new_log_id=LOG_ID, now_ms=BEGIN_MS)
        self.state = LogState(lambda: self.log.bases)
        self.now_ms = BEGIN_MS

    def store(self, *records: bytes) -> list[int]:
        """Store a unit and let it take effect; returns the offsets of its records."""
        unit = unit_of(list(records))
        [at] = self.log.append([unit], sync=False, now_ms=self.now_ms).offsets
        offsets = []
        for record in unit:
            offsets.append(at)
            at += len(record)
        table = table_of(unit, [topic_of(record) for record in unit], offsets)
        self.state.apply(table, self.log.tail, lambda places: [unit[place] for place in places])
        return offsets

    def close(self) -> None:
        """Close the log; its data directory is that of a service that was killed."""
        self.log.sync()
        self.log.close()

    def message(self, topic: str, queue: int = 0, body: bytes = b"body", properties: bytes = b"") -> bytes:
        """A message that is delivered at once."""
        return encode(
            Kind.MESSAGE,
            topic.encode(),
            properties,
            body,
            store_ms=self.now_ms,
            due_ms=self.now_ms,
            enqueue_ms=self.now_ms,
            queue=queue,
        )

    def send(self, topic: str, queue: int = 0, *, count: int = 1, **content: bytes) -> int:
        """Deliver messages; returns the log offset of the first."""
        return self.store(*(self.message(topic, queue, **content) for _ in range(count)))[0]

    def put(self, table: str, key: str, value: object) -> int:
        """Change one setting; returns the offset of the record."""
        return self.store(encode_puts([Put(table, key, value)], self.now_ms))[0]

    def group(self, name: str, **config: object) -> GroupState:
        """A group, made if it is new."""
        self.put(ConfigTable.GROUP, name, CONFIG | config)
        return self.state.groups.by_name[name]

    def fire(self, name: str, item: Item) -> int:
        """The timer of an item fires; returns the offset of the record."""
        self.now_ms = max(self.now_ms, item.due_ms)
        args = (item.queue, item.root, item.offset, item.due_ms, self.now_ms)
        return self.store(lease_records.ready_again(name.encode(), *args))[0]

    def drop_before(self, base: int) -> None:
        """Remove the segments before one, as retention does: it stores their timers again, and a manifest."""
        bases = [one for one in self.log.bases if one < base]
        for group in self.state.groups:
            for item in list(group.items.values()):
                if item.timed and item.offset < base:
                    self.store(moved(self.log.read(item.offset), item.offset, self.now_ms))
        firsts: dict[tuple[str, int], int] = {}
        for one in bases:
            table = self.log.segment_table(one)
            for row in table.rows[table.rows["kind"] == Kind.MESSAGE]:
                place = (table.topics[row["topic"]], int(row["queue"]))
                if "/" not in place[0]:
                    found = self.state.queue(self.state.topic(place[0]), place[1])
                    found.min_offset += 1
        for topic in self.state.topics_by_id:
            for number, queue in topic.queues.items():
                firsts[topic.name, number] = queue.min_offset
                self.state.forget_dead(topic.id, queue.min_offset)
        rows = [(name, number, first) for (name, number), first in firsts.items()]
        settings = self.state.dump_settings()
        write_start(self.log, LogStart(base, rows, self.state.until, settings))
        self.log.drop_before(base)


class RandomGroups:
    """Random work of several groups; steps of an earlier version, then few or as many of this one."""

    TOPICS = ("orders", "tickets")
    NAMES = ("orders/g", "orders/h", "tickets/g")

    def __init__(self, data: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.log = GroupLog(data, 3_000)
        self.over: list[tuple[str, int]] = []  # (group, root) of items that another retry replaced, or ended

    def live(self, steps: int) -> "RandomGroups":
        for table, count in ((OLD, steps), (NEW, self.dice.choice((steps // 10, steps)))):
            for _ in range(count):
                self.log.now_ms += self.dice.randint(0, 5)
                self.dice.choice(table)(self)
        self.log.close()
        return self

    def name(self) -> str:
        return self.dice.choice(self.NAMES)

    def some_group(self) -> GroupState | None:
        return self.log.state.groups.by_name.get(self.name())

    def some_item(self, group: GroupState | None, *states: ItemState) -> Item | None:
        items = [] if group is None else [item for item in group.items.values() if item.state in states]
        return self.dice.choice(items) if items else None

    def some_place(self, group: GroupState) -> tuple[int, int]:
        """A queue, and an offset there that the group has neither done nor holds; it may not exist yet."""
        queue = self.dice.randint(0, 1)
        return queue, group.passed_of(queue).next_gap(self.dice.randint(0, 30))

    def later_ms(self) -> int:
        return self.log.now_ms + self.dice.randint(1, 60)

    # ------------------------------------------------------------------ of any version

    def send(self) -> None:
        topic = self.dice.choice((*self.TOPICS, "%DLQ%g", "%DLQ%h"))
        queue = 0 if topic.startswith("%") else self.dice.randint(0, 1)
        self.log.send(topic, queue, count=self.dice.randint(1, 4))

    def make(self) -> None:
        name = self.name()
        self.log.group(name, max_attempts=self.dice.randint(1, 9))

    def set(self) -> None:
        key = self.dice.choice(self.NAMES)
        table = self.dice.choice((ConfigTable.TOPIC, "leases", "unheard of"))
        self.log.put(table, key, self.dice.choice((None, {"some": "value"}, [[0, 1, 2, 3, 4, 5]])))

    def forget(self) -> None:
        """Rewind a group, or delete it."""
        group = self.some_group()
        if group is None:
            return
        ends = [
            lease_records.end(group.name.encode(), i, self.log.now_ms)
            for i in group.items.values()
            if i.timed
        ]
        self.over += [(group.name, root) for root in group.by_root]
        cursors = {str(queue): self.dice.randint(0, 9) for queue in range(2)}
        put = Put(ConfigTable.CURSOR, group.name, cursors)
        if self.dice.random() < 0.4:
            put = Put(ConfigTable.GROUP, group.name, None)
        self.log.store(*ends, encode_puts([put], self.log.now_ms))
        if put.table == ConfigTable.GROUP and self.dice.random() < 0.5:
            name = group.name.encode()  # what was under way still reaches the log
            self.log.store(lease_records.ack(name, 0, 3, 5, self.log.now_ms))

    def fire(self) -> None:
        group = self.some_group()
        item = self.some_item(group, ItemState.LEASED, ItemState.WAITING)
        if group is not None and item is not None:
            self.log.fire(group.name, item)

    def end(self) -> None:
        group = self.some_group()
        item = self.some_item(group, *ItemState)
        if group is not None and item is not None:
            self.over.append((group.name, item.root))
            record = lease_records.end(group.name.encode(), item, self.log.now_ms)
            letter = self.log.message(dead_topic(group.group))
            self.log.store(*[letter] * (self.dice.random() < 0.3), record)

    def end_again(self) -> None:
        """An acknowledgement that was under way when its lease was over: nothing ends."""
        if self.over:
            name, root = self.dice.choice(self.over[-3:])
            queue, queue_offset = 0, self.dice.randint(0, 9)
            item = Item(queue, queue_offset, ItemState.READY, root=root)
            self.log.store(lease_records.end(name.encode(), item, self.log.now_ms))

    def redrive(self) -> None:
        group = self.some_group()
        if group is None:
            return
        letters = self.log.state.topics.get(dead_topic(group.group))
        queue = None if letters is None else letters.queues.get(0)
        if queue is None or queue.min_offset == queue.next_offset:
            return
        at = self.dice.randrange(queue.min_offset, queue.next_offset)
        if not self.log.state.groups.dead_of(letters.id).has(at):
            return
        take = lease_records.take_dead(letters.name.encode(), at, self.log.now_ms)
        again = lease_records.redrive(group.name.encode(), (DEAD_QUEUE, at), self.log.now_ms)
        self.log.store(*[again] * (self.dice.random() < 0.7), take)

    def retain(self) -> None:
        bases = self.log.log.bases
        if len(bases) > 3 and self.dice.random() < 0.15:
            self.log.drop_before(bases[self.dice.randint(1, len(bases) - 2)])

    # ------------------------------------------------------------------ of earlier versions

    def old_lease(self) -> None:
        group = self.some_group()
        if group is None:
            return
        name, now_ms = group.name.encode(), self.log.now_ms
        queue = self.dice.randint(0, 1)
        place = (queue, group.passed_of(queue).low + self.dice.choice((0, 0, 2)))
        records = [old_leases.lease(name, place, now_ms, self.later_ms())]
        if self.dice.random() < 0.4:
            records = [old_leases.hold(name, place, now_ms, self.dice.randint(1, 3))]
        self.log.store(*records)

    def old_lease_again(self) -> None:
        group = self.some_group()
        item = self.some_item(group, ItemState.READY, ItemState.PARKED)
        if group is not None and item is not None and item.key in group.ready:
            self.over.append((group.name, item.root))
            place = (item.queue, item.queue_offset)
            self.log.store(old_leases.lease(group.name.encode(), place, self.log.now_ms, self.later_ms()))

    def old_retime(self) -> None:
        group = self.some_group()
        item = self.some_item(group, ItemState.LEASED)
        if group is not None and item is not None:
            ended = self.dice.random() < 0.5
            args = (group.name.encode(), item, self.log.now_ms, self.later_ms())
            self.log.store(old_leases.retime(*args, ended=ended))

    def pass_over(self) -> None:
        group = self.some_group()
        if group is not None:
            cursors = {str(queue): low + self.dice.randint(0, 3) for queue, low in group.cursors.items()}
            self.log.put(ConfigTable.PASSED, group.name, cursors)

    # ------------------------------------------------------------------ of this version

    def ack(self) -> None:
        group = self.some_group()
        if group is not None:
            queue, first = self.some_place(group)
            count = self.dice.choice((1, 1, 5))
            held = (item.queue_offset for item in group.items.values() if item.queue == queue)
            end = min([first + count, *(at for at in held if at > first)])
            given_up = self.dice.random() < 0.2
            args = (group.name.encode(), queue, first, end, self.log.now_ms)
            self.log.store(lease_records.ack(*args, given_up=given_up))

    def retry(self) -> None:
        group = self.some_group()
        if group is None:
            return
        name, now_ms, ended = group.name.encode(), self.log.now_ms, self.dice.random() < 0.5
        item = self.some_item(group, ItemState.READY)
        records = []
        if item is not None and self.dice.random() < 0.7:
            self.over.append((group.name, item.root))
            place, attempt = (item.queue, item.queue_offset), item.attempt + 1
        else:
            place, attempt = self.some_place(group), 1
            if self.dice.random() < 0.3:
                records = [lease_records.hold(name, place, now_ms, self.dice.randint(100, 10**9))]
        records += [lease_records.retry(name, place, attempt, now_ms, self.later_ms(), ended=ended)]
        if ended:
            told = {"places": [list(place)], "reason": "a reason"}
            records += [encode_puts([Put(ConfigTable.FAILURE, group.name, told)], now_ms)]
        self.log.store(*records)


_ANY = (
    *[RandomGroups.send] * 4,
    *[RandomGroups.fire] * 4,
    *[RandomGroups.end] * 4,
    *[RandomGroups.make] * 2,
    *[RandomGroups.redrive] * 2,
    *(RandomGroups.set, RandomGroups.forget, RandomGroups.retain),
    *[RandomGroups.end_again] * 3,
)
OLD = (
    *_ANY,
    *[RandomGroups.old_lease] * 8,
    *[RandomGroups.old_lease_again] * 4,
    *[RandomGroups.old_retime] * 4,
    *[RandomGroups.pass_over] * 2,
)
NEW = (*_ANY, *[RandomGroups.ack] * 8, *[RandomGroups.retry] * 8)
