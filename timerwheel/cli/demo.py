"""`demo`: a throw-away service with the life of a small shop in it, shown in the browser."""

import asyncio
import logging
import os
import shlex
import shutil
import signal
import sys
import threading
import webbrowser
from typing import Annotated

import typer
from numpy.random import default_rng

from timerwheel.cli.options import parse_at_ms
from timerwheel.cli.output import JsonOutput, Output
from timerwheel.cli.units import format_distance
from timerwheel.client import DEFAULT_URL, Client
from timerwheel.clock import SystemClock
from timerwheel.demo import shop
from timerwheel.demo.endpoints import endpoints
from timerwheel.demo.life import PACKING, Life, Pace
from timerwheel.demo.service import Service, free_port, throw_away_service
from timerwheel.settings import PORT_MAX
from timerwheel.version import version

ORDERS_PER_S = 5.0
ORDERS_PER_S_MIN, ORDERS_PER_S_MAX = 0.1, 100.0
RUSH_HOUR = 19
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def demo(
    *,
    open_browser: Annotated[
        bool, typer.Option(" /--no-open", show_default=False, help="Do not open the console in the browser.")
    ] = True,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=PORT_MAX, show_default="8686 if it is free", help="Port of the service; 0 picks one."
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option(min=ORDERS_PER_S_MIN, max=ORDERS_PER_S_MAX, help="Orders per second.")
    ] = ORDERS_PER_S,
    rush: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", show_default="19:00", help="When thousands of messages are due: 'in 2 minutes'."
        ),
    ] = None,
    output: JsonOutput,
) -> None:
    """Show a service with a shop's messages in it, in the browser; Ctrl-C ends it and removes its data."""
    clock = SystemClock()
    now_ms = clock.now_ms()
    rush_ms = shop.next_hour_ms(now_ms, RUSH_HOUR) if rush is None else parse_at_ms(rush, None, "--rush")
    if rush_ms <= now_ms:
        raise typer.BadParameter(f"{rush!r} is in the past", param_hint="--rush")
    # Workers that lose their service report it; here the command does.
    logging.getLogger("timerwheel.client").setLevel(logging.CRITICAL)
    asyncio.run(
        _run(free_port() if port is None else port, Pace(rate, rush_ms), output, open_browser=open_browser)
    )


async def _run(port: int, pace: Pace, output: Output, *, open_browser: bool) -> None:
    """Run the demo until a signal; raises ServiceEndedError."""
    stopped = asyncio.Event()
    for number in STOPS:
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    stopping = asyncio.create_task(stopped.wait())
    showing = asyncio.create_task(_show(port, pace, output, open_browser=open_browser))
    await asyncio.wait((stopping, showing), return_when=asyncio.FIRST_COMPLETED)
    if not showing.done():
        showing.cancel()
        await asyncio.wait([showing])
    if not showing.cancelled():
        showing.result()


async def _show(port: int, pace: Pace, output: Output, *, open_browser: bool) -> None:
    """Start the service, fill it, say where it is, and live until cancelled."""
    if sys.stderr.isatty():
        print("starting a service, and filling it with the messages of a shop ...", file=sys.stderr)
    async with endpoints() as hooks, throw_away_service(port) as service, Client(service.url) as client:
        life = Life(client, SystemClock(), default_rng(), pace)
        scheduled = await life.begin(hooks, service.restart_charts)
        _announce(service, pace, scheduled, output)
        if open_browser and any(os.environ.get(name) for name in DISPLAYS):
            # Some browsers run until they are closed; the demo neither waits for them nor ends them.
            threading.Thread(target=webbrowser.open, args=(service.url,), daemon=True).start()
        living = asyncio.create_task(life.go_on())
        try:
            await service.ended()
        finally:
            living.cancel()
            await asyncio.wait([living])


def _announce(service: Service, pace: Pace, scheduled: int, output: Output) -> None:
    facts = {
        "url": service.url,
        "data": str(service.data),
        "pid": service.process.pid,
        "scheduled": scheduled,
        "rush_ms": pace.rush_ms,
    }
    command = "timerwheel" if shutil.which("timerwheel") else shlex.quote(sys.argv[0])
    url = "" if service.url == DEFAULT_URL else f" --url {service.url}"
    rush = f"{output.slot_time(pace.rush_ms)} ({format_distance(pace.rush_ms, SystemClock().now_ms())})"
    output.result(
        facts,
        f"timerwheel {version()}: the demo is ready on {service.url}; Ctrl-C ends it and removes its data",
        f"{scheduled:,} messages are scheduled, {pace.orders_per_s:g} orders come in per second,",
        f"and the rush is at {rush}. In another terminal, try:",
        f"    {command} top{url}",
        f"    {command} slots --data {shlex.quote(str(service.data))}",
        f"    {command} dlq list {PACKING} --topic {shop.PARCELS}{url}",
    )
