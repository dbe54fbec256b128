"""Sends batches of messages with deduplication keys to a service, until each is stored or refused.

Runs in executors. A send whose outcome is not known is repeated under the same keys, which stores nothing
twice. So is one to a service that is not ready, overloaded or out of space, and never before the time that
its `Retry-After` names. Rows for which there will be no room (`slot_congested`) are refused at once.
"""

import asyncio
import contextlib
import math
import re
import socket
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from timerwheel.client.client import Client
from timerwheel.client.connection import without_user
from timerwheel.client.errors import ClientError, DeniedError, OutcomeUnknownError, UnreachableError
from timerwheel.clock import Clock, SystemClock
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.schedule.rows import RowMapping, messages_of, row_text, slices, sort_out

REQUEST_ROWS = 10_000
REQUEST_BYTES = 8 << 20
REFUSED_MAX = 1_000
"""Refused rows of one task before it fails: something is wrong with all of them."""
REQUEST_MS = 30_000
"""How long the answer to one request may take."""
PATIENCE_MS = 120_000
"""How long one request is repeated."""
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 100, 5_000
WAIT_FOR = frozenset({429, 502, 503, 504, 507})
"""Statuses after which the same request may succeed; 502 and 504 are those of a proxy."""
_CLIENT_ERRORS = 4  # statuses of 400 and more
SLOT_FULL = "slot_congested"
"""The code of a row whose second is full, and stays full: the only 429 that no waiting helps."""
_TOO_LARGE = 413  # of the service, or of a proxy with a limit of its own
_COLUMN = re.compile(r"column (\w+): ")
_LONG_TEXT = 80
RECALLED = "key_recalled"
"""The code of a row that an earlier attempt or run has scheduled, and that somebody has recalled."""
NO_TIME = "no_such_time"
"""The code of a row whose time without a zone is none in the zone that was given."""


class Target(NamedTuple):
    """A service, and how to call it. Files are those of the executor."""

    url: str
    token: str | None = None
    ca: str | None = None
    cert: str | None = None
    rate: float | None = None
    """Rows a second, of each task; see `_Pace`."""
    patience_ms: int = PATIENCE_MS

    def client(self, timeout_ms: int = REQUEST_MS) -> Client:
        """A client for it. Raises JobError if a file of the executor cannot be read."""
        context = None
        if self.ca is not None or self.cert is not None:
            with _readable("ca", self.ca):
                context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                with _readable("cert", self.cert):
                    context.load_cert_chain(self.cert)
        token = self.token
        if token is not None and token.startswith("@"):
            with _readable("token", token[1:]):
                token = Path(token[1:]).read_text().strip()
        # Its caller repeats by itself.
        return Client(self.url, timeout_ms=timeout_ms, token=token, ssl_context=context, retry_ms=0)


