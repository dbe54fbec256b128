"""What consumer groups did with one delivered message.

A group's acknowledgement of a message, or the first record of each retry, names it by queue and queue offset.
Later ones name the offset of that first record (`timerwheel.state.lease_records`). So each table is searched
by columns for records that name the message, and for records that follow from known ones.

Leases are in the service's memory, so the log has an attempt only once it has failed, or when the message is
done. Earlier versions stored each lease.

A group of kind `offsets` has no records about a message, only the offsets that it committed.

An ACK also covers the messages that a group's filter leaves out, and does not tell them from acknowledged
ones. Of those, the message is one that its filter excludes now.
"""

import contextlib
from collections.abc import Callable, Generator, Mapping
from copy import copy
from typing import NamedTuple

import msgspec
import numpy as np
import orjson

from timerwheel.groups.config import OFFSETS, config_of
from timerwheel.groups.dead_letter_properties import ATTEMPTS, ORIGIN_ID, REASON
from timerwheel.history.history import Event, Found, GroupNow, GroupPart, Question, Standing, What
from timerwheel.model.properties import TAGS
from timerwheel.model.tags import TagFilter
from timerwheel.state.config_table import ConfigTable, decode_puts
from timerwheel.state.groups import DEAD_QUEUE, SEPARATOR, GroupState, dead_topic, group_topic
from timerwheel.state.state import LogState
from timerwheel.store.errors import StoreError
from timerwheel.store.log_reader import LogReader
from timerwheel.store.record import (
    ACK_REASON,
    ATTEMPT,
    END_OFFSET,
    FLAG_ENDED,
    FLAG_LEASE,
    FLAG_MORE,
    QUEUE_OFFSET,
    AckReason,
    Kind,
    Record,
    decode,
)
from timerwheel.store.segment import segment_name
from timerwheel.store.table import Table

_STANDINGS = {
    What.PARKED: Standing.PARKED,
    What.HANDED_OUT: Standing.IN_FLIGHT,
    What.EXTENDED: Standing.IN_FLIGHT,
    What.GIVEN_BACK: Standing.WAITING,
    What.EXPIRED: Standing.WAITING,
    What.REDRIVEN: Standing.WAITING,
    What.CAME_BACK: Standing.READY,
    What.ACKNOWLEDGED: Standing.ACKNOWLEDGED,
    What.TTL_OVER: Standing.EXPIRED,
    What.DEAD_LETTERED: Standing.DEAD_LETTER,
    What.GIVEN_UP: Standing.GIVEN_UP,
    What.DROPPED: Standing.DROPPED,
}
_LATE = "attempt {} was not acknowledged in time"
_DRAINED = "as a dead letter of the group itself"
_GOES_ON = (Standing.PARKED, Standing.READY, Standing.WAITING)


def groups_now(
    log_state: LogState,
    record: Record,
    queue_offset: int,
    cursors_of: Callable[[GroupState], Mapping[int, int]],
) -> dict[str, GroupNow]:
    """Return the current state of a delivered message in each group of its topic.

    `cursors_of` gives the committed offsets of a group of kind `offsets`, by queue.
    """
    tag = orjson.loads(record.properties or b"{}").get(TAGS)
    found = {}
    for group in log_state.groups.of_topic.get(record.topic, ()):
        config = config_of(log_state.control.get(ConfigTable.GROUP, group.name))
        if config.kind == OFFSETS:
            past = cursors_of(group).get(record.header.queue, 0) > queue_offset
            found[group.group] = GroupNow(past, excluded=False, since=group.since, by_offset=True)
            continue
        passed = group.passed.get(record.header.queue)
        found[group.group] = GroupNow(
            passed is not None and queue_offset in passed,
            not TagFilter.parse(config.tags).passes(tag),
            group.since,
        )
    return found


