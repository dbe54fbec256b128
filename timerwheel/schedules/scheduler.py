"""The scheduler: schedules are put, paused, resumed and deleted, and their runs are sent ahead of time.

All state is in the settings table `schedule`. Memory only holds when to check each schedule again.

Invariants:
1. The messages of runs, and the progress that records them, are one unit of the log: a crash leaves both or
   neither. In addition, each message has its own deduplication key.
2. A schedule has one change or step at a time. A failed step is retried after RETRY_MS and delays no other.
3. When `pause`, `delete` or a changing `put` returns, the runs sent ahead under the old rules are recalled or
   were delivered before.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from timerwheel.errors import (
    AlreadyDeliveredError,
    AlreadyRecalledError,
    RefusedError,
    TimerwheelError,
    UnknownMessageError,
)
from timerwheel.model.authorization import permitted
from timerwheel.model.messages import Outgoing, Receipt, State
from timerwheel.model.precondition import ALWAYS, Precondition, tag_of
from timerwheel.runtime.core import Core
from timerwheel.runtime.dedup_keys import DedupKeys
from timerwheel.runtime.message_reader import MessageReader
from timerwheel.runtime.recall import Recalls
from timerwheel.runtime.sender import Sender
from timerwheel.runtime.shielded import finished
from timerwheel.schedules.errors import (
    ScheduleError,
    ScheduleFieldError,
    TooManySchedulesError,
    UnknownScheduleError,
)
from timerwheel.schedules.planning import missed_runs, overdue_runs, plan
from timerwheel.schedules.spec import (
    NEXT_RUNS_MAX,
    NO_MISSED_RUNS,
    MissedRuns,
    NextRun,
    ScheduleInfo,
    ScheduleSpec,
    check_name,
    run_key,
)
from timerwheel.schedules.stored import Stored
from timerwheel.state.config_table import ConfigTable, Control, Put
from timerwheel.store.errors import CorruptionError, StoreError

logger = logging.getLogger("timerwheel")

RETRY_MS = 1_000
SCHEDULES_MAX = 10_000
STEPS_AT_ONCE = 100
UNIT_MESSAGES_MAX = 100
UNIT_BYTES_MAX = 1 << 20
LATE_MS = 1
_MESSAGE_BYTES = 512  # of a message besides its body and the owner's properties

_T = TypeVar("_T")


class Scheduler:
    """Belongs to the event loop."""

    def __init__(
        self,
        core: Core,
        sender: Sender,
        messages: MessageReader,
        keys: DedupKeys,
        recalls: Recalls,
        control: Control,
    ) -> None:
        self._clock = core.clock
        self._settings = core.settings
        self._sender = sender
        self._messages = messages
        self._keys = keys
        self._recalls = recalls
        self._control = control
        self._wake = asyncio.Event()
        self._look_ms: dict[str, int] = {}
        self._after_outage: set[str] = set()
        self._problems: dict[str, str] = {}
        self._missed: dict[str, MissedRuns] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._changes: set[asyncio.Task[Any]] = set()
        self._generation = 0
        self._seen_ms = 0

    # ------------------------------------------------------------------ for clients

    async def put(self, name: str, spec: ScheduleSpec) -> ScheduleInfo:
        """Create a schedule, or change it; a put that changes nothing has no effect. Durable on return.

        Runs of the old rules that were sent ahead are recalled. Raises ScheduleError, RefusedError if its
        messages would be refused, and what `Engine.send` raises. After an error of the disk the change may
        have been made, and is finished in the background.
        """
        info, _ = await self.put_or_make(name, spec)
        return info

    async def put_or_make(
        self, name: str, spec: ScheduleSpec, when: Precondition = ALWAYS
    ) -> tuple[ScheduleInfo, bool]:
        """Do `put`, and also return whether there was no schedule of this name.

        Raises PreconditionFailedError if the schedule is not as `when` says.
        """
        self.check(name, spec)
        return await self.finish(self._changed(name, spec, when=when))

    def check(self, name: str, spec: ScheduleSpec) -> None:
        """Raise what `put` would refuse, and change nothing."""
        check_name(name)
        spec.check()
        known, now_ms = self._control.items(ConfigTable.SCHEDULE), self._clock.now_ms()
        if name not in known and len(known) >= SCHEDULES_MAX:
            raise TooManySchedulesError(SCHEDULES_MAX)
        if spec.jitter_ms > self._settings.max_delay_ms:
            limit = self._settings.max_delay_ms
            raise ScheduleFieldError("jitter_ms", f"{spec.jitter_ms} is more than max_delay = {limit} ms")
        # As a client's message first: a run may use reserved names, its owner may not.
        theirs = Outgoing(spec.topic, spec.body, spec.properties, to_reserved=bool(spec.envelope))
        for message in (theirs, spec.message(name, 0, now_ms)):
            if faults := self._sender.check([message]):
                raise RefusedError(faults)

    async def pause(self, name: str) -> ScheduleInfo:
        """Stop a schedule until `resume`; runs until then are not missed. Raises UnknownScheduleError."""
        return (await self.finish(self._changed(name, paused=True)))[0]

    async def resume(self, name: str) -> ScheduleInfo:
        """Let a paused schedule continue with the first run from now. Raises UnknownScheduleError."""
        return (await self.finish(self._changed(name, paused=False)))[0]

    async def delete(self, name: str, when: Precondition = ALWAYS) -> None:
        """Delete a schedule and recall what it sent ahead. Raises UnknownScheduleError."""
        await self.finish(self._delete(name, when))

    async def run_now(self, name: str, key: str | None = None) -> Receipt:
        """Send the message of a schedule at once, besides its planned runs, which stay as they are. Durable.

        It works while the schedule is paused or over, too. With a key the message is sent once, however often
        it is asked for within the deduplication window; without, each time. Raises UnknownScheduleError, and
        what `Sender.send` raises.
        """
        stored = self._known(name)
        (receipt,) = await self._sender.send([stored.spec.message_now(name, key)])
        return receipt

    async def get(self, name: str) -> ScheduleInfo:
        """Return one schedule. Raises UnknownScheduleError."""
        return await self._info(name, self._known(name))

    async def find(self, names: Sequence[str]) -> list[ScheduleInfo]:
        """Return the schedules of these names, in order, without those that do not exist."""
        found: list[ScheduleInfo] = []
        for at in range(0, len(names), STEPS_AT_ONCE):
            known = [(name, self._find(name)) for name in names[at : at + STEPS_AT_ONCE]]
            found += await asyncio.gather(
                *(self._info(name, stored) for name, stored in known if stored is not None)
            )
        return found

    def topic_of(self, name: str) -> str | None:
        """Return the topic that a schedule sends to; None if there is none of this name."""
        stored = self._find(name)
        return None if stored is None else stored.spec.topic

    def names(self) -> list[str]:
        """Return the names of all schedules, sorted; some may be about to be deleted."""
        return sorted(self._control.items(ConfigTable.SCHEDULE))

    async def all(self) -> list[ScheduleInfo]:
        """Return every schedule, by name."""
        return await self.find(self.names())

    async def next_runs(self, name: str, count: int, after_run_ms: int = 0) -> list[NextRun]:
        """Return the next runs behind the run of `after_run_ms`, at most NEXT_RUNS_MAX, in order.

        None if it is paused. Runs whose messages were recalled are left out. Raises UnknownScheduleError.
        """
        return await self._next_runs(name, self._known(name), min(count, NEXT_RUNS_MAX), after_run_ms)

    async def _next_runs(self, name: str, stored: Stored, count: int, after_run_ms: int = 0) -> list[NextRun]:
        found: list[NextRun] = []
        if stored.spec.paused:
            return found
        runs, size = stored.due_after(name, self._clock.now_ms(), after_run_ms), count
        while len(found) < count and (part := list(islice(runs, size))):
            found += await self._coming(name, stored, part)
            # Nearly always all of them come; many do not after a clock that was ahead.
            size = min(2 * size, STEPS_AT_ONCE)
        return found[: max(count, 0)]

    async def _coming(self, name: str, stored: Stored, runs: Sequence[int]) -> list[NextRun]:
        """Return those of these runs whose messages wait, or will be sent."""
        messages = await asyncio.gather(*(self._sent(name, stored, run_ms) for run_ms in runs))
        found: list[NextRun] = []
        for run_ms, sent in zip(runs, messages, strict=True):
            if sent is not None and sent.state is State.SCHEDULED:
                found.append(NextRun(run_ms, sent.due_ms))
            elif sent is None and run_ms > stored.planned_until_ms:
                found.append(NextRun(run_ms, stored.spec.jittered(name, run_ms)))
        return found

    async def _sent(self, name: str, stored: Stored, run_ms: int) -> Receipt | None:
        """Return the message of a run; None if it was not sent, or ended a day ago.

        One that an earlier generation delivered counts: it fired before it could be recalled, or the clock
        was stepped back since.
        """
        if run_ms <= stored.sent_until_ms:
            sent = await self._keys.find(stored.spec.topic, run_key(name, stored.generation, run_ms))
            if sent is not None:
                return sent
        for earlier in stored.earlier:
            if earlier.after_ms < run_ms <= earlier.until_ms:
                sent = await self._keys.find(earlier.topic, earlier.key(name, run_ms))
                if sent is not None and sent.state is State.DELIVERED:
                    return sent
        return None

    # ------------------------------------------------------------------ for the engine

    async def at_start(self) -> None:
        """Handle missed runs. Call it once sends are accepted and before firing begins; never fails."""
        names = list(self._control.items(ConfigTable.SCHEDULE))
        for name in names:
            stored = self._find(name)
            self._generation = max(self._generation, 0 if stored is None else stored.generation)
        self._after_outage.update(names)
        for at in range(0, len(names), STEPS_AT_ONCE):
            await asyncio.gather(*map(self._try_step, names[at : at + STEPS_AT_ONCE]))

    async def run(self) -> None:
        """Keep the next runs sent, until cancelled."""
        while True:
            now_ms = self._clock.now_ms()
            if now_ms < self._seen_ms:
                # Stepped back: schedules to check soon would have to wait for as long as the step, and those
                # that ended have more runs.
                self._look_ms = dict.fromkeys(self.names(), now_ms)
            self._seen_ms = now_ms
            due = [name for name, look_ms in self._look_ms.items() if look_ms <= now_ms]
            if due:
                await asyncio.gather(*map(self._try_step, due[:STEPS_AT_ONCE]))
                continue
            self._wake.clear()
            await self._clock.wait_until(min(self._look_ms.values(), default=None), self._wake)

    async def drain(self) -> None:
        """Wait for changes whose callers have left."""
        while self._changes:
            await asyncio.wait(self._changes)

    # ------------------------------------------------------------------ changes

    async def finish(self, change: Coroutine[Any, Any, _T]) -> _T:
        """Finish a change even if its caller leaves: the next one must find all of it in the log."""
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await finished(task)

    async def _changed(
        self,
        name: str,
        spec: ScheduleSpec | None = None,
        *,
        paused: bool | None = None,
        when: Precondition = ALWAYS,
    ) -> tuple[ScheduleInfo, bool]:
        """Store a new generation, recall what the old one sent ahead, plan. Return whether there was none."""
        async with self._lock(name):
            old = await self._finished(name)
            if old is not None and not permitted(old.spec.topic):
                raise UnknownScheduleError(name)
            when.check(None if old is None else partial(tag_of, old.spec))
            if spec is None:
                if old is None:
                    raise UnknownScheduleError(name)
                spec = msgspec.structs.replace(old.spec, paused=bool(paused))
            if old is None or old.spec != spec:
                now_ms = self._clock.now_ms()
                begun = Stored.begin(name, spec, old, self._next_generation(now_ms), now_ms)
                self._sender.check_open([spec.topic])
                await self._store(name, begun)
                self._after_outage.discard(name)
                self._look_at(name, now_ms)
                await self._finished(name)
        await self._try_step(name)
        return await self.get(name), old is None

    async def _delete(self, name: str, when: Precondition) -> None:
        async with self._lock(name):
            old = await self._finished(name)
            if old is None or not permitted(old.spec.topic):
                raise UnknownScheduleError(name)
            when.check(partial(tag_of, old.spec))
            now_ms = self._clock.now_ms()
            leaving = old.leave(name, now_ms, all_overdue=True)
            await self._store(name, msgspec.structs.replace(old, deleted=True, leaving=leaving))
            self._look_at(name, now_ms)
            await self._finished(name)
            self._forget(name)
            self._missed.pop(name, None)

    async def _finished(self, name: str) -> Stored | None:
        """Return the schedule, after the recalls that a change has left to do; None if it does not exist."""
        stored = self._load(name)
        if stored is None:
            return None
        rewound = stored.rewound(self._clock.now_ms())
        if rewound is not stored:
            # Stored before anything is planned: which runs come next must not depend on when that succeeds.
            stored = rewound
            await self._store(name, stored)
        if stored.leaving is None and not stored.deleted:
            return await self._begun_again(name, stored)
        stored = await self._without_leaving(name, stored)
        if stored.deleted:
            await self._control.put([Put(ConfigTable.SCHEDULE, name, None)])
            return None
        await self._store(name, stored)
        return await self._begun_again(name, stored)

    async def _begun_again(self, name: str, stored: Stored) -> Stored:
        """Begin a new generation, stored, if the clock was ahead when the schedule was put."""
        now_ms = self._clock.now_ms()
        if not stored.is_ahead(now_ms):
            return stored
        stored = Stored.begin(name, stored.spec, stored, self._next_generation(now_ms), now_ms)
        await self._store(name, stored)
        if stored.leaving is not None:
            stored = await self._without_leaving(name, stored)
            await self._store(name, stored)
        return stored

    async def _without_leaving(self, name: str, stored: Stored) -> Stored:
        """Recall the runs that leave; return the schedule without them."""
        if stored.leaving is not None:
            await self._recall(stored.leaving.topic, stored.leaving.keys(name))
        return msgspec.structs.replace(stored, leaving=None)

    def _next_generation(self, now_ms: int) -> int:
        """Return a number from the clock: a schedule that was deleted and created again reuses none."""
        self._generation = max(self._generation + 1, now_ms)
        return self._generation

    # ------------------------------------------------------------------ steps

    async def _try_step(self, name: str) -> None:
        """Plan a schedule; a failure is logged, and retried."""
        try:
            async with self._lock(name):
                await self._step(name)
        except (TimerwheelError, StoreError) as error:
            self._look_at(name, self._clock.now_ms() + RETRY_MS)
            if self._problems.get(name) != str(error):
                self._problems[name] = str(error)
                logger.warning("planning schedule %s failed; retrying: %s", name, error)
        else:
            self._problems.pop(name, None)

    async def _step(self, name: str) -> None:
        stored = await self._finished(name)
        if stored is None or stored.spec.paused:
            self._forget(name)
            return
        now_ms = self._clock.now_ms()
        outage = name in self._after_outage
        overdue = await self._overdue(name, stored, now_ms) if outage else []
        missed = missed_runs(name, stored, now_ms, overdue)
        step = plan(name, stored, now_ms, self._settings.max_delay_ms, overdue)
        await self._recall(stored.spec.topic, [run_key(name, stored.generation, run) for run in step.revoke])
        # Overdue or late runs have not fired yet: after a crash the next start must judge them.
        late_ms = [due_ms for run in step.send if (due_ms := stored.spec.jittered(name, run)) <= now_ms]
        planned_ms = stored.planned_ms if outage else min([now_ms, *(due_ms - 1 for due_ms in late_ms)])
        stored = msgspec.structs.replace(stored, planned_ms=planned_ms)
        await self._send(name, stored, step.send, step.planned_until_ms)
        if missed:
            before = self._missed.get(name, NO_MISSED_RUNS).count
            self._missed[name] = MissedRuns(before + len(missed), missed[-1])
        self._after_outage.discard(name)
        if step.wake_ms is None:
            self._look_ms.pop(name, None)
        else:
            self._look_at(name, step.wake_ms)

    async def _overdue(self, name: str, stored: Stored, now_ms: int) -> list[int]:
        """Return which of the runs that were sent ahead and are due did not fire."""
        found: list[int] = []
        if stored.spec.missed == "all":
            return found
        for run_ms in overdue_runs(name, stored, now_ms):
            key = run_key(name, stored.generation, run_ms)
            try:
                view = await self._messages.get(await self._keys.id_of(stored.spec.topic, key))
            except (UnknownMessageError, CorruptionError):
                continue
            if view.state is State.SCHEDULED:
                found.append(run_ms)
        return found

    async def _send(self, name: str, stored: Stored, runs: list[int], until_ms: int) -> None:
        """Store runs and progress, in as many units as their size requires.

        A run whose time has come is sent as a timer of LATE_MS: messages without a delay would be delivered
        before the overdue ones that were sent ahead, which have yet to fire. Its content then differs from
        that of the same run sent in time, so its key would be refused, but no run is sent twice.
        """
        if until_ms == stored.planned_until_ms:
            return
        if stored.sent_ahead or stored.earlier:
            runs = [run_ms for run_ms in runs if await self._sent(name, stored, run_ms) is None]
        spec, settings = stored.spec, self._settings
        late_ms = min(LATE_MS, settings.max_delay_ms)
        properties_bytes = sum(len(key) + len(value) for key, value in spec.properties.items())
        size_bytes = len(spec.body) + 4 * properties_bytes + _MESSAGE_BYTES
        fit = min(
            UNIT_MESSAGES_MAX, settings.slot_messages_max or UNIT_MESSAGES_MAX
        )  # late ones share a slot
        count = max(min(UNIT_BYTES_MAX // size_bytes, fit), 1)
        for at in range(0, max(len(runs), 1), count):
            part = runs[at : at + count]
            reached_ms = until_ms if at + count >= len(runs) else part[-1]
            now_ms = self._clock.now_ms()
            progress = stored.planned(reached_ms, now_ms)
            messages = [
                spec.message(
                    *(name, stored.generation, run_ms),
                    delay_ms=late_ms if spec.jittered(name, run_ms) <= now_ms else None,
                )
                for run_ms in part
            ]
            await self._sender.send(messages, puts=[Put(ConfigTable.SCHEDULE, name, progress.encode())])

    async def _recall(self, topic: str, keys: Sequence[str]) -> None:
        for at in range(0, len(keys), STEPS_AT_ONCE):
            await _all_of(self._recall_one(topic, key) for key in keys[at : at + STEPS_AT_ONCE])

    async def _recall_one(self, topic: str, key: str) -> None:
        try:
            await self._recalls.recall_key(topic, key)
        except (AlreadyDeliveredError, AlreadyRecalledError, UnknownMessageError):
            pass
        except CorruptionError as error:
            logger.warning("a run can neither be recalled nor fire: %s", error)

    # ------------------------------------------------------------------ what is kept

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def _load(self, name: str) -> Stored | None:
        value = self._control.get(ConfigTable.SCHEDULE, name)
        try:
            return None if value is None else Stored.decode(value)
        except msgspec.ValidationError as error:
            raise ScheduleError("name", f"the stored value of {name!r} is not a schedule: {error}") from error

    def _find(self, name: str) -> Stored | None:
        """Return it as clients see it: None if it is being deleted or cannot be read."""
        try:
            stored = self._load(name)
        except ScheduleError:
            return None
        return None if stored is None or stored.deleted else stored.rewound(self._clock.now_ms())

    def _known(self, name: str) -> Stored:
        stored = self._find(name)
        if stored is None:
            raise UnknownScheduleError(name)
        return stored

    async def _store(self, name: str, stored: Stored) -> None:
        await self._control.put([Put(ConfigTable.SCHEDULE, name, stored.encode())])

    async def _info(self, name: str, stored: Stored) -> ScheduleInfo:
        try:
            runs = await self._next_runs(name, stored, 1)
        except ScheduleError:  # for example, its zone no longer exists; `problem` says so
            runs = []
        next_run_ms = runs[0].run_ms if runs else None
        return ScheduleInfo(
            name,
            stored.spec,
            stored.generation,
            stored.made_ms,
            next_run_ms,
            self._problems.get(name),
            self._missed.get(name, NO_MISSED_RUNS),
        )

    def _look_at(self, name: str, look_ms: int) -> None:
        self._look_ms[name] = look_ms
        self._wake.set()

    def _forget(self, name: str) -> None:
        self._look_ms.pop(name, None)
        self._problems.pop(name, None)
        self._after_outage.discard(name)


async def _all_of(steps: Iterable[Awaitable[None]]) -> None:
    """Wait for all of them, then raise the first error: none may continue by itself."""
    for outcome in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
