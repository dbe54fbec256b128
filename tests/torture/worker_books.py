"""The books of workers: what the producer was answered, what each worker noted, and whether that agrees.

Nobody's clock is asked. A receipt begins with the place of its lease in the commit log, so the receipts of a
message have one order, whoever got them and whoever was killed: the order in which they were handed out. Thus

1. attempts rise along that order, and no receipt or attempt is given to two;
2. a receipt whose acknowledgement was answered is its message's last, for what is handed out after the
   answer lies behind it in the log;
3. at the end the last receipt of each message was acknowledged, or may have been, or the message is dead;
4. in an ordered topic all of a message's receipts lie before those of the next with the same key.

A receipt that a worker was given and could not note before it was killed makes a gap in the attempts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from timerwheel.client import DeadLetter, Message

LANE = "__SHARDINGKEY"


@dataclass
class Held:
    """One receipt, and what came of it."""

    receipt: str
    attempt: int
    worker: str
    acking: int = 0
    answered: int = 0
    acked: bool = False
    nacked: bool = False

    @property
    def place(self) -> int:
        """Where its lease lies in the log."""
        return int(self.receipt[:16], 16)

    @property
    def perhaps_acked(self) -> bool:
        """Acknowledged, or asked for without an answer."""
        return self.acked or self.acking > self.answered


@dataclass
class Entry:
    """One message that was sent, by its deduplication key; `id` is the first it was told under."""

    key: str
    topic: str
    text: str
    lane: str
    id: str = ""
    answered: bool = False
    held: list[Held] = field(default_factory=list)


@dataclass
class WorkerBooks:
    """The producer writes `entries`, `read` adds what the journals of workers say."""

    attempts_max: int
    entries: dict[str, Entry] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)
    _receipts: dict[str, Held] = field(default_factory=dict)
    _read: dict[Path, int] = field(default_factory=dict)

    # ------------------------------------------------------------------ what goes in

    def write(self, topic: str, text: str, lane: str) -> Entry:
        """A message that is about to be sent; the text begins with its key."""
        key = text.split(":", maxsplit=1)[0]
        return self.entries.setdefault(key, Entry(key, topic, text, lane))

    def answer(self, entry: Entry, message_id: str, *, duplicate: bool) -> None:
        """The service says that it has it under this id."""
        self.counts["duplicates"] += duplicate
        if entry.answered and not duplicate:
            self.wrongs.append(f"{entry.key} is {entry.id}, and was stored once more as {message_id}")
        elif entry.id and entry.id != message_id:
            self.wrongs.append(f"{entry.key} was answered as {entry.id}, then as {message_id}")
        entry.id, entry.answered = entry.id or message_id, True

    def read(self, journals: Path) -> None:
        """Read what workers wrote since; a journal's last line may be cut."""
        for path in sorted(journals.iterdir()):
            with path.open("rb") as journal:
                journal.seek(self._read.get(path, 0))
                lines = journal.read().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith(b"\n")]
            self._read[path] = self._read.get(path, 0) + sum(map(len, whole))
            for line in whole:
                what, topic, receipt, *facts = orjson.loads(line)
                self.counts[what] += 1
                self.note(path.name, what, topic, receipt, facts)

    def note(self, worker: str, what: str, topic: str, receipt: str, facts: list[Any]) -> None:
        """One line of a worker's journal."""
        if what == "got":
            self._came(worker, topic, receipt, facts)
            return
        held = self._receipts[receipt]
        if what == "acking":
            held.acking += 1
        elif what == "acked":
            held.answered += 1
            if facts[0] and held.nacked:
                self.wrongs.append(f"{receipt} was given back, yet its acknowledgement counted")
            held.acked |= facts[0]
        elif what == "nacked":
            held.nacked |= facts[0]

    def _came(self, worker: str, topic: str, receipt: str, facts: list[Any]) -> None:
        message_id, attempt, key, text = facts
        entry = self.entries.get(key)
        if entry is None or (entry.topic, entry.text) != (topic, text):
            self.wrongs.append(f"{worker} got {text[:40]!r} of {topic} under {key}, which was never sent")
            return
        if receipt in self._receipts:
            before = self._receipts[receipt].worker
            self.wrongs.append(f"{receipt} of {key} was given to {before} and {worker}")
            return
        if entry.id not in {"", message_id}:
            self.wrongs.append(f"{key} is {entry.id}, but {worker} got it as {message_id}")
        entry.id = entry.id or message_id  # its send was not answered yet
        held = Held(receipt, attempt, worker)
        self._receipts[receipt] = held
        entry.held.append(held)

    # ------------------------------------------------------------------ checks

    def check(self) -> None:
        """What must hold at any time, once every journal was read."""
        for entry in self.entries.values():
            entry.held.sort(key=lambda held: held.place)
            self._check_attempts(entry)
        self._check_lanes()

    def _check_attempts(self, entry: Entry) -> None:
        before = Held("", 0, "nobody")
        for held in entry.held:
            if before.acked:
                self.wrongs.append(
                    f"{entry.key} was acknowledged by {before.worker} as attempt {before.attempt}, "
                    f"then {held.worker} got it as attempt {held.attempt}"
                )
            if not before.attempt < held.attempt <= self.attempts_max:
                self.wrongs.append(
                    f"{entry.key}: attempt {held.attempt} of {self.attempts_max} to {held.worker}, "
                    f"after attempt {before.attempt} to {before.worker}"
                )
            before = held

    def _check_lanes(self) -> None:
        """Messages of one key do not overlap: between two receipts of one there is none of another."""
        lanes: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for entry in self.entries.values():
            if entry.lane:
                lanes[entry.lane] += [(held.place, entry.key) for held in entry.held]
        for lane, handed_out in lanes.items():
            keys = [key for _, key in sorted(handed_out)]
            turns = [key for at, key in enumerate(keys) if not at or keys[at - 1] != key]
            for key, count in Counter(turns).items():
                if count > 1:
                    self.wrongs.append(f"lane {lane}: another message came between two attempts of {key}")

    def settle(self, stored: Iterable[Message], letters: Iterable[DeadLetter]) -> None:
        """At the end: what the topics hold, and the dead letters, against what was sent and worked on."""
        self._settle_stored(stored)
        dead = self._settle_dead(letters)
        for entry in self.entries.values():
            last = entry.held[-1] if entry.held else None
            if entry.key in dead:
                if last is not None and last.acked:
                    self.wrongs.append(f"{entry.key} was acknowledged and is a dead letter")
            elif last is None:
                self.wrongs.append(f"{entry.key} was never seen and is no dead letter")
            elif not last.perhaps_acked:
                self.wrongs.append(f"{entry.key} was given up after {last}, and is no dead letter")
        self.counts["dead"] = len(dead)

    def _settle_stored(self, stored: Iterable[Message]) -> None:
        """Each key once, in the order of its lane."""
        found: Counter[str] = Counter()
        turns: dict[str, int] = {}
        for message in stored:
            entry = self.entries.get(message.dedup_key or "")
            if entry is None or (entry.topic, entry.text) != (message.topic, message.text):
                self.wrongs.append(f"{message} was never sent")
                continue
            found[entry.key] += 1
            if entry.id != message.id:
                self.wrongs.append(f"{entry.key} is {entry.id}, but {message.id} is stored under its key")
            if entry.lane and entry.held:
                if entry.held[0].place < turns.get(entry.lane, 0):
                    self.wrongs.append(f"lane {entry.lane}: {entry.key} came before one that lies before it")
                turns[entry.lane] = entry.held[0].place
        for entry in self.entries.values():
            if found[entry.key] != 1:
                self.wrongs.append(f"{entry.key} is stored {found[entry.key]} times")

    def _settle_dead(self, letters: Iterable[DeadLetter]) -> set[str]:
        dead: set[str] = set()
        for letter in letters:
            key = letter.message.text.split(":")[0]
            entry = self.entries.get(key)
            told = None if entry is None else (entry.topic, entry.id, entry.text, self.attempts_max)
            if told != (letter.origin_topic, letter.origin_id, letter.message.text, letter.attempts):
                self.wrongs.append(f"the dead letter of {letter.origin_id} is not what was sent: {letter}")
            if key in dead:
                self.wrongs.append(f"{key} is a dead letter twice")
            dead.add(key)
        return dead
