"""`slots`: draws the wheel of a service, or of a data directory, whether or not its service runs.

The next peak is the second, not just the slot, in which most messages fall due: see `timerwheel.index.peaks`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer

from timerwheel.cli.chart import (
    RED_ABOVE_PER_S,
    SLOT_MS,
    Held,
    Scale,
    draw_legend,
    draw_row,
    draw_slots,
    row_of,
)
from timerwheel.cli.connection import Service, service_options
from timerwheel.cli.options import (
    DATA_DEFAULT,
    RedAboveOption,
    parse_at_ms,
    word_option,
)
from timerwheel.cli.output import MESSAGE_COLUMNS, IdTimeOutput, Output, message_rows
from timerwheel.cli.units import format_distance
from timerwheel.client import Client
from timerwheel.model.admission import HALF_DUE_MS
from timerwheel.model.live_events import Wheel
from timerwheel.model.messages import SlotInfo, WheelInfo
from timerwheel.wire.messages import Message

if TYPE_CHECKING:
    from timerwheel.offline.snapshot import Snapshot

_ENTRIES_MAX = 1_000_000  # read of each slot: bounds the work on a large wheel


class Drawn(NamedTuple):
    """What is drawn: the wheel, its slots, the next peak, and the due times that each level holds."""

    wheel: WheelInfo
    slots: list[SlotInfo]
    peak: SlotInfo | None
    held: dict[str, Held]


class Listed(NamedTuple):
    """The slot that holds a time, its first messages, and whether its count has leases of groups in it."""

    slot: SlotInfo
    messages: list[Message]
    has_leases: bool


def slots(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            envvar="TIMERWHEEL_DATA",
            help="Read this data directory, without its service.",
            file_okay=False,
            show_default="data, if there is no --url",
        ),
    ] = None,
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
    service: Annotated[Service, service_options(None, "none: a data directory is read")],
    output: IdTimeOutput,
) -> None:
    """Draw the wheel: how many messages are in each slot, and when the next peak is.

    Reads a data directory, or with --url asks a service; --data comes first.
    """
    red_per_s = RED_ABOVE_PER_S if red_above is None else red_above
    if output.wants_ids and at is None:
        raise typer.BadParameter("-o id lists the messages of one slot: add --at TIME")
    directory = None if data is None and service.url else data or DATA_DEFAULT
    if at is not None:
        at_ms = parse_at_ms(at, output.zone)
        if directory is None:
            listed = service.ask(lambda client: _list_of_service(client, at_ms, level, limit))
        else:
            listed = _list_of_directory(directory, at_ms, level, limit)
        _show_slot(listed, limit, output)
        return
    drawn = (
        service.ask(lambda client: _wheel_of_service(client, level))
        if directory is None
        else _wheel_of_directory(directory, level)
    )
    document = {**msgspec.to_builtins(drawn.wheel), "slots": drawn.slots, "next_rush": drawn.peak}
    if output.as_data(document):
        return
    if level is not None:
        output.line(_headline(drawn.wheel, output))
        scale = Scale.of([slot.count for slot in drawn.slots], red_per_s)
        draw_slots(drawn.slots[:limit], scale, output)
        _show_rest(len(drawn.slots), limit, output)
    else:
        _draw_wheel(drawn, red_per_s, output)
        output.line(_peak_words(drawn.peak, drawn.wheel, output))


# ---------------------------------------------------------------------- from a data directory


def _wheel_of_directory(data: Path, level: str | None) -> Drawn:
    from timerwheel.offline.snapshot import open_snapshot

    with open_snapshot(data) as snapshot:
        wheel = snapshot.wheel()
        found = snapshot.reader.slots(level, 0, HALF_DUE_MS)  # not the slot of open transactions
        return Drawn(wheel, found, _peak_of(snapshot, found, wheel.now_ms), _held(snapshot.horizons))


def _list_of_directory(data: Path, at_ms: int, level: str | None, limit: int) -> Listed:
    from timerwheel.offline.snapshot import manifest_of
    from timerwheel.state.log_manifest import log_directory

    while True:
        before = manifest_of(log_directory(data))
        listed = _list_of_snapshot(data, at_ms, level, limit)
        # Otherwise retention may have moved messages away as they were read.
        if manifest_of(log_directory(data)) == before or all(one.problem is None for one in listed.messages):
            return listed


def _list_of_snapshot(data: Path, at_ms: int, level: str | None, limit: int) -> Listed:
    from timerwheel.offline.snapshot import open_snapshot

    found: list[SlotInfo] = []
    with open_snapshot(data) as snapshot:
        for wanted in _slots_at(at_ms, level):
            if found := snapshot.reader.slots(wanted.level, wanted.start_ms, wanted.start_ms + 1):
                break
        slot = found[0] if found else _slots_at(at_ms, level)[0]
        views = snapshot.pending(None, slot.start_ms, slot.end_ms, limit)
        return Listed(slot, [Message.of(view) for view in views], bool(snapshot.log_state.leases))


def _peak_of(snapshot: "Snapshot", found: list[SlotInfo], now_ms: int) -> SlotInfo | None:
    from timerwheel.index import peaks
    from timerwheel.index.lookups import Window

    def fullest_second(slot: SlotInfo) -> SlotInfo | None:
        from_ms = max(slot.start_ms, now_ms)
        window = Window(from_ms - 1, -1, slot.end_ms, hidden=snapshot.log_state.internal_ids)
        return peaks.fullest_second(snapshot.reader.pending(window, _ENTRIES_MAX)["due_ms"])

    return peaks.earliest_peak(map(fullest_second, peaks.candidates(found, now_ms)))


def _headline(wheel: WheelInfo, output: Output) -> str:
    text = f"{output.time(wheel.now_ms)}: {wheel.pending:,} scheduled"
    if wheel.leases:
        text += f" and {wheel.leases:,} lease{'' if wheel.leases == 1 else 's'} of groups"
    if wheel.overdue:
        text += f", {wheel.overdue:,} overdue"
    if wheel.next_due_ms is not None:
        text += f", next due {format_distance(wheel.next_due_ms, wheel.now_ms)}"
    return text


# ---------------------------------------------------------------------- from a service


async def _wheel_of_service(client: Client, level: str | None) -> Drawn:
    wheel = await client.wheel()
    found = await client.slots(level, to_ms=HALF_DUE_MS)
    horizons: Sequence[int] = ()
    async for event in client.watch():
        if isinstance(event, Wheel):
            horizons = [one.moved_until_ms for one in event.levels[1:]]
            break
    return Drawn(wheel, found, await client.peak(), _held(horizons))


async def _list_of_service(client: Client, at_ms: int, level: str | None, limit: int) -> Listed:
    wheel = await client.wheel()
    found: list[SlotInfo] = []
    for wanted in _slots_at(at_ms, level):
        if found := await client.slots(wanted.level, from_ms=wanted.start_ms, to_ms=wanted.start_ms + 1):
            break
    slot = found[0] if found else _slots_at(at_ms, level)[0]
    pending = client.messages(  # all that the slot counts
        due_from_ms=slot.start_ms, due_to_ms=slot.end_ms, reserved=True, limit=limit
    )
    return Listed(slot, [message async for message in pending], bool(wheel.leases))


# ---------------------------------------------------------------------- what is shown


def _held(horizons: Sequence[int]) -> dict[str, Held]:
    """The due times that each level holds: from the end of the next finer one to its own."""
    return {
        name: Held(from_ms, until_ms)
        for name, from_ms, until_ms in zip(SLOT_MS, (0, *horizons), (*horizons, None), strict=True)
    }


def _draw_wheel(drawn: Drawn, red_per_s: float, output: Output) -> None:
    wheel = drawn.wheel
    output.line(_headline(wheel, output))
    rows = []
    for name, slot_ms in SLOT_MS.items():
        own = [slot for slot in drawn.slots if slot.level == name and slot.end_ms > wheel.now_ms]
        rows.append(row_of(name, slot_ms, own, wheel.now_ms, drawn.held[name]))
    scale = Scale.of([cell.waiting for row in rows for cell in row.cells], red_per_s)
    for row in rows:
        draw_row(row, scale, output)
    output.line("")
    draw_legend(scale)


def _peak_words(peak: SlotInfo | None, wheel: WheelInfo, output: Output) -> str:
    if peak is None:
        return "Next peak: none, all scheduled messages are overdue." if wheel.pending else "Next peak: none."
    plural = "" if peak.count == 1 else "s"
    distance = format_distance(peak.start_ms, wheel.now_ms) if peak.start_ms > wheel.now_ms else "now"
    start = output.slot_time(peak.start_ms)
    return f"Next peak: {peak.count:,} message{plural} in the {peak.level} from {start} ({distance})"


def _slots_at(at_ms: int, level: str | None) -> list[SlotInfo]:
    """The slots, empty, that may hold a due time: the finest level first, or only the one that is wanted."""
    starts = {name: at_ms // SLOT_MS[name] * SLOT_MS[name] for name in SLOT_MS}
    names = SLOT_MS if level is None else [level]
    return [SlotInfo(name, starts[name], starts[name] + SLOT_MS[name], 0) for name in names]


def _show_slot(listed: Listed, limit: int, output: Output) -> None:
    slot, messages = listed.slot, listed.messages
    if not output.for_people:
        output.result({"slot": slot, "messages": messages}, ids=[message.id for message in messages])
        return
    span = f"{output.slot_time(slot.start_ms)} to {output.slot_time(slot.end_ms)}"
    leases = ", including leases of groups" if listed.has_leases else ""
    output.line(f"The {slot.level} {span}: {slot.count:,} scheduled{leases}")
    if messages:
        output.table(MESSAGE_COLUMNS, message_rows(messages, output))
    _show_rest(slot.count, limit, output)


def _show_rest(count: int, limit: int, output: Output) -> None:
    if count > limit:
        output.line(f"and {count - limit:,} more; --limit shows more")
