"""The books: what was handed to the service, what it acknowledged, what came out, and whether that agrees.

One `Entry` per message, found again by the key in its body. What breaks a promise is written down as a
sentence in `wrongs`; the books never raise, so that one run tells everything that it found. Times are epoch
milliseconds of the wall clock, which is the service's own: both run on one machine.
"""

import base64
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from timerwheel.client import Message, Sent
from timerwheel.model.messages import State

WRONGS_MAX = 50


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Fate(StrEnum):
    """What the service owes."""

    UNANSWERED = "unanswered"  # the send was cut off: once or never, an array whole or not at all
    REFUSED = "refused"  # answered with an error: never
    OWED = "owed"  # acknowledged: once
    RECALLED = "recalled"  # the recall was acknowledged: never
    RETIRED = "retired"  # past retention before a cut-off recall or reschedule could be looked up


Queue = tuple[str, int]


@dataclass(frozen=True)
class Delivery:
    id: str
    key: str
    due_ms: int
    delivered_ms: int


@dataclass
class Entry:
    """One message; `due_ms` is as told by the newest answer, `acknowledged_ms` when that came."""

    key: str
    topic: str
    unit: int
    padding: bytes
    fate: Fate = Fate.UNANSWERED
    id: str = ""
    due_ms: int = 0
    acknowledged_ms: int = 0
    waited: bool = False
    rescheduled: bool = False
    place: tuple[Queue, int] | None = None

    @property
    def body(self) -> bytes:
        return self.key.encode() + b":" + self.padding


