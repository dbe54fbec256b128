"""`top`: a live view of the running service; in a pipe it prints lines or JSON."""

import sys
from collections import deque
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from timerwheel.cli.chart import RED_ABOVE_PER_S, SLOT_MS, SPAN_SLOTS_MIN, Cell, Held, Row, Scale, bars, cells
from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.options import RedAboveOption
from timerwheel.cli.output import LineOutput, Output, console
from timerwheel.cli.units import format_about
from timerwheel.client import Client, ClientError, LevelSlots, Tick, UnreachableError, Wheel
from timerwheel.client.connection import without_user
from timerwheel.clock import SystemClock
from timerwheel.model.messages import SlotInfo
from timerwheel.model.text import printable

RETRY_MS = 1_000
HISTORY = 500  # seconds; more than a terminal has columns
LATE_MS_SHOWN_MAX = 10_000  # above it in seconds, minutes, hours
LATE_MS_MAX = 3_600_000  # the last histogram bound of the service; higher values are reported as this one
_NAME, _LABEL, _NUMBER = 12, 8, 13  # columns
_RATES = {
    "accepted": "accepted_total",
    "fired": "fired_total",
    "recalled": "recalled_total",
    "rescheduled": "rescheduled_total",
    "leased": "leased_total",
    "pushed": "push_attempts_total",
}


class Seen:
    """The latest events of the service, and the rates between them."""

    def __init__(self, red_above_per_s: float = RED_ABOVE_PER_S) -> None:
        self.red_above_per_s = red_above_per_s
        self.tick: Tick | None = None
        self.wheel: Wheel | None = None
        self.rates: dict[str, float] = {}  # per second, by the name shown; empty until the second tick
        self.fired: deque[float] = deque(maxlen=HISTORY)

    def take(self, event: Tick | Wheel) -> None:
        """Record an event."""
        if isinstance(event, Wheel):
            self.wheel = event
            return
        before, self.tick = self.tick, event
        self.rates = {} if before is None else _rates(before, event)
        if self.rates:
            self.fired.append(self.rates["fired"])


def _rates(before: Tick, after: Tick) -> dict[str, float]:
    """Rates per second between two ticks; empty if the service restarted in between."""
    past_s = (after.now_ms - before.now_ms) / 1000
    done = {name: after.measures.get(key, 0) - before.measures.get(key, 0) for name, key in _RATES.items()}
    if past_s <= 0 or any(count < 0 for count in done.values()):
        return {}
    return {name: count / past_s for name, count in done.items()}


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Watch for a second, print once, and exit.")] = False,
    red_above: RedAboveOption = None,
    service: ServiceOptions,
    output: LineOutput,
) -> None:
    """Watch the running service: scheduled messages, rates per second, and lateness. Ctrl-C exits.

    In a pipe it prints one line per second.
    """
    seen = Seen(RED_ABOVE_PER_S if red_above is None else red_above)

    async def work(client: Client) -> None:
        if not output.for_people or once or not sys.stdout.isatty():
            await _print(seen, client, output, once=once)
        else:
            await _show(seen, client, output)

    try:
        service.ask(work)
    except KeyboardInterrupt:
        return


async def _print(seen: Seen, client: Client, output: Output, *, once: bool) -> None:
    async for event in client.watch():
        seen.take(event)
        if not isinstance(event, Tick) or (once and (not seen.rates or seen.wheel is None)):
            continue
        if not output.for_people:
            rates = seen.rates | ({"handed out": seen.rates["leased"]} if seen.rates else {})  # its old name
            output.json({**msgspec.structs.asdict(event), "rates": rates})
        elif once:
            console().print(frame(seen, client.url, output, console().width))
        else:
            output.line(line_of(seen, event, output))
        if once:
            return


async def _show(seen: Seen, client: Client, output: Output) -> None:
    out = console()
    with Live(console=out, screen=True, auto_refresh=False) as live:
        async for event in _without_end(client):
            if isinstance(event, str):
                live.update(Text(f"{printable(event)}; retrying"), refresh=True)
                continue
            seen.take(event)
            live.update(frame(seen, client.url, output, out.width), refresh=True)


async def _without_end(client: Client) -> AsyncIterator[Tick | Wheel | str]:
    """Yields events, and error texts while the service is unreachable; raises if the first call fails."""
    reached = False
    while True:
        try:
            async for event in client.watch():
                reached = True
                yield event
        except ClientError as error:
            if not reached or not (isinstance(error, UnreachableError) or error.code == "not_ready"):
                raise
            yield error.detail
        await SystemClock().sleep_for(RETRY_MS)


# ---------------------------------------------------------------------- drawing


