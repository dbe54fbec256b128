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

from timerwheel.cli.chart import bars, cells
from timerwheel.cli.connection import ask
from timerwheel.cli.options import JsonLinesFlag, UrlOption, UtcFlag
from timerwheel.cli.output import Output, console
from timerwheel.cli.units import format_about
from timerwheel.client import DEFAULT_URL, Client, ClientError, LevelSlots, Tick, UnreachableError, Wheel
from timerwheel.clock import SystemClock
from timerwheel.model.messages import SlotInfo
from timerwheel.model.text import printable

RETRY_MS = 1_000
HISTORY = 60
LATE_MS_SHOWN_MAX = 10_000  # above it in seconds, minutes, hours
LATE_MS_MAX = 3_600_000  # the last histogram bound of the service; higher values are reported as this one
# How many slots a row shows if there is room; later ones are in the next row or in the command `slots`.
SLOTS_SHOWN = {
    "second": (1_000, 60),
    "minute": (60_000, 60),
    "hour": (3_600_000, 48),
    "day": (86_400_000, 30),
}
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

    def __init__(self) -> None:
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
    url: UrlOption = DEFAULT_URL,
    utc: UtcFlag = False,
    as_json: JsonLinesFlag = False,
) -> None:
    """Watch the running service: waiting messages, rates per second, and lateness. Ctrl-C exits.

    In a pipe it prints one line per second.
    """
    output = Output(utc=utc)

    async def work(client: Client) -> None:
        if as_json or once or not sys.stdout.isatty():
            await _print(client, output, once=once, as_json=as_json)
        else:
            await _show(client, output)

    try:
        ask(url, work)
    except KeyboardInterrupt:
        return


async def _print(client: Client, output: Output, *, once: bool, as_json: bool) -> None:
    seen = Seen()
    async for event in client.watch():
        seen.take(event)
        if not isinstance(event, Tick) or (once and (not seen.rates or seen.wheel is None)):
            continue
        if as_json:
            rates = seen.rates | ({"handed out": seen.rates["leased"]} if seen.rates else {})  # its old name
            output.json({**msgspec.structs.asdict(event), "rates": rates})
        elif once:
            console().print(frame(seen, client.url, output, console().width))
        else:
            output.line(line_of(seen, event, output))
        if once:
            return


async def _show(client: Client, output: Output) -> None:
    seen, out = Seen(), console()
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
    tick = seen.tick
    if tick is None:
        return Text(f"{url}: waiting for data", overflow="ellipsis", no_wrap=True)
    ready = "bold green" if tick.status == "ready" else "bold red"
    now = output.slot_time(tick.now_ms // 1_000 * 1_000)
    head = Text.assemble((printable(tick.status), ready), f"  {url}  ", (now, "dim"))
    parts = [head, *_troubles(seen, tick), Text(), *_facts(seen, tick), Text()]
    if seen.fired:
        parts.append(_history(seen, width))
    if seen.wheel is not None:
        parts += [_level(seen.wheel, name, width) for name in SLOTS_SHOWN]
    for part in parts:
        part.overflow, part.no_wrap = "crop", True
    return Group(*parts)


def _facts(seen: Seen, tick: Tick) -> list[Text]:
    """A line for each number, with totals at the end, where a narrow terminal cuts."""
    late = [f"p{share} {_late(tick, share)}" for share in (50, 99)]
    lines = [_fact("waiting", f"{tick.pending:,}"), _fact("late", ", ".join(late))]
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
    """A bar for each of the last seconds, newest on the right."""
    shown = [round(rate) for rate in seen.fired][-_room(width, HISTORY) :]
    return _row("fired/s", shown[-1], shown)


def _level(wheel: Wheel, name: str, width: int) -> Text:
    """One level of the wheel: a bar for each slot from now on."""
    slot_ms, count = SLOTS_SHOWN[name]
    found = next((one for one in wheel.levels if one.level == name), LevelSlots(name, [], 0))
    waiting = sum(count for _, count in found.slots) + found.later
    slots = [SlotInfo(name, start_ms, start_ms + slot_ms, count) for start_ms, count in found.slots]
    row = cells(slots, wheel.now_ms // slot_ms * slot_ms, slot_ms, _room(width, count))
    return _row(f"{name}s", waiting, [cell.waiting for cell in row])


def _row(label: str, number: int, counts: list[int]) -> Text:
    head = f"{label:<{_LABEL}}{number:>{_NUMBER},}  "
    return Text.assemble((head, "bold"), *bars(counts))


def _room(width: int, wanted: int) -> int:
    return max(1, min(wanted, width - _LABEL - _NUMBER - 2))


def line_of(seen: Seen, tick: Tick, output: Output) -> str:
    """Return the state of the service as one line, for output that is not a terminal."""
    words = [printable(tick.status), f"{tick.pending:,} waiting"]
    words += [trouble.plain for trouble in _troubles(seen, tick)]
    words += [f"{seen.rates[name]:,.0f}/s {name}" for name in ("accepted", "fired") if seen.rates]
    words.append(f"p99 {_late(tick, 99)} late")
    return f"{output.stamp(tick.now_ms)}  {', '.join(words)}"
