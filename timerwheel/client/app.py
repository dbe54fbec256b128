"""Workers of a program, declared by decorators and run together.

    app = App("http://127.0.0.1:8686")

    @app.worker("orders", group="closers", concurrency=8)
    def close(order: Order) -> None:
        ...

    app.run()  # or on the command line: timerwheel worker module:app

A handler may be a coroutine function, or an ordinary one, which then runs in a thread. What it gets and what
its outcomes mean is in `timerwheel.client.handlers`. The lease of a message is extended while its handler
runs. In an outage of the service workers wait for it. SIGTERM and SIGINT drain: nothing more is received,
handlers that run have `drain_ms` to finish, and the messages of those that did not are given back. A second
signal does not wait.
"""

import asyncio
import contextlib
import datetime as dt
import logging
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, TypeVar

from timerwheel.client.client import Client
from timerwheel.client.drafts import length_ms
from timerwheel.client.environment import token_of_environment, url_of_environment
from timerwheel.client.errors import ClientError, NotFoundError
from timerwheel.client.group import HOLD_MS_MAX, INVISIBLE_MS, RETRY_MS, Group
from timerwheel.client.handler_threads import HandlerThreads
from timerwheel.client.handlers import Handler, Reject, Retry
from timerwheel.client.lease import Lease, Patience, as_let, is_passing, pause_after
from timerwheel.client.loop_thread import RunningLoop
from timerwheel.clock import Clock, SystemClock
from timerwheel.groups.config import RECEIVE_MAX, Exponential, GroupConfig, Ladder, Start
from timerwheel.model.durations import parse_delay_ms

__all__ = ["App", "Reject", "Retry", "Worker", "message_id"]

DRAIN_MS = 30_000
"""How long running handlers may take after a signal."""
GIVE_BACK_MS_MAX = 5_000
"""How long giving back what is not done may take after that."""
SCHEDULE_GROUP = "app"
"""The group of a function that a schedule calls."""
_STOPPED = "its worker stopped before it was done"
_BATCH = 100
_Function = TypeVar("_Function", bound=Callable[..., Any])

logger = logging.getLogger("timerwheel.worker")
message_id: ContextVar[str] = ContextVar("timerwheel_message_id", default="-")
"""The id of the message that is being handled; `-` outside of a handler."""


class _Schedule(NamedTuple):
    """A schedule that sends the messages of a worker."""

    cron: str | None
    every_ms: int | None
    zone: str | None


class Worker:
    """One handler for the messages of a group, with its counts."""

    def __init__(
        self,
        handler: Handler,
        topic: str,
        group: str,
        *,
        concurrency: int = 1,
        config: GroupConfig | None = None,
        options: dict[str, Any] | None = None,
        schedule: _Schedule | None = None,
    ) -> None:
        self.handler = handler
        self.topic = topic
        self.group = group
        self.concurrency = concurrency
        self.config = config
        self.options = options or {}
        self.schedule = schedule
        self.in_progress: set[Lease] = set()
        self.done = 0
        self.failed = 0

    @property
    def name(self) -> str:
        """Topic and group, as logs show them."""
        return f"{self.topic}/{self.group}"

    async def handle(self, lease: Lease, threads: HandlerThreads, portal: RunningLoop) -> None:
        """Handle one message, count it, and log what became of it. Raises what makes it fail."""
        message_id.set(lease.message.id)  # in the task of this message
        self.in_progress.add(lease)
        cancelled = False
        try:
            await self.handler.handle(lease, threads, portal)
        except Reject as outcome:
            self.failed += 1
            logger.warning("%s: message %s is a dead letter: %s", self.name, lease.message.id, outcome)
        except asyncio.CancelledError:
            cancelled = True
            raise
        except Exception:
            self.failed += 1
            raise
        else:
            self.done += 1
            how = "returned to the group" if lease.settled else "done"
            logger.info("%s: message %s, attempt %d: %s", self.name, lease.message.id, lease.attempt, how)
        finally:
            if not cancelled:  # else it stays, to be given back
                self.in_progress.discard(lease)


