"""The processes of a node's shards: started, started again after they die, and stopped in order.

Each runs the command line of the node with one more, hidden option (`ProcessPlace`), and derives its own
settings. It inherits a socket that listens already, so calls wait in the kernel while it starts again, but
not once the node stops; and the reading end of a pipe. At the end of the pipe it stops: no process outlives
its node. A byte in it tells it to read its configuration again, however far its start has come, where a
signal would end it.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from timerwheel.clock import Clock
from timerwheel.errors import SettingsError, TimerwheelError

STOP_S_MAX: Final = 20.0
"""How long a process may take to stop before it is killed."""
AGAIN_MS_MIN: Final = 250
AGAIN_MS_MAX: Final = 10_000
STEADY_MS: Final = 60_000
"""A process that ran for so long is started again at once."""
RELOAD: Final = b"r"
"""What the node writes for a process that is to read its configuration again."""

logger = logging.getLogger(__name__)


class ShardFailedError(TimerwheelError):
    """The process of a shard ended while the node started; its own log line says why."""

    code = "shard_failed"


class ProcessPlace(NamedTuple):
    """What the hidden option tells a shard's process: its number, its socket and its end of the pipe."""

    shard: int
    listening: int
    from_node: int

    @classmethod
    def parse(cls, text: str) -> "ProcessPlace":
        """Return the place from the option; SettingsError."""
        parts = text.split(":")
        if len(parts) != 3 or not all(part.isascii() and part.isdecimal() for part in parts):  # noqa: PLR2004
            raise SettingsError("--as-shard is for the service itself; give --shards")
        return cls(*map(int, parts))

    @property
    def option(self) -> str:
        """The option of the command line."""
        return f"--as-shard={self.shard}:{self.listening}:{self.from_node}"


class ShardProcess:
    """The process of one shard. Belongs to the event loop."""

    def __init__(self, shard: int, listening: socket.socket, arguments: Sequence[str], clock: Clock) -> None:
        self.shard = shard
        self.pid: int | None = None
        self.starts = 0
        self._listening = listening
        self._arguments = arguments
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._to_process = -1  # the writing end of the pipe of the process that runs
        self._stopping = asyncio.Event()

    async def run(self, begun: asyncio.Event) -> None:
        """Keep a process running until `stop`.

        Raises ShardFailedError if it refuses to start while `begun` is not set.
        """
        again_ms = AGAIN_MS_MIN
        while not self._stopping.is_set():
            began_ms = self._clock.monotonic_ms()
            try:
                code = await self._one_life()
                what = f"ended with {code}"
            except OSError as error:  # no descriptor, process or memory is left for it at the moment
                code, what = 1, f"could not be started: {error}"
            if self._stopping.is_set():
                return
            if code > 0 and not begun.is_set():
                raise ShardFailedError(f"shard {self.shard} {what} while the service started")
            if self._clock.monotonic_ms() - began_ms >= STEADY_MS:
                again_ms = AGAIN_MS_MIN
            logger.error("the process of shard %d %s; it starts again in %d ms", self.shard, what, again_ms)
            stopped = asyncio.create_task(self._stopped())
            try:
                await self._clock.wait_for(stopped, again_ms)
            finally:
                stopped.cancel()
            again_ms = min(again_ms * 2, AGAIN_MS_MAX)

    async def _stopped(self) -> None:
        await self._stopping.wait()

    async def _one_life(self) -> int:
        from_node, to_process = os.pipe()
        try:
            os.set_blocking(to_process, False)
            place = ProcessPlace(self.shard, self._listening.fileno(), from_node)
            # A session of its own: Ctrl-C is for the node, which stops its shards in order.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "timerwheel", *self._arguments, place.option),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(place.listening, place.from_node),
                start_new_session=True,
            )
            os.close(from_node)
            from_node = -1
            self._to_process = to_process
            self.pid, self.starts = self._process.pid, self.starts + 1
            return await self._process.wait()
        finally:
            self.pid, self._to_process = None, -1
            os.close(to_process)
            if from_node >= 0:
                os.close(from_node)

    def reload(self) -> None:
        """Have the process read its configuration again; one that is yet to be started does so anyway."""
        if self._to_process >= 0:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):  # it will anyway, or has ended
                os.write(self._to_process, RELOAD)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def stop(self) -> None:
        """Stop the process in order, or kill it after STOP_S_MAX.

        Nobody will accept what connects once the process has closed its socket. With this one open too, such
        calls would wait in the kernel until the node ends, and their outcome would be unknown; so they are
        refused at once, and go to the next leader.
        """
        self._stopping.set()
        self._listening.close()
        self.send(signal.SIGTERM)
        process = self._process
        if process is None:
            return
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await process.wait()
        except TimeoutError:
            logger.error("the process of shard %d did not stop in time; it is killed", self.shard)  # noqa: TRY400
            self.send(signal.SIGKILL)
            await process.wait()