class _Part(msgspec.Struct):
    """One group so far: the current attempt, the number of attempts, and where the message stands.

    `until` is the offset of its last record about the message, `logged` if the last attempt's lease is in the
    log.
    """

    attempt: int = 0
    attempts: int = 0
    standing: Standing = Standing.NOT_RECEIVED
    until: int = 0
    logged: bool = False

    def begin(self, attempt: int, *, logged: bool) -> None:
        """Note an attempt of a consumer."""
        self.attempt, self.logged = attempt, logged
        self.attempts += 1


class _Letter(NamedTuple):
    """The reason in a dead letter, and its number of attempts, None if that cannot be read."""

    reason: str
    attempts: int | None


class _Before(msgspec.Struct):
    """The needed fields of the previous row: a dead letter is stored just before the end of its item."""

    offset: int
    kind: int
    flags: int
    topic: str


class _Ended(NamedTuple):
    """An end that may be a group's forgetting: its place in `events`, the group, and its part before that."""

    at: int
    group: str
    part: _Part


class Follower:
    """Collects `events` from tables that are fed in log order, starting after the delivery."""

    def __init__(self, log: LogReader, topic: str, queue: int, found: Found) -> None:
        self._log = log
        self._prefix = topic + SEPARATOR
        self._place = (queue, found.queue_offset or 0)
        self._message_id = found.message_id
        self._groups_now = found.groups
        self._groups_of: dict[int, str] = {}  # keyed by the offset of the first record of a lease or hold
        self._letters: dict[str, set[int]] = {}  # dead-letter topic -> queue offsets
        self._redriven: set[tuple[str, int]] = set()
        self._known: dict[str, _Part] = {}
        self._before: _Before | None = None
        self._unit: set[str] = set()  # topics of the unit that the last table left unfinished
        self._unexplained: int | None = None  # place in `events` of a nack; its unit may end with a reason
        self._ended: _Ended | None = None  # while its unit goes on in the next table
        self.events: list[Event] = []

    def parts(self, *, complete: bool) -> list[GroupPart]:
        """Return where the message stands with each group, deleted groups included, sorted by name.

        Without `complete` every standing that follows from records is UNKNOWN.
        """
        found = []
        for group in sorted(self._groups_now.keys() | self._known.keys()):
            part, now = self._part(group), self._groups_now.get(group)
            standing = part.standing if complete else Standing.UNKNOWN
            if now is not None and now.by_offset:
                standing = Standing.COMMITTED_PAST if now.passed else Standing.NOT_COMMITTED
            elif now is not None and (now.passed or now.excluded) and standing is Standing.NOT_RECEIVED:
                standing = Standing.PASSED_OVER
            found.append(GroupPart(group, standing, part.attempts))
        return found

    def _part(self, group: str, until: int | None = None) -> _Part:
        """Return the part of a group as of the log offset `until`, begun if it is new."""
        part, now = self._known.get(group), self._groups_now.get(group)
        since = 0 if now is None or (until is not None and until < now.since) else now.since
        if part is None or part.until < since:
            part = self._known[group] = _Part(
                until=since
            )  # the group was created or rewound since then and has dropped earlier state
        return part

    def feed(self, table: Table) -> Generator[Question, int | None, None]:
        """Collect the events of one table; yields a Question for the queue offset of each dead letter."""
        names = table.topics
        own = self._prefix
        groups = {n: name[len(own) :] for n, name in enumerate(names) if name.startswith(own)}
        rows = table.rows
        if self._unexplained is not None:
            self._explain(table, 0)
        self._withdraw(table, 0)
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
        self._unit = self._topics_of_unit(table, len(rows))

    def _chosen(self, table: Table, groups: dict[int, str], after: int) -> np.ndarray:
        """Return the places after `after` of the rows that concern this message, ascending."""
        rows = table.rows
        leases = np.flatnonzero(rows["flags"] & FLAG_LEASE)
        leases = leases[leases > after]
        kept = rows[leases]
        ours = np.isin(kept["topic"], list(groups))
        queue, queue_offset = self._place
        acks = ours & (kept["kind"] == Kind.ACK) & (kept["queue"] == queue)
        acks &= (kept[QUEUE_OFFSET] <= queue_offset) & (kept[END_OFFSET] > queue_offset)
        begins = (kept["root"] == kept["offset"]) & ours
        begins &= np.isin(kept["kind"], (int(Kind.TIMER), int(Kind.HOLD)))
        places = (kept["queue"] == queue) & (kept[QUEUE_OFFSET] == queue_offset)
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
        chosen: np.ndarray = leases[acks | begins | follows | ends]
        return chosen

    # ------------------------------------------------------------------ from rows to events

    def _add_events(self, table: Table, place: int, group: str) -> Generator[Question, int | None, None]:
        row = table.rows[place]
        offset, root, kind = int(row["offset"]), int(row["root"]), int(row["kind"])
        part = self._part(group, offset)
        due_ms = int(row["due_ms"])
        if kind == Kind.ACK:
            yield from self._add_end(table, place, group)
        elif root == offset:
            self._groups_of[root] = group
            self._add_first(table, place, group)
        elif kind == Kind.TIMER:
            what = _change(row)
            self._add(row, what, group, due_ms=due_ms)
            if what is What.GIVEN_BACK:
                self._expect_reason(table, place)
        elif kind == Kind.MESSAGE:
            in_time = part.standing is not Standing.IN_FLIGHT
            self._add(row, What.CAME_BACK, group, reason=None if in_time else _LATE.format(part.attempt))
        else:
            yield from self._add_end(table, place, group)

    def _add_first(self, table: Table, place: int, group: str) -> None:
        """Add the event of the first record of a retry, or in a log of earlier versions of a lease."""
        row = table.rows[place]
        part, due_ms = self._known[group], int(row["due_ms"])
        ended, attempt = int(row["flags"]) & FLAG_ENDED, int(row[ATTEMPT])
        if row["kind"] == Kind.HOLD:
            if not attempt:  # else the retry follows
                part.attempt = 0
                self._add(row, What.PARKED, group)
        elif attempt:
            part.begin(attempt, logged=False)
            if ended:
                self._add(row, What.GIVEN_BACK, group, due_ms=due_ms, attempt=attempt)
                self._expect_reason(table, place)
            else:
                reason = _LATE.format(attempt)
                self._add(row, What.EXPIRED, group, due_ms=due_ms, attempt=attempt, reason=reason)
        elif ended:
            part.attempt, part.logged = 0, False
            self._redriven.add((dead_topic(group), int(row[QUEUE_OFFSET])))
            self._add(row, What.REDRIVEN, group, due_ms=due_ms)
        else:
            # A lease of a message that is neither free nor done: the group was rewound and dropped it.
            part.begin(part.attempt + 1 if part.standing in _GOES_ON else 1, logged=True)
            self._add(row, What.HANDED_OUT, group, due_ms=due_ms, attempt=part.attempt)

    def _expect_reason(self, table: Table, place: int) -> None:
        """The reason of the nack that was just added is in the last record of its unit, if it has one."""
        if int(table.rows["flags"][place]) & FLAG_MORE:
            self._unexplained = len(self.events) - 1
            self._explain(table, place + 1)

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
        """Add how the message ended for a group: by an ACK, or the CANCEL of its item."""
        row = table.rows[place]
        part = self._known[group]
        earlier = copy(part)
        before = self._row_before(table, place)
        letter = None if before is None else self._letter(before, group)
        given_up = int(row["flags"]) & FLAG_ENDED
        fresh = row["kind"] == Kind.ACK
        if row[ACK_REASON] == AckReason.EXPIRED:
            self._add(row, What.TTL_OVER, group)
            return
        if fresh and row[ACK_REASON] != AckReason.DONE:
            return  # no consumer had it
        # The end of one that is ready is that of its next attempt. If the lease of the last attempt is in the
        # log, that of the next would be, too.
        if fresh or (part.standing is Standing.READY and not part.logged):
            part.begin(1 if fresh else part.attempt + 1, logged=False)
        if given_up:
            self._add(row, What.GIVEN_UP, group, attempt=part.attempt)
        elif before is None or letter is None:
            self._add(row, What.ACKNOWLEDGED, group, attempt=part.attempt)
            if int(row["flags"]) & FLAG_MORE and not fresh:
                self._ended = _Ended(len(self.events) - 1, group, earlier)
                self._withdraw(table, place + 1)
        else:
            attempt = part.attempt if letter.attempts is None else letter.attempts
            self._add(row, What.DEAD_LETTERED, group, reason=letter.reason, attempt=attempt)
            queue_offset = yield Question(dead_topic(group), before.offset)
            if queue_offset is not None:
                self._letters.setdefault(dead_topic(group), set()).add(queue_offset)

    def _withdraw(self, table: Table, start: int) -> None:
        """Take back an end that is none: its unit goes on here, and rewinds or deletes the group.

        Of what a group holds then, the unit ends what has a timer.
        """
        if self._ended is None:
            return
        at, group, part = self._ended
        flags, kinds = table.rows["flags"][start:], table.rows["kind"][start:]
        ends = np.flatnonzero(flags & FLAG_MORE == 0)
        until = int(ends[0]) + 1 if len(ends) else len(flags)
        if len(ends):
            self._ended = None
        for place in np.flatnonzero(kinds[:until] == Kind.CONTROL).tolist():
            if self._resets(int(table.rows["offset"][start + place]), group):
                del self.events[at]
                self._known[group], self._ended = part, None
                return

    def _resets(self, offset: int, group: str) -> bool:
        """Whether this CONTROL record rewinds or deletes the group."""
        with contextlib.suppress(StoreError):
            return any(
                put.table in (ConfigTable.CURSOR, ConfigTable.GROUP) and put.key == self._prefix + group
                for put in decode_puts(self._log.read(offset))
            )
        return False

    def _letter(self, before: _Before, group: str) -> _Letter | None:
        """Return what a dead letter of this message says, None if the record is not one."""
        unit = before.kind == Kind.MESSAGE and before.flags & FLAG_MORE
        if not unit or before.topic != dead_topic(group):
            return None
        try:
            properties = orjson.loads(decode(self._log.read(before.offset)).properties or b"{}")
        except StoreError:
            return _Letter("its dead letter cannot be read", None)
        if properties.get(ORIGIN_ID) != self._message_id:
            return None
        attempts = str(properties.get(ATTEMPTS, ""))
        return _Letter(str(properties.get(REASON, "")), int(attempts) if attempts.isdecimal() else None)

    def _add_dropped(self, table: Table, place: int) -> None:
        """Add the event that removed a dead letter: drained or dropped. Its retry has reported a redrive."""
        row = table.rows[place]
        topic = table.topics[int(row["topic"])]
        if (topic, int(row[QUEUE_OFFSET])) in self._redriven:
            return
        group = topic.removeprefix(dead_topic(""))
        # An acknowledgement by the group is in the same unit, before it.
        if group_topic(topic, group) in self._topics_of_unit(table, place):
            self._add(row, What.ACKNOWLEDGED, group, reason=_DRAINED)
        else:
            self._add(row, What.DROPPED, group)

    def _topics_of_unit(self, table: Table, place: int) -> set[str]:
        """Return the topics of the records before `place` that are in one unit with it."""
        flags = table.rows["flags"][:place]
        ends = np.flatnonzero(flags & FLAG_MORE == 0)
        first = int(ends[-1]) + 1 if len(ends) else 0
        found = {table.topics[number] for number in np.unique(table.rows["topic"][first:place]).tolist()}
        return found if first else found | self._unit

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
        part = self._part(group, int(row["offset"]))
        part.until = int(row["offset"])
        part.standing = _STANDINGS.get(what, part.standing)
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
