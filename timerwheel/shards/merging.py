"""One answer from those of several shards. Pure.

Every function takes the bodies of answers in the order of the shards. Items that need not be understood are
passed on byte for byte.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from timerwheel.errors import IllegalCursorError
from timerwheel.index.peaks import earliest_peak
from timerwheel.model import list_cursor, listing
from timerwheel.model.figures import Point
from timerwheel.model.ids import root_in
from timerwheel.model.live_events import LevelSlots, Tick, Wheel
from timerwheel.model.messages import (
    LevelInfo,
    SlotInfo,
    TopicInfo,
    WheelInfo,
    WheelLevelInfo,
)
from timerwheel.wire.paging import PageQuery
from timerwheel.wire.service import FigureHistory, Levels, Peak, Slots
from timerwheel.wire.topics import Topics

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
WHOLE = PageQuery()
_ENDED = "x"
_SEPARATOR = "_"
_SLOTS_MAX = 400
SECOND_MS, MINUTE_MS = 1_000, 60_000
"""The lengths of points of figures, which services take at full seconds."""


class _Timed(msgspec.Struct):
    id: str
    due_ms: int = 0
    began_ms: int = 0
    enqueue_ms: int = 0


KEYS: dict[str, tuple[str, ...]] = {
    "groups": ("topic", "group"),
    "schedules": ("name",),
    "subscriptions": ("id",),
    "queues": ("queue",),
}
"""For each list that is sorted by names, the fields of its items that are their key."""


def lists(field: str, bodies: Iterable[bytes], wanted: PageQuery = WHOLE) -> bytes:
    """Merge pages of a list that is sorted by names; a cursor means the same in every shard."""
    found: list[tuple[list_cursor.Key, msgspec.Raw]] = []
    more = False
    for body in bodies:
        content = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        more |= msgspec.json.decode(content.get("cursor", b"null")) is not None
        for raw in msgspec.json.decode(content[field], type=list[msgspec.Raw]):
            one = msgspec.json.decode(raw)
            found.append((tuple(one[name] for name in KEYS[field]), raw))
    found.sort(key=lambda pair: pair[0])  # stable: what has one key stays in the order of the shards
    taken = found[: wanted.count_max]
    # What several shards have by one name is on one page: the cursor is behind all of it.
    taken += itertools.takewhile(lambda pair: pair[0] == taken[-1][0], found[len(taken) :])
    more |= len(taken) < len(found)
    cursor = wanted.answered(list_cursor.encode(taken[-1][0]) if more and taken else None)
    whole = {field: [raw for _, raw in taken]}
    return msgspec.json.encode(whole if cursor is UNSET else {**whole, "cursor": cursor})


# ---------------------------------------------------------------------- pages


class Cursors(NamedTuple):
    """The cursor of a list over all shards: that of each shard, None at its beginning, and where it ended."""

    each: list[str | None]

    @classmethod
    def parse(cls, text: str | None, count: int) -> "Cursors":
        """Return the cursors in one; IllegalCursorError."""
        if text is None:
            return cls([None] * count)
        parts = text.split(_SEPARATOR)
        if len(parts) != count:
            raise IllegalCursorError(text)
        return cls([part or None for part in parts])

    @property
    def wanted(self) -> list[int]:
        """The shards that have more."""
        return [shard for shard, one in enumerate(self.each) if one != _ENDED]

    @property
    def text(self) -> str | None:
        """All in one; None if no shard has more."""
        if not self.wanted:
            return None
        return _SEPARATOR.join(one or "" for one in self.each)


class Page(NamedTuple):
    """What a shard has given: a list, and its cursor for more."""

    shard: int
    body: bytes


def pending_cursor(one: _Timed) -> str:
    """Return the cursor behind a scheduled message, as its shard would write it."""
    return f"{one.due_ms:x}.{root_in(one.id) or 0:x}"


def key_cursor(one: _Timed) -> str:
    """Return the cursor behind a message in a listing by key, from the oldest on."""
    return listing.key_cursor((root_in(one.id) or 0) + 1)


def newest_key_cursor(one: _Timed) -> str:
    """Return the cursor behind a message in a listing by key, from the newest on."""
    return listing.key_cursor(root_in(one.id) or 0)


def open_cursor(one: _Timed) -> str:
    """Return the cursor behind an open transaction."""
    return one.id


class Order(NamedTuple):
    """How to merge pages: the time of an item, and the cursor behind it, as its shard would write it."""

    time_of: Callable[[_Timed], int]
    cursor_of: Callable[[_Timed], str]


BY_DUE = Order(lambda one: one.due_ms, pending_cursor)
BY_BEGINNING = Order(lambda one: one.began_ms, open_cursor)
BY_SENDING = Order(lambda one: one.enqueue_ms, key_cursor)
BY_SENDING_NEWEST = Order(lambda one: -one.enqueue_ms, newest_key_cursor)


def one_after_another(field: str, found: Sequence[Page], cursors: Cursors) -> bytes:
    """Return the page of one shard as one of a list that goes through the shards one after the other."""
    each = list(cursors.each)
    items: list[msgspec.Raw] = []
    for shard, body in found:
        content = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        each[shard] = msgspec.json.decode(content["cursor"], type=str | None) or _ENDED
        items += msgspec.json.decode(content[field], type=list[msgspec.Raw])
    return msgspec.json.encode({field: items, "cursor": Cursors(each).text})


def pages(field: str, found: Sequence[Page], cursors: Cursors, limit: int, order: Order) -> bytes:
    """Merge pages in the order of their times; the next page goes on where this one stopped in each shard.

    Where a shard has more than it gave, what the others have behind its last item waits for the next page.
    """
    queues: list[tuple[int, int, int]] = []  # the time of the next item, shard, its place
    items: dict[int, list[tuple[_Timed, msgspec.Raw]]] = {}
    ends: dict[int, str | None] = {}
    for shard, body in found:
        content = msgspec.json.decode(body, type=dict[str, Any | None])
        ends[shard] = content["cursor"]
        raws = msgspec.json.decode(body, type=dict[str, msgspec.Raw])[field]
        listed = msgspec.json.decode(raws, type=list[msgspec.Raw])
        items[shard] = [(msgspec.json.decode(raw, type=_Timed), raw) for raw in listed]
    each = list(cursors.each)
    taken: list[msgspec.Raw] = []
    for shard, listed_items in items.items():
        if listed_items:
            queues.append((order.time_of(listed_items[0][0]), shard, 0))
        else:
            each[shard] = ends[shard] or _ENDED
    heapq.heapify(queues)
    stopped = any(not own and ends[shard] is not None for shard, own in items.items())
    while queues and len(taken) < limit and not stopped:
        _, shard, place = heapq.heappop(queues)
        one, raw = items[shard][place]
        taken.append(raw)
        each[shard] = order.cursor_of(one)
        if place + 1 < len(items[shard]):
            heapq.heappush(queues, (order.time_of(items[shard][place + 1][0]), shard, place + 1))
        else:
            each[shard] = ends[shard] or _ENDED
            stopped = ends[shard] is not None
    return msgspec.json.encode({field: taken, "cursor": Cursors(each).text})


# ---------------------------------------------------------------------- sums


def summed(found: Sequence[_Struct], **rest: object) -> _Struct:
    """Add up the counts of several structs, their integers but for `rest`; the others are the first's."""
    counts = [
        one.name for one in msgspec.structs.fields(found[0]) if one.type is int and one.name not in rest
    ]
    sums = {name: sum(getattr(one, name) for one in found) for name in counts}
    return msgspec.structs.replace(found[0], **sums, **rest)


