"""Sends of Arrow streams without the column `after_recall`: in columns from the body to the receipts.

Event loop only; streams are decoded in a thread.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import arrow, bodies, budget, responses
from timerwheel.api.http.budget import Charge
from timerwheel.api.http.problems import refused
from timerwheel.api.messages import arrow_answers, arrow_intake
from timerwheel.api.messages.arrow_intake import Rows
from timerwheel.api.messages.arrow_stream import Limits, unpacked_bytes
from timerwheel.api.messages.intake import Bounds
from timerwheel.api.messages.trace_headers import put_context
from timerwheel.api.security import access
from timerwheel.errors import Fault, RefusedError

THREADS_MAX: Final = 2
"""Most streams that are decoded at a time."""
RECEIPTS_PER_BREATH = 2_000

T = TypeVar("T")


class ArrowSends:
    """See the module."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle
        self._threads = asyncio.Semaphore(THREADS_MAX)

    async def rows(self, request: web.Request) -> Rows:
        """Return the rows of the request's body; raises `RequestError`, or OverloadedError without room."""
        pa, settings, charge = await arrow.for_body(), self._handle.settings, request[budget.KEY]
        body = await bodies.whole(request)
        stream = pa.py_buffer(body)
        entries_max = Bounds.of(settings).values_max
        limits = Limits(settings.messages_per_request_max, settings.request_bytes_max, entries_max)
        size_bytes = await self._in_thread(charge, unpacked_bytes, pa, stream, limits)
        charge.take(max(size_bytes - len(body), 0))
        rows = await self._in_thread(charge, arrow_intake.read, pa, stream, limits)
        charge.take(max(rows.size_bytes - max(size_bytes, len(body)), 0))
        return rows

    async def _in_thread(
        self,
        charge: Charge,
        work: Callable[[Any, Any, Limits], T],
        *given: Any,  # noqa: ANN401 - pyarrow and a buffer of its
    ) -> T:
        """Return what the work returns.

        If the client goes away, a thread and the charge are taken until the work is done.
        """
        await self._threads.acquire()
        running = asyncio.ensure_future(asyncio.to_thread(work, *given))
        running.add_done_callback(self._ended)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            charge.keep_until(running)
            raise

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self._threads.release()
        if not running.cancelled():
            running.exception()  # retrieved, whether or not its client still waits

    async def send(
        self,
        request: web.Request,
        rows: Rows,
        answer_pa: Any,  # noqa: ANN401 - pyarrow if the answer is to be Arrow
    ) -> web.StreamResponse:
        """Store the messages, or say what is wrong with each."""
        engine, caller = self._handle.engine, access.of(request)
        taken = await arrow_intake.take(rows, engine.clock.breathe)
        columns, count = taken.good, rows.table.num_rows
        caller.check(columns.used_topics())
        caller.charge(max(count, 1))
        if taken.faults:
            found = [
                Fault(int(taken.good_index[fault.index]), fault.code, fault.detail)
                for fault in await engine.column_sender.check(columns)
            ]
            return _refused(rows, taken.faults + found)
        put_context(request, columns.sets)
        try:
            receipts = await engine.column_sender.send(columns) if count else None
        except RefusedError as error:
            return _refused(rows, error.faults)
        status = 200 if receipts is None or receipts.all_duplicate else 201
        if answer_pa is not None:
            make = partial(arrow_answers.of_columns, answer_pa, receipts)
            return await arrow.answer(request, answer_pa, make, status=status)
        if receipts is None:
            return responses.json([], status)
        parts: list[bytes] = []
        for at in range(0, count, RECEIPTS_PER_BREATH):
            part = receipts.receipts(slice(at, min(at + RECEIPTS_PER_BREATH, count)))
            parts.append(msgspec.json.encode(part)[1:-1])
            await engine.clock.breathe()
        return responses.json_bytes(b"[%b]" % b",".join(parts), status)


def _refused(rows: Rows, faults: list[Fault]) -> web.Response:
    named = arrow_intake.named(rows.table, sorted(faults, key=lambda fault: fault.index))
    return refused(named, array=True)
