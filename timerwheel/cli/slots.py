"""`slots`: draws the wheel of a data directory, whether its service is running, stopped or killed.

The next peak is the second, not just the slot, in which most messages fall due. A coarse slot hides whether
its messages fall due together or spread over it, so the due times in the fullest slots of each level are
read.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
import typer

from timerwheel.cli.chart import RED_ABOVE_PER_S, Held, Scale, draw_legend, draw_row, draw_slots, row_of
from timerwheel.cli.options import (
    DATA_DEFAULT,
    DataOption,
    RedAboveOption,
    parse_at_ms,
    word_option,
)
from timerwheel.cli.output import MESSAGE_COLUMNS, IdTimeOutput, Output, message_rows
from timerwheel.cli.units import format_distance
from timerwheel.model.admission import HALF_DUE_MS
from timerwheel.model.messages import SlotInfo, WheelInfo
from timerwheel.wire.messages import Message

if TYPE_CHECKING:
    from timerwheel.offline.snapshot import Snapshot

SLOT_MS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
# How many slots of each level are read, and how many entries of each slot: bounds the work on a large wheel.
_SLOTS_PER_LEVEL = 3
_ENTRIES_MAX = 1_000_000
_SECOND_MS = 1_000

DueTimes = Callable[[int, int], np.ndarray]


def slots(
    data: DataOption = DATA_DEFAULT,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="List the messages in the slot that holds this time."),
    ] = None,
    level: Annotated[
        str | None,
        word_option("--level", "Show only this level.", *SLOT_MS),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most this many slots or messages.")] = 100,
    red_above: RedAboveOption = None,
    *,
    output: IdTimeOutput,
) -> None:
    """Draw the wheel: how many messages wait in each slot, and when the next peak is.

    Read-only; needs no service.
    """
    from timerwheel.offline.snapshot import open_snapshot

    red_per_s = RED_ABOVE_PER_S if red_above is None else red_above
    if output.wants_ids and at is None:
        raise typer.BadParameter("-o id lists the messages of one slot: add --at TIME")
    at_ms = None if at is None else parse_at_ms(at, output.zone)
    with open_snapshot(data) as snapshot:
        if at_ms is not None:
            _show_slot(snapshot, _slot_at(snapshot, at_ms, level), limit, output)
            return
        wheel = snapshot.wheel()
        found = snapshot.reader.slots(level, 0, HALF_DUE_MS)  # not the slot of open transactions
        peak = _peak_of(snapshot, found, wheel.now_ms)
        held = _held(snapshot)
    if output.as_data({**msgspec.to_builtins(wheel), "slots": found, "next_rush": peak}):
        return
    if level is not None:
        output.line(_headline(wheel, output))
        scale = Scale.of([slot.count for slot in found], red_per_s)
        draw_slots(found[:limit], scale, output)
        _show_rest(len(found), limit, output)
    else:
        _draw_wheel(wheel, found, held, red_per_s, output)
        output.line(_peak_words(peak, wheel, output))


def _peak_of(snapshot: "Snapshot", found: list[SlotInfo], now_ms: int) -> SlotInfo | None:
    from timerwheel.index.lookups import Window

    def due_times(from_ms: int, to_ms: int) -> np.ndarray:
        window = Window(from_ms - 1, -1, to_ms, hidden=snapshot.log_state.internal_ids)
        return snapshot.reader.pending(window, _ENTRIES_MAX)["due_ms"]

    return next_peak(found, now_ms, due_times)


def _headline(wheel: WheelInfo, output: Output) -> str:
    text = f"{output.time(wheel.now_ms)}: {wheel.pending:,} waiting"
    if wheel.leases:
        text += f" and {wheel.leases:,} lease{'' if wheel.leases == 1 else 's'} of groups"
    if wheel.overdue:
        text += f", {wheel.overdue:,} overdue"
    if wheel.next_due_ms is not None:
        text += f", next due {format_distance(wheel.next_due_ms, wheel.now_ms)}"
    return text


def _held(snapshot: "Snapshot") -> dict[str, Held]:
    """The due times that each level holds: from the end of the next finer one to its own."""
    horizons = snapshot.horizons
    return {
        name: Held(from_ms, until_ms)
        for name, from_ms, until_ms in zip(SLOT_MS, (0, *horizons), (*horizons, None), strict=True)
    }


def _draw_wheel(
    wheel: WheelInfo, found: list[SlotInfo], held: dict[str, Held], red_per_s: float, output: Output
) -> None:
    output.line(_headline(wheel, output))
    rows = []
    for name, slot_ms in SLOT_MS.items():
        own = [slot for slot in found if slot.level == name and slot.end_ms > wheel.now_ms]
        rows.append(row_of(name, slot_ms, own, wheel.now_ms, held[name]))
    scale = Scale.of([cell.waiting for row in rows for cell in row.cells], red_per_s)
    for row in rows:
        draw_row(row, scale, output)
    output.line("")
    draw_legend(scale)


def _peak_words(peak: SlotInfo | None, wheel: WheelInfo, output: Output) -> str:
    if peak is None:
        return "Next peak: none, all waiting messages are overdue." if wheel.pending else "Next peak: none."
    plural = "" if peak.count == 1 else "s"
    distance = format_distance(peak.start_ms, wheel.now_ms) if peak.start_ms > wheel.now_ms else "now"
    start = output.slot_time(peak.start_ms)
    return f"Next peak: {peak.count:,} message{plural} in the second from {start} ({distance})"


def _slot_at(snapshot: "Snapshot", at_ms: int, level: str | None) -> SlotInfo:
    """The slot that holds a due time: on the finest level that has one, otherwise an empty second."""
    for name in SLOT_MS if level is None else [level]:
        start_ms = at_ms // SLOT_MS[name] * SLOT_MS[name]
        for slot in snapshot.reader.slots(name, start_ms, start_ms + 1):
            return slot
    name = level or "second"
    start_ms = at_ms // SLOT_MS[name] * SLOT_MS[name]
    return SlotInfo(name, start_ms, start_ms + SLOT_MS[name], 0)


def _show_slot(snapshot: "Snapshot", slot: SlotInfo, limit: int, output: Output) -> None:
    views = snapshot.pending(None, slot.start_ms, slot.end_ms, limit)
    messages = [Message.of(view) for view in views]
    if not output.for_people:
        output.result({"slot": slot, "messages": messages}, ids=[message.id for message in messages])
        return
    span = f"{output.slot_time(slot.start_ms)} to {output.slot_time(slot.end_ms)}"
    leases = ", including leases of groups" if snapshot.log_state.leases else ""
    output.line(f"The {slot.level} {span}: {slot.count:,} waiting{leases}")
    if messages:
        output.table(MESSAGE_COLUMNS, message_rows(messages, output))
    _show_rest(slot.count, limit, output)


def _show_rest(count: int, limit: int, output: Output) -> None:
    if count > limit:
        output.line(f"and {count - limit:,} more; --limit shows more")


def next_peak(slots: Sequence[SlotInfo], now_ms: int, due_times: DueTimes) -> SlotInfo | None:
    """The earliest future second with at least half as many messages as the fullest; None without any.

    `due_times(from_ms, to_ms)` returns the due times of the messages waiting in that range, in milliseconds.
    """
    seconds = [
        second
        for slot in _candidates(slots, now_ms)
        if (second := _fullest_second(due_times(max(slot.start_ms, now_ms), slot.end_ms))) is not None
    ]
    most = max((second.count for second in seconds), default=0)
    return min((s for s in seconds if 2 * s.count >= most), key=lambda s: s.start_ms, default=None)


def _candidates(slots: Sequence[SlotInfo], now_ms: int) -> list[SlotInfo]:
    found: list[SlotInfo] = []
    for level in {slot.level for slot in slots}:
        own = [slot for slot in slots if slot.level == level and slot.end_ms > now_ms]
        found += sorted(own, key=lambda slot: -slot.count)[:_SLOTS_PER_LEVEL]
    return found


def _fullest_second(due_ms: np.ndarray) -> SlotInfo | None:
    if not len(due_ms):
        return None
    seconds, counts = np.unique(due_ms // _SECOND_MS, return_counts=True)
    place = int(np.argmax(counts))
    start_ms = int(seconds[place]) * _SECOND_MS
    return SlotInfo("second", start_ms, start_ms + _SECOND_MS, int(counts[place]))
