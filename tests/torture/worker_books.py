"""The books of workers: what the producer was answered, what each worker noted, and whether that agrees.

Nobody's clock is asked. A receipt names the run of the service that gave it out, and its number in that run.
The journals are read whenever the service was killed, so runs are known in their order, and with them the
order in which the receipts of a message were handed out, whoever got them. Leases are in memory: what is in
flight at a kill comes again at once, as the same attempt. Thus

1. attempts rise along that order, within a run by at least one; what was given back has failed for good;
2. after an acknowledgement that was answered its message is handed out no more. A receipt of an attempt that
   was handed out once more may count, if a kill has made the service forget that;
3. at the end a receipt of each message was acknowledged, or may have been, or the message is dead;
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
    run: int = 0
    """Which reading of the journals was the first that told of the run in which it was handed out."""
    acked: int = 0
    """In which such run it was answered to be acknowledged, 0 if it was not."""
    nacked: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """When it was handed out, in the order of all of them."""
        return self.run, int(self.receipt[36:44], 16)

    @property
    def perhaps_acked(self) -> bool:
        """Acknowledged, or asked for without an answer."""
        return bool(self.acked) or self.acking > self.answered


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
    _runs: dict[str, int] = field(default_factory=dict)
    _readings: int = 0

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
        """Read what workers wrote since, in one run of the service; a journal's last line may be cut."""
        self._readings += 1
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
            if facts[0] and not held.acked:
                held.acked = self._readings
        elif what == "nacked" and facts[0] and not held.nacked:
            held.nacked = self._readings

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
        run = self._runs.setdefault(receipt[28:36], self._readings)
        held = Held(receipt, attempt, worker, run=run)
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
        for at, held in enumerate(entry.held):
            if not 1 <= held.attempt <= self.attempts_max:
                self.wrongs.append(f"{entry.key}: attempt {held.attempt} to {held.worker}")
            for before in entry.held[:at]:
                self._check_two(entry, before, held)

    def _check_two(self, entry: Entry, before: Held, held: Held) -> None:
        """Of two receipts of a message, the one that was handed out first and the other."""
        told = f"attempt {before.attempt} to {before.worker} in run {before.run}"
        then = f"then {held.worker} got it as attempt {held.attempt} in run {held.run}"
        alike = before.run == held.run
        if before.acked and (held.run > before.acked or (alike and before.acked == held.run)):
            self.wrongs.append(f"{entry.key} was acknowledged in run {before.acked}, {told}, {then}")
        failed = alike or (before.nacked and held.run > before.nacked)
        if held.attempt < before.attempt + bool(failed):
            self.wrongs.append(f"{entry.key}: {told}, {then}")

    def _check_lanes(self) -> None:
        """Messages of one key do not overlap: between two receipts of one there is none of another."""
        lanes: dict[str, list[tuple[tuple[int, int], str]]] = defaultdict(list)
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
            if entry.key in dead:
                if any(held.acked for held in entry.held):
                    self.wrongs.append(f"{entry.key} was acknowledged and is a dead letter")
            elif not entry.held:
                self.wrongs.append(f"{entry.key} was never seen and is no dead letter")
            elif not any(held.perhaps_acked for held in entry.held):
                self.wrongs.append(f"{entry.key} was given up after {entry.held[-1]}, and is no dead letter")
        self.counts["dead"] = len(dead)

    def _settle_stored(self, stored: Iterable[Message]) -> None:
        """Each key once, in the order of its lane."""
        found: Counter[str] = Counter()
        turns: dict[str, tuple[int, int]] = {}
        for message in stored:
            entry = self.entries.get(message.dedup_key or "")
            if entry is None or (entry.topic, entry.text) != (message.topic, message.text):
                self.wrongs.append(f"{message} was never sent")
                continue
            found[entry.key] += 1
            if entry.id != message.id:
                self.wrongs.append(f"{entry.key} is {entry.id}, but {message.id} is stored under its key")
            if entry.lane and entry.held:
                if entry.held[0].place < turns.get(entry.lane, (0, 0)):
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
