"""Keeps the registers of the log: each sealed segment has one in a file, the others are drafts in memory.

A step scans about a mebibyte in a reader thread. A loop takes steps in the background, with pauses, and not
in a rush; a listing that needs what is not scanned yet takes some itself.

1. What `advance` has reached stays reached: a segment leaves the drafts only when its file is durable.
2. A register that turns out damaged is removed and built again; until then nothing is answered from it.
"""

import asyncio
import logging
from collections.abc import Iterator

from timerwheel.runtime.core import Core
from timerwheel.state.register_rows import entries_of
from timerwheel.store import register
from timerwheel.store.errors import OffsetError, StoreError
from timerwheel.store.log_reader import Span
from timerwheel.store.register import NOTHING, Draft, Found, Register, Source
from timerwheel.store.segment import REGISTER_SUFFIX, SEGMENT_HEADER_SIZE, SUFFIX, Gap, segment_base, walk
from timerwheel.telemetry.throttled_log import ThrottledLog

logger = logging.getLogger("timerwheel")

LOOK_MS = 1_000
"""How often the loop looks for what is to be scanned."""
PAUSE_MS = 5
"""Pause of the loop between two steps."""
LAG_BYTES_MAX = 16 << 20
"""How far the draft of the last segment may be behind, until a listing needs it."""
BUSY_BYTES = 4 << 20
"""A rush is this much stored between two looks; the loop waits until it is over."""
BEHIND_BYTES_MAX = 1 << 30
"""How far it may fall behind in a rush."""
OPENED_AT_ONCE = 64

Step = tuple[Found, int, bool]