class App:
    """Workers that run together in one process."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        drain_ms: int = DRAIN_MS,
        health: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`url` and `token` are by default those of the variables TIMERWHEEL_URL and TIMERWHEEL_TOKEN.

        `health` is the HOST:PORT of a health check over HTTP, by default none: 200 while the workers work,
        503 while they drain, with counts as JSON.
        """
        self.url = url
        self.token = token
        self.ssl_context = ssl_context
        self.drain_ms = drain_ms
        self.health = health
        self.workers: list[Worker] = []
        self.draining = False
        self._clock = clock or SystemClock()
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The client of the running workers, for asynchronous handlers. RuntimeError if they do not run."""
        if self._client is None:
            raise RuntimeError("the app is not running")
        return self._client

    # ------------------------------------------------------------------ declaring

    def worker(
        self,
        topic: str,
        *,
        group: str,
        concurrency: int = 1,
        tags: str | None = None,
        start: Start | None = None,
        max_attempts: int | None = None,
        backoff: Ladder | Exponential | None = None,
        invisible_ms: int = INVISIBLE_MS,
        hold_ms_max: int = HOLD_MS_MAX,
    ) -> Callable[[_Function], _Function]:
        """Declare that the decorated function handles the messages of a group, and return it unchanged.

        At most `concurrency` messages are handled at a time. The group is created if it does not exist. With
        `max_attempts` or `backoff` it is configured each time the worker starts. A message is leased for
        `invisible_ms`, which is extended while it is handled, for `hold_ms_max` at most.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency = {concurrency}: must be at least 1")
        config = _config(tags=tags, start=start, max_attempts=max_attempts, backoff=backoff)
        options = {"tags": tags, "start": start, "invisible_ms": invisible_ms, "hold_ms_max": hold_ms_max}

        def declare(function: _Function) -> _Function:
            handler = Handler(function)
            worker = Worker(handler, topic, group, concurrency=concurrency, config=config, options=options)
            self.workers.append(worker)
            return function

        return declare

    def every(
        self, every: str | dt.timedelta, *, name: str | None = None
    ) -> Callable[[_Function], _Function]:
        """Declare that the function runs at an interval such as "15m", in one process of all that run it.

        Its schedule and topic are called `name`, by default as the function.
        """
        length = length_ms(every) if isinstance(every, dt.timedelta) else parse_delay_ms(every)
        return self._scheduled(name, _Schedule(None, length, None))

    def cron(
        self, cron: str, *, zone: str | None = None, name: str | None = None
    ) -> Callable[[_Function], _Function]:
        """Declare that the function runs by a cron expression, read on the clock of `zone`; see `every`."""
        return self._scheduled(name, _Schedule(cron, None, zone))

    def _scheduled(self, name: str | None, schedule: _Schedule) -> Callable[[_Function], _Function]:
        def declare(function: _Function) -> _Function:
            topic = name or function.__name__
            self.workers.append(Worker(Handler(function), topic, SCHEDULE_GROUP, schedule=schedule))
            return function

        return declare

    # ------------------------------------------------------------------ running

    def run(self) -> None:
        """Run the workers until SIGTERM or SIGINT, then drain. Raises ClientError if they cannot work."""

        async def run() -> None:
            stop, hurry = asyncio.Event(), asyncio.Event()

            def signalled() -> None:
                (hurry if stop.is_set() else stop).set()

            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, signalled)
            await self.serve(stop, hurry)

        asyncio.run(run())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["App"]:
        """Run the workers within a block of an asynchronous program, and drain at its end."""
        stop = asyncio.Event()
        async with self._opened() as client, self._health_check():
            working = asyncio.create_task(self._run(client, stop, asyncio.Event()))
            try:
                yield self
            finally:
                stop.set()
                await working

    async def serve(self, stop: asyncio.Event, hurry: asyncio.Event | None = None) -> None:
        """Run the workers until `stop` is set, then drain, until `hurry` is set at most.

        Raises ClientError if a worker cannot work: its group was deleted, or the token does not allow it.
        """
        async with self._opened() as client, self._health_check():
            await self._run(client, stop, hurry or asyncio.Event())

    async def work_off(self, url: str | None = None) -> int:
        """Handle all messages that are ready, one after the other, and return their number; for tests.

        Messages that handlers send without a delay are handled too. `url` replaces that of the app.
        """
        async with self._opened(url) as client:
            threads, total = HandlerThreads(1, "timerwheel-worker"), 0
            try:
                for worker in self.workers:
                    await self._prepare(client, worker)
                while count := sum([await self._pass(client, one, threads) for one in self.workers]):
                    total += count
            finally:
                threads.close()
            return total

    # ------------------------------------------------------------------ within

    @contextlib.asynccontextmanager
    async def _opened(self, url: str | None = None) -> AsyncIterator[Client]:
        if self._client is not None:
            raise RuntimeError("the app is running already")
        url, token = url or self.url or url_of_environment(), self.token or token_of_environment()
        async with Client(url, token=token, ssl_context=self.ssl_context, clock=self._clock) as client:
            self._client = client
            try:
                yield client
            finally:
                self._client = None

    @contextlib.asynccontextmanager
    async def _health_check(self) -> AsyncIterator[None]:
        if self.health is None:
            yield
            return
        from timerwheel.client.health import serving_health  # noqa: PLC0415 - loads a web server

        async with serving_health(self.health, self._status):
            yield

    def _status(self) -> dict[str, object]:
        workers = [
            {
                "topic": worker.topic,
                "group": worker.group,
                "concurrency": worker.concurrency,
                "in_progress": len(worker.in_progress),
                "done": worker.done,
                "failed": worker.failed,
            }
            for worker in self.workers
        ]
        return {"status": "draining" if self.draining else "working", "workers": workers}

    async def _run(self, client: Client, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        if not self.workers:
            raise ValueError("this app has no workers: declare one with @app.worker(...)")
        self.draining = False
        threads = HandlerThreads(sum(one.concurrency for one in self.workers), "timerwheel-worker")
        tasks = [asyncio.create_task(self._work(client, one, threads, stop)) for one in self.workers]
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            await self._drain(client, tasks, hurry)
        finally:
            for task in (stopping, *tasks):
                task.cancel()
            await asyncio.gather(stopping, *tasks, return_exceptions=True)
            threads.close()
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _work(
        self, client: Client, worker: Worker, threads: HandlerThreads, stop: asyncio.Event
    ) -> None:
        """Run one worker until `stop` is set and its handlers are done."""
        preparing, stopping = (
            asyncio.create_task(self._prepare(client, worker)),
            asyncio.create_task(stop.wait()),
        )
        try:
            await asyncio.wait({preparing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not preparing.done():
                return
            preparing.result()
        finally:
            for task in (preparing, stopping):
                task.cancel()
            await asyncio.gather(preparing, stopping, return_exceptions=True)
        portal = RunningLoop(asyncio.get_running_loop())
        group = client.group(worker.topic, worker.group)
        logger.info("%s: %d at a time, from %s", worker.name, worker.concurrency, client.url)
        await group.consume(
            lambda lease: worker.handle(lease, threads, portal),
            concurrency=worker.concurrency,
            stop=stop,
            create=True,
            **worker.options,
        )

    async def _prepare(self, client: Client, worker: Worker) -> None:
        """Configure the group, and the schedule if there is one; waits for the service in an outage."""
        group = client.group(worker.topic, worker.group)
        while True:
            try:
                if worker.schedule is not None:
                    await _put_schedule(client, worker.topic, worker.schedule)
                if worker.config is not None:
                    await group.put(worker.config)
            except ClientError as error:
                if not is_passing(error):
                    raise
                logger.warning("%s: waiting for the service: %s", worker.name, error)
                await self._clock.sleep_for(pause_after(error, RETRY_MS))
            else:
                return

    async def _pass(self, client: Client, worker: Worker, threads: HandlerThreads) -> int:
        """Handle what is ready for one worker."""
        portal = RunningLoop(asyncio.get_running_loop())
        group, count = client.group(worker.topic, worker.group), 0
        async for lease in group.messages(batch=_BATCH, follow=False, create=True, **worker.options):
            count += 1
            try:
                await worker.handle(lease, threads, portal)
            except Exception as error:  # of the handler, which may raise anything
                logger.exception("message %s, attempt %d, will be retried", lease.message.id, lease.attempt)
                if not (lease.settled or lease.lost):
                    await lease.failed(error)
            else:
                if not (lease.settled or lease.lost):
                    await lease.ack()
        return count

    async def _drain(self, client: Client, tasks: list["asyncio.Task[None]"], hurry: asyncio.Event) -> None:
        """Wait for running handlers, then give back the messages of those that are not done."""
        self.draining = True
        hurrying = asyncio.create_task(hurry.wait())
        try:
            left: set[asyncio.Task[Any]] = set(tasks)
            end_ms = self._clock.monotonic_ms() + self.drain_ms
            while left and not hurrying.done() and (left_ms := end_ms - self._clock.monotonic_ms()) > 0:
                await asyncio.wait(
                    {hurrying, *left}, timeout=left_ms / 1000, return_when=asyncio.FIRST_COMPLETED
                )
                left = {task for task in left if not task.done()}
        finally:
            hurrying.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        groups = [client.group(worker.topic, worker.group) for worker in self.workers]
        await asyncio.gather(*map(_give_back, groups, self.workers))


async def _give_back(group: Group, worker: Worker) -> None:
    left = [lease for lease in worker.in_progress if not lease.settled]
    worker.in_progress.clear()
    if not left:
        return
    logger.warning("%s: giving back %d messages that are not done", worker.name, len(left))
    receipts = [lease.message.receipt for lease in left]
    try:
        async with asyncio.timeout(GIVE_BACK_MS_MAX / 1000):
            for first in range(0, len(receipts), RECEIVE_MAX):
                part = receipts[first : first + RECEIVE_MAX]
                nack = partial(group.nack, part, delay_ms=0, reason=_STOPPED)
                await as_let(nack, left, Patience(group.clock))
    except (ClientError, TimeoutError) as error:
        why = str(error) or f"the service did not answer within {GIVE_BACK_MS_MAX} ms"
        logger.warning("%s: they will be redelivered when their leases end: %s", worker.name, why)


def _config(**options: Any) -> GroupConfig | None:  # noqa: ANN401 - the types of `GroupConfig`
    """Return the group's configuration if it goes beyond what a receive can say."""
    given = {name: value for name, value in options.items() if value is not None}
    return GroupConfig(**given) if given.keys() & {"max_attempts", "backoff"} else None


async def _put_schedule(client: Client, name: str, wanted: _Schedule) -> None:
    """Create or change the schedule; one that is right already keeps its next run."""
    try:
        found = await client.schedules.get(name)
    except NotFoundError:
        found = None
    right = found is not None and (found.topic, found.cron, found.every_ms) == (
        name,
        wanted.cron,
        wanted.every_ms,
    )
    if found is None or not right or wanted.zone not in {None, found.zone}:
        await client.schedules.put(name, name, cron=wanted.cron, every_ms=wanted.every_ms, zone=wanted.zone)
