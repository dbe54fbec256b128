"""`python -m bench.pictures`: films the console for the README, with a real service and browser.

The service holds what `timerwheel demo` schedules at its start, and its clock runs through the days before
the rush in a minute, slower and slower, then in real time. Chromium shows the console, and once a second the
page is photographed. `make pictures` writes `doc/pictures/console.webp`; an argument writes elsewhere.
"""

import asyncio
import io
import logging
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from numpy.random import default_rng
from PIL import Image
from playwright.async_api import Page, async_playwright

from bench.fast_forward import FastClock
from timerwheel.api.server import serve
from timerwheel.client import Client
from timerwheel.demo import shop
from timerwheel.settings import Serving, Settings

PATH = Path(__file__).parents[1] / "doc" / "pictures" / "console.webp"
BYTES_MAX = 1_500_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars")
WIDTH, HEIGHT = 1180, 690
QUALITY = 70
FRAME_S = 1.0  # the console hears from the service once a second
FRAME_SHOWN_MS, LAST_SHOWN_MS = 160, 2_500
SEED = 7
ARRAY = 1_000
HOUR_MS, MINUTE_MS, SECOND_MS = 3_600_000, 60_000, 1_000


class Stage(NamedTuple):
    """How long before the rush the clock stands at the end of the stage, and how long the stage takes."""

    before_ms: int
    take_s: float


AHEAD_MS = 62 * HOUR_MS
STAGES = (
    Stage(AHEAD_MS, 0),
    Stage(3 * HOUR_MS, 14),
    Stage(5 * MINUTE_MS, 10),
    Stage(40 * SECOND_MS, 8),
    Stage(6 * SECOND_MS, 8),
    Stage(-8 * SECOND_MS, 14),
)


def frame_count(stages: Sequence[Stage]) -> int:
    """Return how many frames a film of these stages has."""
    return round(sum(stage.take_s for stage in stages) / FRAME_S)


async def film(path: Path, stages: Sequence[Stage] = STAGES) -> None:
    """Record the stages and write the picture."""
    clock = FastClock()
    rush_ms = clock.now_ms() + stages[0].before_ms
    async with served(clock) as url:
        await fill(url, clock.now_ms(), rush_ms)
        async with console(url) as page:
            frames = asyncio.create_task(photographs(page, frame_count(stages)))
            for stage in stages[1:]:
                await clock.hasten_to(rush_ms - stage.before_ms, stage.take_s)
            write(path, await frames)


@asynccontextmanager
async def served(clock: FastClock) -> AsyncIterator[str]:
    """Serve on this clock, in a temporary directory; yields the URL."""
    with tempfile.TemporaryDirectory() as folder:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        settings = Settings(data=Path(folder) / "data", disk_reserve_bytes=0)
        serving = asyncio.create_task(serve(settings, Serving(port=0), ready.set_result, clock=clock))
        await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
        try:
            yield ready.result()
        finally:
            serving.cancel()
            await asyncio.wait([serving])


async def fill(url: str, now_ms: int, rush_ms: int) -> None:
    """Send what the demo schedules at its start and is due when the clock runs in real time.

    What is due before would fire late by the speed of the clock, and the console would show that.
    """
    drafts = [
        draft
        for draft in shop.stock(now_ms, rush_ms, 0, default_rng(SEED))
        if draft.get("deliver_at_ms", 0) >= rush_ms
    ]
    async with Client(url) as client:
        for at in range(0, len(drafts), ARRAY):
            await client.send_many(drafts[at : at + ARRAY])


@asynccontextmanager
async def console(url: str) -> AsyncIterator[Page]:
    """Show the console in Chromium, once it hears from the service."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise SystemExit("bench.pictures: no Chromium on the PATH; Debian, Ubuntu: apt-get install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=FLAGS)
        page = await browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        await page.goto(url)
        await page.wait_for_selector("#state[data-kind=good], #state[data-kind=ok]")
        yield page
        await browser.close()


async def photographs(page: Page, count: int) -> list[bytes]:
    """Return so many photographs of the window, one per `FRAME_S`."""
    loop, found = asyncio.get_running_loop(), list[bytes]()
    began_s = loop.time()
    for number in range(count):
        await asyncio.sleep(max(0.0, began_s + number * FRAME_S - loop.time()))
        found.append(await page.screenshot())
    return found


def write(path: Path, photographs: Sequence[bytes]) -> None:
    """Write the photographs as one moving WebP, a third of the size of a GIF; the last is shown longest."""
    first, *rest = (Image.open(io.BytesIO(data)).convert("RGB") for data in photographs)
    path.parent.mkdir(parents=True, exist_ok=True)
    durations = [*[FRAME_SHOWN_MS] * len(rest), LAST_SHOWN_MS]
    first.save(path, save_all=True, append_images=rest, duration=durations, loop=0, quality=QUALITY, method=6)


def main() -> None:
    """Film, and check the size."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else PATH
    logging.basicConfig(level=logging.ERROR)  # the service warns of each step of the clock
    asyncio.run(film(path))
    size = path.stat().st_size
    print(f"{path}: {size:,} bytes")
    if size > BYTES_MAX:
        raise SystemExit(
            f"bench.pictures: more than {BYTES_MAX:,} bytes; fewer frames make it smaller, or a lower QUALITY"
        )


if __name__ == "__main__":
    main()
