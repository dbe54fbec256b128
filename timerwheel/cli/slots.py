"""`slots`: what fires when, read from a data directory whether its service runs, is stopped or was killed."""

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from timerwheel.cli.chart import draw_level, draw_slots
from timerwheel.cli.options import DATA_DEFAULT, DataOption, JsonFlag, UtcFlag, parse_at_ms
from timerwheel.cli.output import MESSAGE_COLUMNS, Output, message_of, message_rows
from timerwheel.cli.units import format_distance
from timerwheel.model.messages import SlotInfo, WheelInfo

if TYPE_CHECKING:
    import numpy as np

    from timerwheel.offline.snapshot import Snapshot

SLOT_MS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_FAR_MS = 1 << 62


def _level(text: str) -> str:
    if text not in SLOT_MS:
        raise typer.BadParameter(f"{text!r}: give {', '.join(SLOT_MS)}")
    return text


def slots(
    data: DataOption = DATA_DEFAULT,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="List the messages of the slot of this time.")
    ] = None,
    level: Annotated[
        str | None, typer.Option(parser=_level, metavar="|".join(SLOT_MS), help="Only this level.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most so many slots or messages.")] = 100,
    utc: UtcFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Draw the wheel: how many messages wait in which slot, and when the next rush comes.

    Reads the data directory only, and needs no service.
    """
    from timerwheel.offline.snapshot import open_snapshot

    output = Output(utc=utc)
    at_ms = None if at is None else parse_at_ms(at, utc=utc)
    with open_snapshot(data) as snapshot:
        if at_ms is not None:
            _show_slot(snapshot, _slot_at(snapshot, at_ms, level), limit, output, as_json=as_json)
            return
        wheel = snapshot.wheel()
        found = snapshot.slots(level, 0, _FAR_MS)
        rush = _next_rush(snapshot, found, wheel.now_ms)
    if as_json:
        output.json({**msgspec.to_builtins(wheel), "slots": found, "next_rush": rush})
    elif level is not None:
        output.line(_headline(wheel, output))
        draw_slots(found[:limit], output)
        _say_how_many_more(len(found), limit, output)
    else:
        _draw_wheel(wheel, found, output)
        output.line("")
        output.line(_rush_words(rush, wheel, output))


def _next_rush(snapshot: "Snapshot", found: list[SlotInfo], now_ms: int) -> SlotInfo | None:
    from timerwheel.cli import peak
    from timerwheel.index.lookups import Window

    def due_times(from_ms: int, to_ms: int) -> "np.ndarray":
        window = Window(from_ms - 1, -1, to_ms, hidden=snapshot.view.internal_ids)
        return snapshot.entries(window, peak.ENTRIES_MAX)["due_ms"]

    return peak.next_rush(found, now_ms, due_times)


def _headline(wheel: WheelInfo, output: Output) -> str:
    text = f"{output.time(wheel.now_ms)}: {wheel.pending:,} waiting"
    if wheel.leases:
        text += f" and {wheel.leases:,} lease{'' if wheel.leases == 1 else 's'} of groups"
    if wheel.overdue:
        text += f", {wheel.overdue:,} overdue"
    if wheel.next_due_ms is not None:
        text += f", next due {format_distance(wheel.next_due_ms, wheel.now_ms)}"
    return text


def _draw_wheel(wheel: WheelInfo, found: list[SlotInfo], output: Output) -> None:
    output.line(_headline(wheel, output))
    for name, slot_ms in SLOT_MS.items():
        own = [slot for slot in found if slot.level == name and slot.end_ms > wheel.now_ms]
        draw_level(name, slot_ms, own, wheel.now_ms, output)


def _rush_words(rush: SlotInfo | None, wheel: WheelInfo, output: Output) -> str:
    if rush is None:
        return "Next rush: all that waits is overdue." if wheel.pending else "Next rush: none, nothing waits."
    plural = "" if rush.count == 1 else "s"
    distance = format_distance(rush.start_ms, wheel.now_ms) if rush.start_ms > wheel.now_ms else "now"
    start = output.slot_time(rush.start_ms)
    return f"Next rush: {rush.count:,} message{plural} in the second from {start} ({distance})"


def _slot_at(snapshot: "Snapshot", at_ms: int, level: str | None) -> SlotInfo:
    """The slot that holds a due time: the finest level that has one, else the second, empty."""
    for name in SLOT_MS if level is None else [level]:
        start_ms = at_ms // SLOT_MS[name] * SLOT_MS[name]
        for slot in snapshot.slots(name, start_ms, start_ms + 1):
            return slot
    name = level or "second"
    start_ms = at_ms // SLOT_MS[name] * SLOT_MS[name]
    return SlotInfo(name, start_ms, start_ms + SLOT_MS[name], 0)


def _show_slot(snapshot: "Snapshot", slot: SlotInfo, limit: int, output: Output, *, as_json: bool) -> None:
    views = snapshot.pending(None, slot.start_ms, slot.end_ms, limit)
    messages = [message_of(view) for view in views]
    if as_json:
        output.json({"slot": slot, "messages": messages})
        return
    span = f"{output.slot_time(slot.start_ms)} to {output.slot_time(slot.end_ms)}"
    leases = ", leases of groups included" if snapshot.view.leases else ""
    output.line(f"The {slot.level} {span}: {slot.count:,} waiting{leases}")
    if messages:
        output.table(MESSAGE_COLUMNS, message_rows(messages, output))
    _say_how_many_more(slot.count, limit, output)


def _say_how_many_more(count: int, limit: int, output: Output) -> None:
    if count > limit:
        output.line(f"and {count - limit:,} more; --limit shows more")