@dataclass
class Books:
    entries: dict[str, Entry] = field(default_factory=dict)
    queues: dict[Queue, dict[int, Delivery]] = field(default_factory=dict)
    retired: int = 0
    wrongs: list[str] = field(default_factory=list)
    _units: int = 0
    _min_offsets: dict[Queue, int] = field(default_factory=dict)

    def wrong(self, text: str) -> None:
        if len(self.wrongs) < WRONGS_MAX:
            self.wrongs.append(text)

    # ------------------------------------------------------------------ what goes in

    def write(self, topic: str, paddings: list[bytes]) -> list[Entry]:
        """New entries for one request, made before it is sent."""
        self._units += 1
        fresh = [Entry(f"k{len(self.entries) + i}", topic, self._units, p) for i, p in enumerate(paddings)]
        self.entries.update((entry.key, entry) for entry in fresh)
        return fresh

    def acknowledge(self, entry: Entry, sent: Sent, dues_ms: tuple[int, int]) -> None:
        """A send was answered; its due time must lie in `dues_ms`, both ends included."""
        if not dues_ms[0] <= sent.due_ms <= dues_ms[1]:
            self.wrong(f"{entry.key}: the answer says due {sent.due_ms}, asked for was {dues_ms}")
        entry.fate, entry.id, entry.due_ms = Fate.OWED, sent.id, sent.due_ms
        entry.acknowledged_ms = now_ms()
        entry.waited = sent.state is State.SCHEDULED

    def move(self, entry: Entry, due_ms: int, dues_ms: tuple[int, int]) -> None:
        """A reschedule was answered."""
        if not dues_ms[0] <= due_ms <= dues_ms[1]:
            self.wrong(f"{entry.key}: rescheduled to {due_ms}, asked for was {dues_ms}")
        entry.due_ms, entry.acknowledged_ms, entry.rescheduled = due_ms, now_ms(), True

    def learn(self, entry: Entry, message: Message, dues_ms: tuple[int, int] | None) -> None:
        """Look at a message whose recall (`dues_ms` None) or reschedule was cut off: it happened or not."""
        if message.state is State.RECALLED:
            if dues_ms is not None and entry.fate is not Fate.RECALLED:  # one may ask for what is over
                self.wrong(f"{entry.key}: recalled, but only a reschedule was asked for")
            entry.fate = Fate.RECALLED
        elif message.due_ms != entry.due_ms:
            if dues_ms is None:
                self.wrong(f"{entry.key}: due {message.due_ms}, but acknowledged was {entry.due_ms}")
            else:
                self.move(entry, message.due_ms, dues_ms)

    # ------------------------------------------------------------------ what comes out

    def begin_of(self, queue: Queue) -> int:
        """Where the service has said that a queue begins."""
        return self._min_offsets.get(queue, 0)

    def bounds(self, queue: Queue, min_offset: int, before: int) -> None:
        """The service says where a queue begins; that never goes back behind what it said before the call."""
        if min_offset < before:
            self.wrong(f"{queue} begins at {min_offset}; it began at {before} before")
        self._min_offsets[queue] = max(min_offset, self.begin_of(queue))

    def receive(self, queue: Queue, message: dict[str, Any]) -> None:
        """A message was read from a queue, for the first time or again."""
        body = message["body"].encode() if "body" in message else None
        key = (body or _decoded(message)).split(b":")[0].decode()
        delivery = Delivery(message["id"], key, message["due_ms"], message["delivered_ms"])
        offset = message["offset"]
        known = self.queues.setdefault(queue, {}).setdefault(offset, delivery)
        if known is not delivery:
            if known != delivery:
                self.wrong(f"{queue} offset {offset} was {known}, now it is {delivery}")
            return
        if not delivery.due_ms <= delivery.delivered_ms <= now_ms():
            self.wrong(f"{key}: delivered at {delivery.delivered_ms}, due {delivery.due_ms}")
        entry = self.entries.get(key)
        if entry is None:
            self.wrong(f"{queue} offset {offset}: {delivery} was never sent")
        elif entry.place is not None:
            self.wrong(f"{key} came twice: at {entry.place} and at {(queue, offset)}")
        else:
            entry.place = (queue, offset)
            if entry.topic != queue[0] or entry.body != (body or _decoded(message)):
                self.wrong(f"{key}: another topic or body than was sent")

    # ------------------------------------------------------------------ settling

    def outstanding(self, until_ms: int) -> list[Entry]:
        """What is owed by then and has not come."""
        return [
            e
            for e in self.entries.values()
            if e.fate is Fate.OWED and e.due_ms <= until_ms and e.place is None
        ]

    def settle(self, pending: list[Message], until_ms: int) -> None:
        """Check everything, given what the service says still waits; all due until `until_ms` is out."""
        waiting: dict[str, Message] = {}
        for message in pending:
            key = message.body.split(b":")[0].decode()
            if key in waiting:
                self.wrong(f"{key} waits twice")
            if key not in self.entries:
                self.wrong(f"{key} waits but was never sent")
            waiting[key] = message
        late = [e.key for e in self.outstanding(until_ms)]
        if len(late) > self.retired:
            self.wrong(f"{len(late)} acknowledged messages did not come: {late[:20]}")
        for entry in self.entries.values():
            self._settle_one(entry, waiting.get(entry.key), until_ms)
        self._settle_units(waiting)
        for queue, deliveries in self.queues.items():
            self._settle_order(queue, deliveries)

    def _settle_one(self, entry: Entry, waits: Message | None, until_ms: int) -> None:
        if entry.place is not None and waits is not None:
            self.wrong(f"{entry.key} came at {entry.place} and waits still")
        if entry.fate in {Fate.RECALLED, Fate.REFUSED} and (entry.place is not None or waits is not None):
            self.wrong(f"{entry.key} was {entry.fate}, yet it came or waits: {entry.place}")
        if entry.fate is not Fate.OWED:
            return
        if waits is not None and (waits.id, waits.due_ms) != (entry.id, entry.due_ms):
            self.wrong(f"{entry.key} waits as {waits.id} until {waits.due_ms}: {entry}")
        if entry.due_ms > until_ms and waits is None:
            self.wrong(f"{entry.key} is not due before {entry.due_ms} and does not wait: {entry}")
        if entry.place is not None:
            queue, offset = entry.place
            came = self.queues[queue][offset]
            if (came.id, came.due_ms) != (entry.id, entry.due_ms):
                self.wrong(f"{entry.key} came as {came}: {entry}")

    def _settle_units(self, waiting: dict[str, Message]) -> None:
        """An array that was cut off is there whole or not at all."""
        units: dict[int, list[bool]] = {}
        for entry in self.entries.values():
            if entry.fate is Fate.UNANSWERED:
                there = entry.place is not None or entry.key in waiting
                units.setdefault(entry.unit, []).append(there)
        for unit, there in units.items():
            if any(there) and sum(there) + self.retired < len(there):
                self.wrong(f"array {unit}: {sum(there)} of {len(there)} messages are there")

    def _settle_order(self, queue: Queue, deliveries: dict[int, Delivery]) -> None:
        """By due time, then as accepted; for those that were in the wheel before they fell due."""
        newest: tuple[int, int] = (0, 0)
        newest_key = ""
        for offset in sorted(deliveries):
            entry = self.entries.get(deliveries[offset].key)
            if entry is None or not entry.waited or entry.fate is not Fate.OWED:
                continue
            if entry.acknowledged_ms >= entry.due_ms:
                continue
            # A message's id begins with where it was first stored: the order of acceptance.
            at = (entry.due_ms, int(entry.id[:16], 16))
            if at < newest:
                self.wrong(f"{queue} offset {offset}: {entry.key} {at} after {newest_key} {newest}")
            newest, newest_key = max((newest, newest_key), (at, entry.key))


def _decoded(message: dict[str, Any]) -> bytes:
    return base64.b64decode(message["body_base64"])
