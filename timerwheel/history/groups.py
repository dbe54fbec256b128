"""What consumer groups did with one delivered message.

A group's first record about a message names it by queue and queue offset. Later ones name the offset of that
first record (`timerwheel.state.lease_records`). So each table is searched by columns for first records, and
for records that follow from known ones.
"""

import contextlib
from collections.abc import Generator

import msgspec
import numpy as np
import orjson

from timerwheel.groups.dead_letter_properties import ORIGIN_ID, REASON
from timerwheel.history.history import Event, Found, GroupPart, Question, Standing, What
from timerwheel.state.config_table import ConfigTable, decode_puts
from timerwheel.state.groups import DEAD_QUEUE, SEPARATOR, dead_topic, group_topic
from timerwheel.store.errors import StoreError
from timerwheel.store.log_reader import LogReader
from timerwheel.store.record import FLAG_ENDED, FLAG_LEASE, FLAG_MORE, QUEUE_OFFSET, Kind, decode
from timerwheel.store.segment import segment_name
from timerwheel.store.table import Table

_STANDINGS = {
    What.PARKED: Standing.PARKED,
    What.HANDED_OUT: Standing.IN_FLIGHT,
    What.EXTENDED: Standing.IN_FLIGHT,
    What.GIVEN_BACK: Standing.WAITING,
    What.REDRIVEN: Standing.WAITING,
    What.CAME_BACK: Standing.READY,
    What.ACKNOWLEDGED: Standing.ACKNOWLEDGED,
    What.DEAD_LETTERED: Standing.DEAD_LETTER,
    What.GIVEN_UP: Standing.GIVEN_UP,
    What.DROPPED: Standing.DROPPED,
}
_LATE = "attempt {} was not acknowledged in time"
_DRAINED = "as a dead letter of the group itself"
_GOES_ON = (Standing.PARKED, Standing.READY, Standing.WAITING)


class _Part(msgspec.Struct):
    """One group so far: the current attempt, the number of attempts, and where the message stands."""

    attempt: int = 0
    attempts: int = 0
    standing: Standing = Standing.NOT_RECEIVED


class _Before(msgspec.Struct):
    """The needed fields of the previous row: a dead letter is stored just before the end of its item."""

    offset: int
    kind: int
    flags: int
    topic: str