def frame(seen: Seen, url: str, output: Output, width: int) -> RenderableType:
    """The screen, `width` columns wide."""
    tick, url = seen.tick, without_user(url)
    if tick is None:
        return Text(f"{url}: waiting for data", overflow="ellipsis", no_wrap=True)
    ready = "bold green" if tick.status == "ready" else "bold red"
    now = output.slot_time(tick.now_ms // 1_000 * 1_000)
    head = Text.assemble((printable(tick.status), ready), f"  {url}  ", (now, "dim"))
    parts = [head, *_troubles(seen, tick), Text(), *_facts(seen, tick), Text()]
    if seen.fired:
        parts.append(_history(seen, width))
    if seen.wheel is not None:
        parts += _levels(seen.wheel, seen.red_above_per_s, width)
    for part in parts:
        part.overflow, part.no_wrap = "crop", True
    return Group(*parts)


def _facts(seen: Seen, tick: Tick) -> list[Text]:
    """A line for each number, with totals at the end, where a narrow terminal cuts."""
    late = [f"p{share} {_late(tick, share)}" for share in (50, 99)]
    lines = [_fact("scheduled", f"{tick.pending:,}"), _fact("late", ", ".join(late))]
    lines.append(Text(f"{'':<{_NAME}}{'per second':>10}  since the start", style="dim"))
    for name, key in _RATES.items():
        rate = f"{seen.rates[name]:,.0f}/s" if seen.rates else "-"
        lines.append(_fact(name, f"{rate:>10}  {int(tick.measures.get(key, 0)):,}"))
    return lines


def _late(tick: Tick, share: int) -> str:
    """A percentile of the lateness of the messages fired in the last minute."""
    late_ms = tick.measures.get(f"lateness_ms_p{share}", 0)
    if late_ms >= LATE_MS_MAX:
        return f"{format_about(LATE_MS_MAX)} or more"
    return f"{late_ms:,.1f} ms" if late_ms < LATE_MS_SHOWN_MAX else format_about(round(late_ms))


def _troubles(seen: Seen, tick: Tick) -> list[Text]:
    """A line for each problem."""
    found = []
    if tick.refusing is not None:
        found.append(f"refuses new messages: {printable(tick.refusing)}")
    if seen.wheel is not None and seen.wheel.overdue:
        found.append(f"{seen.wheel.overdue:,} overdue")
    return [Text(words, style="bold red") for words in found]


def _fact(name: str, words: str) -> Text:
    return Text.assemble((f"{name:<{_NAME}}", "bold"), words)


def _history(seen: Seen, width: int) -> Text:
    """A bar for each of the last seconds, newest on the right; on a scale of its own."""
    shown = [round(rate) for rate in seen.fired][-_room(width) :]
    row = [Cell(at * 1_000, at * 1_000 + 1_000, count) for at, count in enumerate(shown)]
    return _row("fired/s", shown[-1], bars(row, Scale.of(shown, seen.red_above_per_s)))


def _levels(wheel: Wheel, red_above_per_s: float, width: int) -> list[Text]:
    """A row for each level of the wheel, with bars for its slots from now on, and what they mean."""
    rows = [_level(wheel, name, width) for name in SLOT_MS]
    scale = Scale.of([cell.waiting for row in rows for cell in row.cells], red_above_per_s)
    lines = [
        _row(f"{row.name}s", sum(slot.count for slot in row.slots), bars(row.cells, scale, row.held))
        for row in rows
    ]
    each = [format_about(row.cells[0].end_ms - row.cells[0].start_ms) for row in rows]
    return [*lines, Text(scale.legend(), style="dim"), Text(f"a cell is {', '.join(each)}", style="dim")]


def _level(wheel: Wheel, name: str, width: int) -> Row:
    slot_ms, room = SLOT_MS[name], _room(width)
    found = {one.level: one for one in wheel.levels}
    own = found.get(name, LevelSlots(name, [], 0))
    slots = [SlotInfo(name, start_ms, start_ms + slot_ms, count) for start_ms, count in own.slots]
    per_cell = -(-SPAN_SLOTS_MIN[name] // room)
    row = cells(slots, wheel.now_ms // slot_ms * slot_ms, per_cell * slot_ms, room)
    if own.later:
        slots.append(SlotInfo(name, row[-1].end_ms, row[-1].end_ms + slot_ms, own.later))
    names = list(SLOT_MS)
    coarser = found.get(names[names.index(name) + 1]) if name != names[-1] else None
    until_ms = None if coarser is None else coarser.moved_until_ms or None  # an older service does not say
    return Row(name, slots, row, Held(own.moved_until_ms, until_ms))


def _row(label: str, number: int, drawn: list[tuple[str, str]]) -> Text:
    head = f"{label:<{_LABEL}}{number:>{_NUMBER},}  "
    return Text.assemble((head, "bold"), *drawn)


def _room(width: int) -> int:
    return max(1, width - _LABEL - _NUMBER - 2)


def line_of(seen: Seen, tick: Tick, output: Output) -> str:
    """Return the state of the service as one line, for output that is not a terminal."""
    words = [printable(tick.status), f"{tick.pending:,} scheduled"]
    words += [trouble.plain for trouble in _troubles(seen, tick)]
    words += [f"{seen.rates[name]:,.0f}/s {name}" for name in ("accepted", "fired") if seen.rates]
    words.append(f"p99 {_late(tick, 99)} late")
    return f"{output.stamp(tick.now_ms)}  {', '.join(words)}"