class Registers:
    """See the module. Belongs to the event loop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._log = core.log
        self._threads = core.threads
        self._clock = core.clock
        self._state = core.state
        self._sealed: dict[int, Register] = {}
        self._drafts: dict[int, Draft] = {}
        self._unread: set[int] = set()  # drafts of segments of which the disk could not read a part
        self._turn = asyncio.Lock()
        self._reached = 0  # all before this log offset is scanned
        self._trouble = ThrottledLog(core.clock)

    async def run(self) -> None:
        """Scan what is to be scanned, until cancelled."""
        try:
            await self._threads.read(self._drop_orphans)
        except OSError as error:
            logger.warning("registers without a segment cannot be removed: %s", error)
        before = self._state.until
        while True:
            await self._clock.sleep_for(LOOK_MS)
            stored_bytes, before = self._state.until - before, self._state.until
            if stored_bytes > BUSY_BYTES and before - self._reached <= BEHIND_BYTES_MAX:
                continue
            while not await self._advanced():
                await self._clock.sleep_for(PAUSE_MS)

    async def _advanced(self) -> bool:
        try:
            return await self.advance(1, LAG_BYTES_MAX)
        except (OSError, StoreError) as error:
            if self._trouble.met():
                logger.warning("a register of keys cannot be built yet: %s", error)
            return True

    def sources(self) -> list[Source]:
        """Return the registers and drafts of all kept segments, in order."""
        first = self._log.bases[0]
        found: dict[int, Source] = {**self._sealed, **self._drafts}
        return [found[base] for base in sorted(found) if base >= first]

    async def advance(self, bytes_max: int, lag_bytes: int = 0) -> bool:
        """Scan at most about so many bytes; returns whether all that has taken effect by now is scanned.

        The last segment counts as scanned if no more than `lag_bytes` of it are missing.
        """
        until = self._state.until
        async with self._turn:
            self._forget_removed()
            await self._open_files()
            for span in self._log.spans():
                if span.base in self._sealed or span.base > until:
                    continue
                end = span.end if span.sealed else min(span.end, until)
                bytes_max = await self._scan(span, end, bytes_max, 0 if span.sealed else lag_bytes)
                if bytes_max < 0:
                    draft = self._drafts.get(span.base)
                    self._reached = end if draft is None else draft.end
                    return False
            self._reached = until
        return True

    async def rebuild(self, base: int) -> None:
        """Build the register of a segment again, which is damaged."""
        async with self._turn:
            if self._sealed.pop(base, None) is not None:
                logger.warning("the register of segment %d is damaged and is built again", base)
                await self._threads.read(self._core.files.unlink, self._log.register_path(base))

    def _forget_removed(self) -> None:
        """Forget the segments that retention has removed."""
        first = self._log.bases[0]
        for kept in (self._sealed, self._drafts):
            for base in [base for base in kept if base < first]:
                del kept[base]
        self._unread -= {base for base in self._unread if base < first}

    async def _open_files(self) -> None:
        """Open the registers that earlier runs of the service wrote."""
        unknown = [
            span
            for span in self._log.spans()
            if span.sealed and span.base not in self._sealed and span.base not in self._drafts
        ]
        for at in range(0, len(unknown), OPENED_AT_ONCE):
            part = unknown[at : at + OPENED_AT_ONCE]
            for span, found in zip(part, await self._threads.read(self._open_each, part), strict=True):
                if found is None:
                    self._drafts[span.base] = Draft(span.base, span.base + SEGMENT_HEADER_SIZE)
                else:
                    self._sealed[span.base] = found

    def _open_each(self, spans: list[Span]) -> list[Register | None]:
        files, path_of = self._core.files, self._log.register_path
        return [Register.open(files, path_of(span.base), span.base, span.end) for span in spans]

    async def _scan(self, span: Span, end: int, bytes_max: int, lag_bytes: int) -> int:
        """Scan a segment up to `end`; returns how many more bytes may be scanned, negative if none."""
        draft = self._drafts.setdefault(span.base, Draft(span.base, span.base + SEGMENT_HEADER_SIZE))
        if end - draft.end > lag_bytes:
            try:
                steps = self._steps(span.base, draft.end, end)
                while bytes_max > 0 and (step := await self._threads.read(next, steps, None)) is not None:
                    entries, reached, is_unread = step
                    bytes_max -= reached - draft.end
                    draft.add(entries, reached)
                    if is_unread:
                        self._unread.add(span.base)
                    await self._clock.breathe()
            except OffsetError:
                return bytes_max  # retention has just removed it
            if draft.end < end:
                return -1
        if span.sealed:
            await self._seal(draft)
        return bytes_max

    def _steps(self, base: int, begin: int, end: int) -> Iterator[Step]:
        """Yield the entries of the records in [begin, end) in parts, where each ends, and if it is unread."""
        for found in walk(self._log.file(base), base, begin, end):
            if isinstance(found, Gap):
                yield NOTHING, found.end, found.is_unread
            else:
                yield entries_of(found, base), found.offset + found.edges[-1], False

    async def _seal(self, draft: Draft) -> None:
        """Give a segment that is scanned to its end a file; the draft stays, and serves, if that fails.

        It stays as well if the disk could not read a part: a later start, or another disk, may.
        """
        if draft.base in self._unread:
            return
        try:
            self._sealed[draft.base] = await self._threads.read(self._write, draft)
        except OffsetError:
            return  # retention has just removed it
        except (OSError, StoreError) as error:
            if self._trouble.met():
                logger.warning("the register of segment %d stays in memory: %s", draft.base, error)
            return
        self._trouble.over()
        del self._drafts[draft.base]

    def _write(self, draft: Draft) -> Register:
        path = self._log.register_path(draft.base)
        register.write(self._core.files, path, draft)
        # Retention drops the base before the files, so this detects a register that was written too late.
        if draft.base < self._log.bases[0]:
            self._core.files.unlink(path)
            raise OffsetError(draft.base, "its segment has just been removed by retention")
        found = Register.open(self._core.files, path, draft.base, draft.end)
        if found is None:
            raise register.RegisterDamagedError(draft.base, "it cannot be read after it was written")
        return found

    def _drop_orphans(self) -> None:
        """Remove registers without a segment, which a crash left while segments were removed."""
        names = set(self._core.files.names(self._log.directory))
        for name in names:
            segment = name.removesuffix(REGISTER_SUFFIX) + SUFFIX
            if name.endswith(REGISTER_SUFFIX) and segment_base(segment) is not None and segment not in names:
                self._core.files.unlink(self._log.directory / name)