def topics(bodies: Iterable[bytes], wanted: PageQuery = WHOLE) -> Topics:
    """Merge pages of topics: those that every shard has are added up."""
    found: dict[str, TopicInfo] = {}
    more = False
    for body in bodies:
        page = msgspec.json.decode(body, type=Topics)
        more |= isinstance(page.cursor, str)
        for one in page.topics:
            found[one.topic] = _added([found[one.topic], one]) if one.topic in found else one
    every = sorted(found.values(), key=lambda one: list_cursor.topic_key(one.topic))
    taken = every[: wanted.count_max]
    more |= len(taken) < len(every)
    last = list_cursor.topic_key(taken[-1].topic) if more and taken else None
    return Topics(taken, wanted.answered(None if last is None else list_cursor.encode(last)))


def topic(bodies: Iterable[bytes]) -> TopicInfo:
    """Add up what shards say of a topic that each of them has."""
    found = [msgspec.json.decode(body, type=TopicInfo) for body in bodies]
    return _added(found) if len(found) > 1 else found[0]


def _added(found: Sequence[TopicInfo]) -> TopicInfo:
    """Add up topics of one name, without their queues: an offset means something in one shard only."""
    return summed(found, queues=[], queue_count=max(one.queue_count for one in found))


def wheel(bodies: Iterable[bytes]) -> WheelInfo:
    """Add up the wheels of shards."""
    found = [msgspec.json.decode(body, type=WheelInfo) for body in bodies]
    levels = [_level(list(each)) for each in zip(*(one.levels for one in found), strict=True)]
    return summed(
        found,
        now_ms=max(one.now_ms for one in found),
        next_due_ms=_first(one.next_due_ms for one in found),
        levels=levels,
        set_aside=[each for one in found for each in one.set_aside],
    )