class Follower:
    """Collects `events` from tables that are fed in log order, starting after the delivery."""

    def __init__(self, log: LogReader, topic: str, queue: int, found: Found) -> None:
        self._log = log
        self._prefix = topic + SEPARATOR
        self._place = (queue, found.queue_offset)
        self._message_id = found.message_id
        self._cursors = found.cursors
        self._groups_of: dict[int, str] = {}  # keyed by the offset of the first record of a lease or hold
        self._letters: dict[str, set[int]] = {}  # dead-letter topic -> queue offsets
        self._redriven: set[tuple[str, int]] = set()
        self._known: dict[str, _Part] = {}
        self._before: _Before | None = None
        self._unexplained: int | None = None  # place in `events` of a nack; its unit may end with a reason
        self.events: list[Event] = []

    def parts(self, *, complete: bool) -> list[GroupPart]:
        """Return where the message stands with each group, deleted groups included, sorted by name.

        Without `complete` every standing is UNKNOWN.
        """
        found = []
        for group in sorted(self._cursors.keys() | self._known.keys()):
            part = self._known.get(group, _Part())
            standing = part.standing
            if standing is Standing.NOT_RECEIVED and self._cursors[group] > (self._place[1] or 0):
                standing = Standing.PASSED_OVER
            found.append(GroupPart(group, standing if complete else Standing.UNKNOWN, part.attempts))
        return found

    def feed(self, table: Table) -> Generator[Question, int | None, None]:
        """Collect the events of one table; yields a Question for the queue offset of each dead letter."""
        names = table.topics
        own = self._prefix
        groups = {n: name[len(own) :] for n, name in enumerate(names) if name.startswith(own)}
        rows = table.rows
        if self._unexplained is not None:
            self._explain(table, 0)
        after = -1
        while groups or self._letters:
            for place in self._chosen(table, groups, after).tolist():
                letters = len(self._letters)
                count = sum(map(len, self._letters.values()))
                topic = int(rows["topic"][place])
                if topic in groups:
                    yield from self._add_events(table, place, groups[topic])
                else:
                    self._add_dropped(table, place)
                after = place
                if (letters, count) != (len(self._letters), sum(map(len, self._letters.values()))):
                    break  # search the rest again: more rows may match now
            else:
                break
        self._before = _before(table, len(rows))

    def _chosen(self, table: Table, groups: dict[int, str], after: int) -> np.ndarray:
        """Return the places after `after` of the rows that concern this message, ascending."""
        rows = table.rows
        leases = np.flatnonzero(rows["flags"] & FLAG_LEASE)
        leases = leases[leases > after]
        kept = rows[leases]
        ours = np.isin(kept["topic"], list(groups))
        begins = (kept["root"] == kept["offset"]) & ours
        begins &= np.isin(kept["kind"], (int(Kind.TIMER), int(Kind.HOLD)))
        places = (kept["queue"] == self._place[0]) & (kept[QUEUE_OFFSET] == self._place[1])
        ends = np.zeros(len(kept), bool)
        for number, name in enumerate(table.topics):
            letters = list(self._letters.get(name, ()))
            if letters:
                ends |= (kept["topic"] == number) & np.isin(kept[QUEUE_OFFSET], letters)
        again = kept["queue"] == DEAD_QUEUE
        if again.any():
            for number, group in groups.items():
                letters = list(self._letters.get(dead_topic(group), ()))
                places |= again & (kept["topic"] == number) & np.isin(kept[QUEUE_OFFSET], letters)
        begins &= places
        roots = np.concatenate([kept["offset"][begins], np.array(list(self._groups_of), np.uint64)])
        follows = ours & (kept["root"] != kept["offset"]) & np.isin(kept["root"], roots)
        chosen: np.ndarray = leases[begins | follows | ends]
        return chosen

    # ------------------------------------------------------------------ from rows to events

    def _add_events(self, table: Table, place: int, group: str) -> Generator[Question, int | None, None]:
        row = table.rows[place]
        offset, root, kind = int(row["offset"]), int(row["root"]), int(row["kind"])
        part = self._known.setdefault(group, _Part())
        due_ms = int(row["due_ms"])
        if root == offset:
            self._groups_of[root] = group
            if kind == Kind.HOLD:
                part.attempt = 0
                self._add(row, What.PARKED, group)
            elif int(row["flags"]) & FLAG_ENDED:
                part.attempt = 0
                self._redriven.add((dead_topic(group), int(row[QUEUE_OFFSET])))
                self._add(row, What.REDRIVEN, group, due_ms=due_ms)
            else:
                # A lease of a message that is neither free nor done: the group was rewound and dropped it.
                part.attempt = part.attempt + 1 if part.standing in _GOES_ON else 1
                part.attempts += 1
                self._add(row, What.HANDED_OUT, group, due_ms=due_ms, attempt=part.attempt)
        elif kind == Kind.TIMER:
            what = _change(row)
            self._add(row, what, group, due_ms=due_ms)
            if what is What.GIVEN_BACK and int(row["flags"]) & FLAG_MORE:
                self._unexplained = len(self.events) - 1
                self._explain(table, place + 1)
        elif kind == Kind.MESSAGE:
            in_time = part.standing is not Standing.IN_FLIGHT
            self._add(row, What.CAME_BACK, group, reason=None if in_time else _LATE.format(part.attempt))
        else:
            yield from self._add_end(table, place, group)

    def _explain(self, table: Table, start: int) -> None:
        """Add the reason to the nack that lacks one, if its unit ends with a reason in this table."""
        ends = np.flatnonzero(table.rows["flags"][start:] & FLAG_MORE == 0)
        if not len(ends) or self._unexplained is None:
            return
        row = table.rows[start + int(ends[0])]
        at, self._unexplained = self._unexplained, None
        if row["kind"] != Kind.CONTROL:
            return
        reason: str | None = "its reason cannot be read"
        with contextlib.suppress(StoreError):
            puts = decode_puts(self._log.read(int(row["offset"])))
            reason = next((put.value["reason"] for put in puts if put.table == ConfigTable.FAILURE), None)
        self.events[at] = msgspec.structs.replace(self.events[at], reason=reason)

    def _add_end(self, table: Table, place: int, group: str) -> Generator[Question, int | None, None]:
        row = table.rows[place]
        if int(row["flags"]) & FLAG_ENDED:
            self._add(row, What.GIVEN_UP, group, attempt=self._known[group].attempt)
            return
        before = self._row_before(table, place)
        letter = None if before is None else self._letter(before, group)
        if before is None or letter is None:
            self._add(row, What.ACKNOWLEDGED, group)
            return
        self._add(row, What.DEAD_LETTERED, group, reason=letter, attempt=self._known[group].attempt)
        queue_offset = yield Question(dead_topic(group), before.offset)
        if queue_offset is not None:
            self._letters.setdefault(dead_topic(group), set()).add(queue_offset)

    def _letter(self, before: _Before, group: str) -> str | None:
        """Return the reason stored in a dead letter of this message, None if the record is not one."""
        unit = before.kind == Kind.MESSAGE and before.flags & FLAG_MORE
        if not unit or before.topic != dead_topic(group):
            return None
        try:
            properties = orjson.loads(decode(self._log.read(before.offset)).properties or b"{}")
        except StoreError:
            return "its dead letter cannot be read"
        return str(properties.get(REASON, "")) if properties.get(ORIGIN_ID) == self._message_id else None

    def _add_dropped(self, table: Table, place: int) -> None:
        """Add the event that removed a dead letter: drained or dropped. Its lease has reported a redrive."""
        row = table.rows[place]
        topic = table.topics[int(row["topic"])]
        if (topic, int(row[QUEUE_OFFSET])) in self._redriven:
            return
        group = topic.removeprefix(dead_topic(""))
        before = self._row_before(table, place)
        unit = before is not None and before.flags & FLAG_MORE
        if before is not None and unit and before.topic == group_topic(topic, group):
            self._add(row, What.ACKNOWLEDGED, group, reason=_DRAINED)
        else:
            self._add(row, What.DROPPED, group)

    def _row_before(self, table: Table, place: int) -> _Before | None:
        return _before(table, place) if place else self._before

    def _add(
        self,
        row: np.void,
        what: What,
        group: str,
        *,
        due_ms: int | None = None,
        attempt: int | None = None,
        reason: str | None = None,
    ) -> None:
        standing = _STANDINGS.get(what)
        if standing is not None:
            self._known.setdefault(group, _Part()).standing = standing
        self.events.append(
            event_at(
                self._log,
                int(row["store_ms"]),
                what,
                int(row["offset"]),
                group=group,
                due_ms=due_ms,
                attempt=attempt,
                reason=reason,
            )
        )


def _change(row: np.void) -> What:
    if int(row["flags"]) & FLAG_ENDED:
        return What.GIVEN_BACK
    same_time = int(row["due_ms"]) == int(row["prior_due_ms"])
    return What.MOVED if same_time and int(row["rolls"]) else What.EXTENDED


def _before(table: Table, place: int) -> _Before:
    row = table.rows[place - 1]
    return _Before(int(row["offset"]), int(row["kind"]), int(row["flags"]), table.topics[int(row["topic"])])


def event_at(log: LogReader, at_ms: int, what: What, offset: int, **more: int | str | None) -> Event:
    """Build an event with the log offset and the segment file of its record."""
    return Event(at_ms, what, offset, segment_name(log.base_of(offset)), **more)  # type: ignore[arg-type]
