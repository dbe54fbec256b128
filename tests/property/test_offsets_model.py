"""Groups that commit offsets, against two dictionaries: what was committed, and what is in the log."""

import asyncio

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from tests.harness.drive import settle
from tests.harness.engine_machine import EngineMachine, thorough
from tests.harness.group_checks import check_groups
from timerwheel.groups import offset_commits
from timerwheel.groups.config import GroupConfig, GroupFieldError, UnknownGroupError
from timerwheel.model.messages import Outgoing

QUEUES = 3
GROUPS = (("orders", "g"), ("orders", "h"))
Cursors = dict[int, int]


class OffsetsModel(EngineMachine):
    """A crash loses the commits since the last flush, never more; a cursor is one that somebody committed."""

    @initialize()
    def start(self) -> None:
        self.ends = [0] * QUEUES
        self.limits = pytest.MonkeyPatch()
        self.limits.setattr(offset_commits, "RECORD_QUEUES_MAX", QUEUES)  # so two groups may be two records
        self.committed: dict[tuple[str, str], Cursors] = {}
        self.stored: dict[tuple[str, str], Cursors] = {}
        self.open()
        self.run(self.engine.topics.change("orders", queues=QUEUES))

    def open(self) -> None:
        self.open_engine(retention_ms=10**12, offset_commit_interval_ms=3_600_000)
        self.run(settle(self.engine))

    def flushed(self) -> None:
        self.stored = {place: dict(cursors) for place, cursors in self.committed.items()}

    @rule(queues=st.lists(st.integers(0, QUEUES - 1), min_size=1, max_size=5))
    def send(self, queues: list[int]) -> None:
        self.run(self.engine.sender.send([Outgoing("orders", b"x", queue=queue) for queue in queues]))
        for queue in queues:
            self.ends[queue] += 1

    @rule(place=st.sampled_from(GROUPS), start=st.sampled_from(("head", "tail")))
    def put(self, place: tuple[str, str], start: str) -> None:
        self.run(self.engine.groups.put(*place, GroupConfig(kind="offsets", start=start)))
        if place not in self.committed:
            self.committed[place] = dict(enumerate(self.ends)) if start == "tail" else {}
            self.stored[place] = dict(self.committed[place])

    @rule(place=st.sampled_from(GROUPS))
    def delete(self, place: tuple[str, str]) -> None:
        if place in self.committed:
            self.run(self.engine.groups.delete(*place))
            del self.committed[place], self.stored[place]

    @rule(
        place=st.sampled_from(GROUPS),
        cursors=st.dictionaries(st.integers(0, QUEUES), st.integers(0, 12), max_size=QUEUES),
    )
    def commit(self, place: tuple[str, str], cursors: Cursors) -> None:
        commit = self.engine.groups.offsets.commit
        if place not in self.committed:
            with pytest.raises(UnknownGroupError):
                commit(*place, cursors)
        elif any(queue >= QUEUES or offset > self.ends[queue] for queue, offset in cursors.items()):
            with pytest.raises(GroupFieldError):
                commit(*place, cursors)
        else:
            commit(*place, cursors)
            self.committed[place] |= cursors

    @rule(place=st.sampled_from(GROUPS), queue=st.integers(0, QUEUES - 1), offset=st.integers(0, 12))
    def rewind_a_queue(self, place: tuple[str, str], queue: int, offset: int) -> None:
        if place in self.committed:
            self.run(self.engine.groups.rewind(*place, offsets={queue: offset}))
            self.committed[place][queue] = min(offset, self.ends[queue])
            self.stored[place] = dict(self.committed[place])

    @rule(
        place=st.sampled_from(GROUPS),
        queue=st.integers(0, QUEUES - 1),
        offset=st.integers(0, 12),
        cursors=st.dictionaries(st.integers(0, QUEUES - 1), st.integers(0, 12), min_size=1),
        steps=st.integers(0, 12),
    )
    def commit_during_a_rewind(
        self, place: tuple[str, str], queue: int, offset: int, cursors: Cursors, steps: int
    ) -> None:
        if place in self.committed:
            cursors = {queue: min(offset, self.ends[queue]) for queue, offset in cursors.items()}
            rewound = {queue: min(offset, self.ends[queue])}
            during = self.run(self.rewind_and_commit(place, rewound, cursors, steps))
            found, before = self.cursors(place), self.committed[place]
            # On the queue of both, either may have come last, unless the rewind was done before the commit.
            assert found == before | rewound | cursors or (during and found == before | cursors | rewound)
            self.committed[place] = found
            self.flush()

    async def rewind_and_commit(
        self, place: tuple[str, str], rewound: Cursors, cursors: Cursors, steps: int
    ) -> bool:
        """Commit after so many steps of the rewind; whether it was still under way."""
        rewinding = asyncio.create_task(self.engine.groups.rewind(*place, offsets=rewound))
        for _ in range(steps):
            await asyncio.sleep(0)
        during = not rewinding.done()
        self.engine.groups.offsets.commit(*place, cursors)
        await rewinding
        return during

    @rule(place=st.sampled_from(GROUPS), to=st.sampled_from(("head", "tail")))
    def rewind(self, place: tuple[str, str], to: str) -> None:
        if place in self.committed:
            self.run(self.engine.groups.rewind(*place, to=to))
            self.committed[place] = dict(enumerate([0] * QUEUES if to == "head" else self.ends))
            self.stored[place] = dict(self.committed[place])

    @rule()
    def flush(self) -> None:
        self.run(self.engine.groups.offsets.flush())
        self.flushed()

    @rule(seed=st.integers(0, 1 << 30), index=st.sampled_from(("kept", "older", "lost", "garbage")))
    def crash_and_reopen(self, seed: int, index: str) -> None:
        self.crash(seed, index)
        self.open()
        self.committed = {place: dict(cursors) for place, cursors in self.stored.items()}

    @rule(steps=st.integers(1, 12), seed=st.integers(0, 1 << 30))
    def crash_during_a_flush(self, steps: int, seed: int) -> None:
        before = {place: dict(cursors) for place, cursors in self.stored.items()}
        self.run(self.flush_for(steps))
        self.crash(seed)
        self.open()
        found = {place: self.cursors(place) for place in self.committed}
        for place, cursors in found.items():
            assert cursors in (before[place], self.committed[place]), "a part of a record"
        self.committed = found
        self.flushed()

    async def flush_for(self, steps: int) -> None:
        """Begin to store what was committed; the crash comes after so many steps of the loop."""
        flushing = asyncio.create_task(self.engine.groups.offsets.flush())
        for _ in range(steps):
            await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)

    @rule()
    def stop_and_start(self) -> None:
        self.run(self.engine.close())
        self.flushed()
        self.open()

    def teardown(self) -> None:
        super().teardown()
        self.limits.undo()

    def cursors(self, place: tuple[str, str]) -> Cursors:
        committed = self.engine.groups.offsets.committed
        found = {queue: committed(*place, queue) for queue in range(QUEUES)}
        return {queue: offset for queue, offset in found.items() if offset is not None}

    @invariant()
    def each_group_has_what_was_committed(self) -> None:
        for place, cursors in self.committed.items():
            assert self.cursors(place) == cursors
            lag = sum(end - cursors.get(queue, 0) for queue, end in enumerate(self.ends))
            assert self.engine.groups.info(*place).lag == lag
        check_groups(self.engine)


OffsetsModel.TestCase.settings = thorough(80)


class TestOffsetsAgreeWithTheModel(OffsetsModel.TestCase):
    """Hypothesis drives it."""