def _level(found: list[WheelLevelInfo]) -> WheelLevelInfo:
    lasts = [one.last_ms for one in found if one.last_ms is not None]
    first_ms = _first(one.first_ms for one in found)
    return summed(found, slot_ms=found[0].slot_ms, first_ms=first_ms, last_ms=max(lasts) if lasts else None)


def _first(times_ms: Iterable[int | None]) -> int | None:
    known = [one for one in times_ms if one is not None]
    return min(known) if known else None


def slots(bodies: Iterable[bytes], wanted: PageQuery = WHOLE) -> Slots:
    """Add up the slots of the wheels of shards; each gave its first slots behind the cursor."""
    found: dict[tuple[str, int], SlotInfo] = {}
    more = False
    for body in bodies:
        given = msgspec.json.decode(body, type=Slots)
        more |= given.cursor not in (UNSET, None)
        for one in given.slots:
            other = found.get((one.level, one.start_ms))
            count = one.count if other is None else one.count + other.count
            found[one.level, one.start_ms] = msgspec.structs.replace(one, count=count)
    slot_key = list_cursor.slot_key
    taken = sorted(found.values(), key=slot_key)[: wanted.count_max]
    more |= len(taken) < len(found)
    return Slots(taken, wanted.answered(list_cursor.encode(slot_key(taken[-1])) if more and taken else None))


def peak(bodies: Iterable[bytes]) -> Peak:
    """Return the earliest great peak of the shards; those of the same second are added up."""
    counts: dict[int, SlotInfo] = {}
    for body in bodies:
        one = msgspec.json.decode(body, type=Peak).peak
        if one is not None:
            other = counts.get(one.start_ms)
            count = one.count + (0 if other is None else other.count)
            counts[one.start_ms] = msgspec.structs.replace(one, count=count)
    return Peak(earliest_peak(counts.values()))


def levels(bodies: Iterable[bytes], _: PageQuery = WHOLE) -> Levels:
    """Add up the delay levels. Where processes have other settings, a level has a row for each delay."""
    pages = [msgspec.json.decode(body, type=Levels) for body in bodies]
    found: dict[tuple[int, int], list[LevelInfo]] = {}
    for one in itertools.chain.from_iterable(page.levels for page in pages):
        found.setdefault((one.level, one.delay_ms), []).append(one)
    more = [page.cursor for page in pages if page.cursor not in {UNSET, None}]
    return Levels(
        [
            msgspec.structs.replace(
                each[0],
                pending=sum(one.pending for one in each),
                next_due_ms=_first(one.next_due_ms for one in each),
            )
            for _, each in sorted(found.items())
        ],
        more[0] if more else pages[0].cursor,
    )


# ---------------------------------------------------------------------- dead letters


def offset_of(shard: int, offset: int, count: int) -> int:
    """Return the offset of a dead letter among those of all shards."""
    return offset * count + shard


def place_of(offset: int, count: int) -> tuple[int, int]:
    """Return the shard of a dead letter, and its offset there."""
    return offset % count, offset // count


