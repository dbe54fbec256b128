"""Messages as columns: what a bulk sender sends, and its receipts. Pure.

Rows share what repeats: a topic is a place in `topics`, and the properties of a row are a place in `sets`. So
the rules of admission for topics and properties are checked once for each distinct one, those for bodies and
delays as whole columns. A row that breaks a rule is given to `admission.admit`, which says what is wrong with
it. So a send in columns is refused with the same faults as the messages one by one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from timerwheel.errors import AdmissionError, Fault
from timerwheel.model.admission import Plan, Rules, admit, are_plain_keys, is_key, is_sendable
from timerwheel.model.messages import Outgoing, Receipt, State

NOW, AFTER, AT = 0, 1, 2
"""How a row says when: not at all, or in its properties; in ms from now; in epoch ms."""

SPELLED = {AFTER: "TIMER_DELAY_MS", AT: "TIMER_DELIVER_MS"}
"""The property that says the same."""

ID_CHARACTERS = 24

_ANY_TOPIC = "t"  # a topic that breaks no rule


class MessageColumns(msgspec.Struct, frozen=True):
    """Messages to send. Row `i` is the message whose body is `bodies[begins[i]:ends[i]]`.

    `topic` and `properties` are places in `topics` and `sets`; each topic and each set has a row. `how` is
    NOW, AFTER or AT, and `ms` (int64) the number that goes with it; a row whose properties say when has NOW.
    `keys` are the deduplication keys, if any row has one.
    """

    topics: list[str]
    topic: np.ndarray
    bodies: memoryview
    begins: np.ndarray
    ends: np.ndarray
    sets: list[dict[str, str]]
    properties: np.ndarray
    how: np.ndarray
    ms: np.ndarray
    keys: list[str | None] | None = None

    def __len__(self) -> int:
        """How many messages."""
        return len(self.topic)

    def used_topics(self) -> list[str]:
        """Return the topics that some row has."""
        return [self.topics[place] for place in np.unique(self.topic).tolist()]

    def take(self, rows: np.ndarray) -> "MessageColumns":
        """Return some of the messages; then topics may be left that none of them has."""
        return msgspec.structs.replace(
            self,
            topic=self.topic[rows],
            begins=self.begins[rows],
            ends=self.ends[rows],
            properties=self.properties[rows],
            how=self.how[rows],
            ms=self.ms[rows],
            keys=None if self.keys is None else [self.keys[row] for row in rows.tolist()],
        )

    def outgoing(self, row: int) -> Outgoing:
        """Return one of the messages."""
        key = None if self.keys is None else self.keys[row]
        topic = self.topics[self.topic[row]]
        body = bytes(self.bodies[self.begins[row] : self.ends[row]])
        how, ms = int(self.how[row]), int(self.ms[row])
        if key is not None:
            properties = dict(self.sets[self.properties[row]])
            return Outgoing(
                topic, body, properties if how == NOW else {**properties, SPELLED[how]: str(ms)}, key
            )
        return Outgoing(
            topic,
            body,
            dict(self.sets[self.properties[row]]),
            after_ms=ms if how == AFTER else None,
            at_ms=ms if how == AT else None,
        )


class ColumnReceipts(NamedTuple):
    """The receipts of messages: `ids` has ID_CHARACTERS for each, `waits` (bool) says scheduled.

    `duplicate` (bool) says which were stored before, and is None if none was.
    """

    ids: str
    topics: list[str]
    topic: np.ndarray
    due_ms: np.ndarray
    waits: np.ndarray
    duplicate: np.ndarray | None = None

    @property
    def all_duplicate(self) -> bool:
        """Whether nothing was stored."""
        return self.duplicate is not None and bool(self.duplicate.all())

    @classmethod
    def of(cls, receipts: Sequence[Receipt], columns: MessageColumns) -> "ColumnReceipts":
        """Return the receipts of these messages as columns."""
        return cls(
            "".join([one.id for one in receipts]),
            columns.topics,
            columns.topic,
            np.array([one.due_ms for one in receipts], np.int64),
            np.array([one.state is State.SCHEDULED for one in receipts], bool),
            np.array([one.duplicate for one in receipts], bool),
        )

    def receipts(self, rows: slice) -> list[Receipt]:
        """Return the receipts of some rows."""
        ids = self.ids[rows.start * ID_CHARACTERS : rows.stop * ID_CHARACTERS]
        ends = range(ID_CHARACTERS, len(ids) + 1, ID_CHARACTERS)
        states = (State.DELIVERED, State.SCHEDULED)
        duplicate = [False] * len(ends) if self.duplicate is None else self.duplicate[rows].tolist()
        return [
            Receipt(ids[end - ID_CHARACTERS : end], self.topics[topic], due_ms, states[waits], is_duplicate)
            for end, topic, due_ms, waits, is_duplicate in zip(
                ends,
                self.topic[rows].tolist(),
                self.due_ms[rows].tolist(),
                self.waits[rows].tolist(),
                duplicate,
                strict=True,
            )
        ]


def admit_sets(sets: Sequence[dict[str, str]], now_ms: int, rules: Rules) -> list[Plan | None]:
    """Return the plan of a message with each set of properties; None if it is refused."""
    plans: list[Plan | None] = []
    anywhere = msgspec.structs.replace(rules, shard=None)
    for properties in sets:
        try:
            plans.append(admit(Outgoing(_ANY_TOPIC, b"", properties), now_ms, anywhere))
        except AdmissionError:
            plans.append(None)
    return plans


def dues_of(
    columns: MessageColumns, sets: Sequence[Plan | None], now_ms: int, rules: Rules
) -> tuple[np.ndarray, np.ndarray]:
    """Return the due times (int64) and delay levels (uint8) of messages sent at `now_ms`.

    `sets` are what `admit_sets` said of their properties. A due time that is too far is any that is too far.
    """
    # A delay may be any number of 64 bits: it is cut to the first that is too long before it is added.
    after_ms = np.clip(columns.ms, 0, rules.max_delay_ms + 1)
    given_ms = np.where(columns.how == AFTER, now_ms + after_ms, columns.ms)
    due_ms = np.maximum(np.where(columns.how == NOW, now_ms, given_ms), now_ms)
    level = np.zeros(len(columns), np.uint8)
    said = [(plan.due_ms, plan.level) if plan is not None else (now_ms, 0) for plan in sets]
    if any(due != now_ms for due, _ in said):
        set_due_ms, set_level = (np.array(column) for column in zip(*said, strict=True))
        due_ms = np.maximum(due_ms, set_due_ms[columns.properties])  # a row has one of the two at most
        level = set_level.astype(np.uint8)[columns.properties]
    return due_ms, level


def wrong_rows(
    columns: MessageColumns, sets: Sequence[Plan | None], due_ms: np.ndarray, now_ms: int, rules: Rules
) -> np.ndarray:
    """Return the rows that break a rule, in order."""
    shard = rules.shard
    taken = [is_sendable(topic) and (shard is None or shard.holds(topic)) for topic in columns.topics]
    wrong = ~np.array(taken, bool)[columns.topic]
    wrong |= columns.ends - columns.begins > rules.body_bytes_max
    wrong |= due_ms > now_ms + rules.max_delay_ms
    wrong |= np.array([plan is None for plan in sets], bool)[columns.properties]
    if columns.keys is not None and not are_plain_keys([key for key in columns.keys if key is not None]):
        wrong |= np.array([key is not None and not is_key(key) for key in columns.keys], bool)
    return np.flatnonzero(wrong)


def faults_of(columns: MessageColumns, rows: np.ndarray, now_ms: int, rules: Rules) -> list[Fault]:
    """Return what is wrong with rows that break a rule."""
    faults: list[Fault] = []
    for row in rows.tolist():
        try:
            admit(columns.outgoing(row), now_ms, rules)
        except AdmissionError as error:
            faults.append(Fault(row, error.code, error.detail))
        else:
            raise AssertionError(row)
    return faults