@contextlib.contextmanager
def _readable(option: str, path: str | None) -> Iterator[None]:
    """Names the file in errors of the block: those of TLS do not."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise JobError(
            f"{option} {path} cannot be read on {socket.gethostname()}, where Spark runs the task: {error}"
        ) from None


class Refused(msgspec.Struct, frozen=True):
    """A row that the service refused, and why: the code and the text of its error."""

    key: str
    code: str
    detail: str
    row: str = ""
    """Its columns, by which it is found in the table: a key that is a digest says nothing."""


class _Part(NamedTuple):
    """Messages of one request, and the rows of the table that they are, one each; or rows that are none."""

    messages: pa.RecordBatch
    rows: pa.RecordBatch

    def slice(self, begin: int, length: int | None = None) -> "_Part":
        return _Part(self.messages.slice(begin, length), self.rows.slice(begin, length))

    def take(self, places: list[int]) -> "_Part":
        wanted = pa.array(places, pa.int64())
        return _Part(self.messages.take(wanted), self.rows.take(wanted))


class Sent(msgspec.Struct):
    """What came of rows: stored now, stored before under the same keys, or refused."""

    stored: int = 0
    duplicates: int = 0
    refused: list[Refused] = msgspec.field(default_factory=list)

    @property
    def rows(self) -> int:
        """All of them."""
        return self.stored + self.duplicates + len(self.refused)

    def add(self, other: "Sent") -> None:
        """Add what came of others."""
        self.stored += other.stored
        self.duplicates += other.duplicates
        self.refused += other.refused


def send_rows(
    batches: Iterable[pa.RecordBatch], mapping: RowMapping, target: Target, clock: Clock | None = None
) -> Sent:
    """Send each row as a message; returns when all are stored or refused. Raises JobError.

    With a rate it takes at least as long as that many rows may: who calls it again and again stays within it.
    """
    return asyncio.run(_send_rows(batches, mapping, target, clock or SystemClock()))


async def _send_rows(
    batches: Iterable[pa.RecordBatch], mapping: RowMapping, target: Target, clock: Clock
) -> Sent:
    sent = Sent()
    pace = _Pace(target.rate, clock)
    rows_max = REQUEST_ROWS if target.rate is None else max(1, min(REQUEST_ROWS, int(target.rate)))
    async with target.client() as client:
        sender = _Sender(client, target.patience_ms, pace, clock, mapping)
        # The next request is made while the service works on the last.
        under_way: asyncio.Task[Sent] | None = None
        try:
            for part in _parts(batches, mapping, rows_max, sent):
                last, under_way = under_way, asyncio.create_task(sender.send(part))
                await clock.breathe()
                if last is not None:
                    sent.add(await last)
                    _check(sent)
            if under_way is not None:
                sent.add(await under_way)
                _check(sent)
            await pace.wait(0)
        finally:
            if under_way is not None:
                under_way.cancel()
                await asyncio.gather(under_way, return_exceptions=True)
    return sent


def _parts(
    batches: Iterable[pa.RecordBatch], mapping: RowMapping, rows_max: int, sent: Sent
) -> Iterator[_Part]:
    """The messages of the rows, in requests; rows that have no due time are added to those refused."""
    for batch in batches:
        for rows in slices(batch, rows_max, REQUEST_BYTES):
            parts, left, reasons = sort_out(rows, mapping)
            sent.refused += [
                Refused(_key_of(left.slice(at, 1), mapping), NO_TIME, reason, row_text(left.slice(at, 1)))
                for at, reason in enumerate(reasons)
            ]
            _check(sent)
            for part in parts:
                begin = 0
                for messages in slices(messages_of(part, mapping), rows_max, REQUEST_BYTES):
                    yield _Part(messages, part.slice(begin, messages.num_rows))
                    begin += messages.num_rows


def _key_of(row: pa.RecordBatch, mapping: RowMapping) -> str:
    key = None if mapping.key is None else row[mapping.key][0].as_py()
    return "" if key is None else str(key)


def _check(sent: Sent) -> None:
    if len(sent.refused) > REFUSED_MAX:
        first = sent.refused[0]
        raise JobError(
            f"the service refused more than {REFUSED_MAX:,} rows of one task; the first: {described(first)}"
        )


def described(one: Refused) -> str:
    """A refused row as text."""
    key = f"key {one.key[:_LONG_TEXT]!r}, " if one.key else ""
    return f"{key}row {one.row}: {one.detail} ({one.code})"


class _Pace:
    """At most `rate` rows a second, but for the first second's rows, which may be sent at once.

    In any T seconds requests with at most rate * (T + 1) rows begin, repeated ones too. What a slow request
    lost stays lost.
    """

    def __init__(self, rate: float | None, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._next_ms = float(clock.monotonic_ms())

    async def wait(self, rows: int) -> None:
        """Wait until so many more rows may be sent; for 0, until those that were sent have had their time."""
        if self._rate is None:
            return
        now_ms = self._clock.monotonic_ms()
        begin_ms = max(self._next_ms, now_ms)
        self._next_ms = begin_ms + 1_000 * rows / self._rate
        await self._clock.sleep_for(math.ceil(begin_ms - now_ms))


class _Sender:
    def __init__(
        self, client: Client, patience_ms: int, pace: _Pace, clock: Clock, mapping: RowMapping
    ) -> None:
        self._client = client
        self._url = without_user(client.url)
        self._patience_ms = patience_ms
        self._pace = pace
        self._clock = clock
        self._mapping = mapping
        self._rows_max = REQUEST_ROWS

    async def send(self, whole: _Part) -> Sent:
        """Store these messages but for those that the service refuses."""
        sent = Sent()
        while whole.messages.num_rows:
            part = whole.slice(0, self._rows_max)
            count = part.messages.num_rows
            try:
                receipts = await self._call(part.messages)
            except ClientError as error:
                if error.status == _TOO_LARGE and not error.errors and count > 1:
                    self._rows_max = count // 2  # from now on
                    continue
                if error.code == SLOT_FULL and not error.errors and count > 1:
                    sent.add(await self._send_halves(part))
                    whole = whole.slice(count)
                    continue
                refused = _refused(part, error, self._mapping)
                for one in refused.values():
                    if one.code == RECALLED:
                        sent.duplicates += 1
                    else:
                        sent.refused.append(one)
                sent.add(await self.send(part.take([at for at in range(count) if at not in refused])))
            else:
                duplicates = pc.sum(receipts["duplicate"]).as_py() or 0
                sent.add(Sent(count - duplicates, duplicates))
            whole = whole.slice(count)
        return sent

    async def _send_halves(self, part: _Part) -> Sent:
        """Find the rows of full seconds, which the service does not name, and send the others."""
        half = part.messages.num_rows // 2
        sent = await self.send(part.slice(0, half))
        _check(sent)
        sent.add(await self.send(part.slice(half)))
        _check(sent)
        return sent

    async def _call(self, messages: pa.RecordBatch) -> pa.Table:
        """The receipts. Raises the ClientError of a refusal, JobError for a service that stays away."""
        await self._pace.wait(messages.num_rows)
        ends_ms = self._clock.monotonic_ms() + self._patience_ms
        pause_ms = _FIRST_PAUSE_MS
        while True:
            try:
                return await self._client.send_arrow(messages)
            except DeniedError as error:
                raise JobError(f"the service at {self._url} denies it: {error}") from None
            except ClientError as error:
                if not _may_pass(error):
                    raise
                wait_ms = max(pause_ms, error.retry_after_ms or 0)
                if self._clock.monotonic_ms() + wait_ms > ends_ms:
                    raise JobError(
                        f"{self._url}: {error}; tried for up to {self._patience_ms / 1_000:g} s. Rows sent "
                        "so far are scheduled; run the job again, which schedules none of them twice"
                    ) from None
            await self._clock.sleep_for(wait_ms)
            await self._pace.wait(messages.num_rows)
            pause_ms = min(2 * pause_ms, _LONGEST_PAUSE_MS)


def _may_pass(error: ClientError) -> bool:
    """Whether the same request may succeed later. JobError if the service cannot be reached at all."""
    if isinstance(error, UnreachableError):
        if error.final:
            raise JobError(f"{error}") from None
        return True
    if isinstance(error, OutcomeUnknownError):
        return True
    return error.status in WAIT_FOR and not error.errors and error.code != SLOT_FULL


def _refused(part: _Part, error: ClientError, mapping: RowMapping) -> dict[int, Refused]:
    """The rows that an error is about, by their place. Raises JobError if it is about none of them."""
    keys = part.messages["dedup_key"]

    def one(at: int, code: str, detail: str) -> Refused:
        return Refused(
            str(keys[at].as_py()), code, _in_own_words(detail, mapping), row_text(part.rows.slice(at, 1))
        )

    if error.errors:
        return {fault.index: one(fault.index, fault.code, fault.detail) for fault in error.errors}
    # What is wrong with the service, or answers in its place, says nothing of a row.
    is_ours = error.code != "illegal_answer" and (error.status or 0) // 100 == _CLIENT_ERRORS
    if part.messages.num_rows == 1 and (is_ours or error.status == _TOO_LARGE):
        return {0: one(0, error.code, error.detail)}
    raise JobError(f"the service did not take the rows: {error.detail} ({error.code})")


def _in_own_words(detail: str, mapping: RowMapping) -> str:
    """What the service says of one of its columns, with the name of the table's."""
    found = _COLUMN.match(detail)
    own = None if found is None else mapping.source_of(found[1])
    return detail if found is None or own is None else f"column {own}: {detail[found.end() :]}"