def first_in(shard: int, first: int, count: int) -> int:
    """Return the first offset in a shard that is not before `first` among all."""
    return max(-((shard - first) // count), 0)


class _LettersOf(msgspec.Struct):
    letters: list[dict[str, msgspec.Raw]]
    next_offset: int | None


def letters(found: Sequence[Page], count: int, limit: int) -> bytes:
    """Merge pages of dead letters by their offsets among all shards, and give each that offset."""
    listed: list[tuple[int, dict[str, msgspec.Raw]]] = []
    ends: list[int] = []
    for shard, body in found:
        page = msgspec.json.decode(body, type=_LettersOf)
        for one in page.letters:
            own = msgspec.json.decode(one["offset"], type=int)
            listed.append((offset_of(shard, own, count), one))
        if page.next_offset is not None:
            ends.append(offset_of(shard, page.next_offset, count))
    listed.sort(key=lambda pair: pair[0])
    bound = min(ends) if ends else None
    taken = [pair for pair in listed if bound is None or pair[0] < bound][:limit]
    rest = [pair[0] for pair in listed[len(taken) :]]
    after = [one for one in (bound, *rest[:1]) if one is not None]
    content = [one | {"offset": msgspec.Raw(str(offset).encode())} for offset, one in taken]
    next_offset = min(after) if after else None
    cursor = None if next_offset is None else str(next_offset)
    return msgspec.json.encode({"letters": content, "next_offset": next_offset, "cursor": cursor})


# ---------------------------------------------------------------------- live figures


def tick(found: Sequence[Tick], missing: Sequence[int]) -> Tick:
    """Add up the figures of shards; of quantiles the worst counts."""
    measures: dict[str, float] = {}
    for one in found:
        for name, value in one.measures.items():
            before = measures.get(name)
            if before is None:
                measures[name] = value
            else:
                measures[name] = max(before, value) if name.startswith("lateness_ms_p") else before + value
    unwell = [one.status for one in found if one.status != "ready"]
    status = unwell[0] if unwell else "ready"
    if missing:
        status = f"waiting: nobody leads shard {', '.join(map(str, missing))}"
    refusing = next((one.refusing for one in found if one.refusing is not None), None)
    return Tick(
        now_ms=max((one.now_ms for one in found), default=0),
        status=status,
        pending=sum(one.pending for one in found),
        measures=measures,
        refusing=refusing,
        second=_point([one.second for one in found if one.second is not None]),
    )


def _point(found: Sequence[Point]) -> Point | None:
    """Add up the newest points of shards; the worst lateness counts."""
    if not found:
        return None
    return summed(
        found,
        at_ms=max(one.at_ms for one in found),
        span_ms=max(one.span_ms for one in found),
        lateness_ms_p50=_worst(one.lateness_ms_p50 for one in found),
        lateness_ms_p99=_worst(one.lateness_ms_p99 for one in found),
    )


def wheel_event(found: Sequence[Wheel]) -> Wheel:
    """Add up the slots of shards."""
    by_level: dict[str, dict[int, int]] = {}
    later: dict[str, int] = {}
    moved: dict[str, int] = {}  # of the shard that is furthest behind
    for one in found:
        for level in one.levels:
            moved[level.level] = min(moved.get(level.level, level.moved_until_ms), level.moved_until_ms)
            counts = by_level.setdefault(level.level, {})
            later[level.level] = later.get(level.level, 0) + level.later
            for start_ms, count in level.slots:
                counts[start_ms] = counts.get(start_ms, 0) + count
    merged: list[LevelSlots] = []
    for name, counts in by_level.items():
        ordered = sorted(counts.items())
        rest = sum(count for _, count in ordered[_SLOTS_MAX:])
        merged.append(LevelSlots(name, ordered[:_SLOTS_MAX], later[name] + rest, moved[name]))
    return Wheel(max(one.now_ms for one in found), merged, sum(one.overdue for one in found))


def figures(bodies: Iterable[bytes]) -> FigureHistory:
    """Add up the points of shards that cover the same time, to their length; the worst lateness counts."""
    found = [msgspec.json.decode(body, type=FigureHistory) for body in bodies]
    points: dict[int, list[tuple[FigureHistory, int]]] = {}
    for one in found:
        for place, (at_ms, span_ms) in enumerate(zip(one.at_ms, one.span_ms, strict=True)):
            step_ms = MINUTE_MS if span_ms > MINUTE_MS // 2 else SECOND_MS
            points.setdefault(round(at_ms / step_ms), []).append((one, place))
    each = [points[key] for key in sorted(points)]
    return FigureHistory(
        now_ms=max(one.now_ms for one in found),
        at_ms=[max(one.at_ms[place] for one, place in point) for point in each],
        span_ms=[max(one.span_ms[place] for one, place in point) for point in each],
        **{
            name: [sum(getattr(one, name)[place] for one, place in point) for point in each]
            for name in ("accepted", "fired", "recalled", "pending")
        },
        lateness_ms_p50=[_worst(one.lateness_ms_p50[place] for one, place in point) for point in each],
        lateness_ms_p99=[_worst(one.lateness_ms_p99[place] for one, place in point) for point in each],
    )


def _worst(values: Iterable[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return max(known) if known else None


# ---------------------------------------------------------------------- metrics


def metrics(found: Iterable[tuple[str, str]]) -> str:
    """Merge texts of Prometheus, each with the value of the label `shard` that its samples get."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for shard, text in found:
        family = ""
        for line in text.splitlines():
            if line.startswith("#"):
                family = line.split(" ", 3)[2]
                own = heads.setdefault(family, [])
                if line not in own and len(own) < 2:  # noqa: PLR2004 - HELP and TYPE
                    own.append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, shard))
    return "".join(
        f"{line}\n" for family, head in heads.items() for line in (*head, *samples.get(family, ()))
    )


def _labelled(sample: str, shard: str) -> str:
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{shard="{shard}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{shard="{shard}"}} {value}'
