"""Waits for lines of the service's log, from whatever thread they come."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager


class LogLines(logging.Handler):
    """The lines since the beginning of `log_lines`."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._lines: list[str] = []
        self._more = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())
        self._loop.call_soon_threadsafe(self._more.set)

    async def wait_for(self, text: str, count: int = 1) -> None:
        """Return once so many lines have this text."""
        async with asyncio.timeout(60):  # only keeps a failure from hanging
            while sum(text in line for line in self._lines) < count:
                self._more.clear()
                await self._more.wait()


@contextmanager
def log_lines() -> Iterator[LogLines]:
    lines, logger = LogLines(), logging.getLogger("timerwheel")
    logger.addHandler(lines)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)
