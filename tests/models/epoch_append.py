"""A journal in one Kafka partition that one leader at a time may append to: *epoch append*.

Who leads is decided by the epoch of a transactional producer. A leader claims with InitProducerId, appends a
*fence*, reads the partition up to that, and then appends in transactions. A write is acknowledged when its
record is below the high watermark; whether its transaction commits or aborts later means nothing, and readers
read uncommitted records. Each record names its `base`, the number of records before it that count; a reader
counts a record if its base is the reader's tail, and passes over any other as an orphan. A fence has a base
that nothing reaches: all that it does is to bring the new epoch to the partition.

What Kafka does, as far as this rests on it:

    partition      Appends batches and markers. When a broker fails, it keeps what its new leader has, never
                   less than is *committed*, that is, on all replicas in sync. The high watermark that a new
                   leader knows may be behind; ListOffsets, which only a leader without a fence would need,
                   waits until it has passed the leader's first offset (KIP-207). It refuses epochs older than
                   the newest that its log has of this producer, and sequence numbers out of order.
    coordinator    Knows the producer's epoch and whether it has a transaction. InitProducerId while one is
                   open raises the epoch and aborts it, and is answered only after the marker is committed.
                   It does the same by itself to a transaction that is open for too long. The end of any
                   transaction may be lost: it is noted as ended, and no marker ever comes (KAFKA-20734).
    verification   A batch that would open a transaction in the partition is appended only after the
                   coordinator has said that the transaction goes on (KIP-890); a marker voids that.
    network        A request may arrive at any later time, also when its sender is dead, paused or replaced.

A leader that is dead or paused is one that takes no more steps.

A fault of `Faults` takes one of these away, or breaks one of our own rules, so the exploration can show that
each is needed. All of the model is pure; a state is a tuple of tuples and numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Coordination = Literal["empty", "ongoing", "ending", "fencing"]
Stage = Literal["idle", "claiming", "fencing", "listing", "fetching", "leading", "ended"]
UNREACHED: Final = -1
"""The base of a fence."""


@dataclass(frozen=True)
class Faults:
    """What is wrong on purpose."""

    unclean_election: bool = False
    no_verification: bool = False
    acknowledges_at_append: bool = False
    reads_before_claim: bool = False
    no_fence: bool = False
    reads_before_fence: bool = False
    goes_on_after_failure: bool = False
    no_sequence_numbers: bool = False


@dataclass(frozen=True)
class Bounds:
    """How far to explore: writes of each leader, how often brokers fail and producers are forgotten."""

    writes: tuple[int, ...] = (2, 1)
    in_flight: int = 2
    transactions: int = 3
    elections: int = 1
    expiries: int = 1
    time_outs: int = 1
    losses: int = 0
    loses_markers: bool = True


class Batch(NamedTuple):
    """A record of a leader: its producer's epoch, its sequence number there, its base, and its name."""

    epoch: int
    sequence: int
    base: int
    name: str


class Marker(NamedTuple):
    """The end of a transaction."""

    epoch: int
    transaction: int


class Leader(NamedTuple):
    """A process that leads, or wants to. `view` are the records that count, as it knows them."""

    stage: Stage = "idle"
    epoch: int = 0
    end: int = 0
    view: tuple[str, ...] = ()
    sequence: int = 0
    written: int = 0
    waiting: tuple[Batch, ...] = ()
    acknowledged: tuple[str, ...] = ()
    has_begun: bool = False


class Model(NamedTuple):
    """One state of everything."""

    log: tuple[Batch | Marker, ...] = ()
    committed: int = 0
    watermark: int = 0
    leader_begin: int = 0  # the end of the partition's log when its present leader was elected
    remembered_from: int = 0  # producers are known from here on: what is before has expired
    verified: int = 0  # the epoch whose transaction the coordinator has confirmed; 0: none
    epoch: int = 0
    coordination: Coordination = "empty"
    transaction: int = 0
    requests: frozenset[Batch] = frozenset()
    leaders: tuple[Leader, ...] = ()
    elections: int = 0
    expiries: int = 0
    time_outs: int = 0
    losses: int = 0


def counted(log: tuple[Batch | Marker, ...]) -> tuple[str, ...]:
    """Return the names of the records that count, as each reader decides it."""
    names: list[str] = []
    for entry in log:
        if isinstance(entry, Batch) and entry.base == len(names):
            names.append(entry.name)
    return tuple(names)


def broken(state: Model) -> str | None:
    """Return what is wrong with a state, if anything is."""
    stored = counted(state.log[: state.committed])
    for leader in state.leaders:
        for name in leader.acknowledged:
            place = leader.view.index(name)
            if stored[: place + 1] != leader.view[: place + 1]:
                return f"{name} was acknowledged behind {leader.view[:place]}; what counts is {stored}"
        if leader.stage == "leading":
            for other in state.leaders:
                missing = set(other.acknowledged) - set(leader.view)
                if other.epoch < leader.epoch and missing:
                    return f"the leader of epoch {leader.epoch} does not know {missing}"
    return None


class EpochAppend:
    """The steps from one state to the next."""

    def __init__(self, faults: Faults = Faults(), bounds: Bounds = Bounds()) -> None:
        self.faults = faults
        self.bounds = bounds
        self.start = Model(leaders=(Leader(),) * len(bounds.writes))

    def steps(self, state: Model) -> Iterator[tuple[str, Model]]:
        """Yield each step that may come next, and the state after it."""
        yield from self._replication(state)
        yield from self._coordinator(state)
        yield from self._arrivals(state)
        for number, leader in enumerate(state.leaders):
            for name, changed, after in self._leader(state, number, leader):
                leaders = (*state.leaders[:number], changed, *state.leaders[number + 1 :])
                yield f"leader {number + 1} {name}", after._replace(leaders=leaders)

    # ------------------------------------------------------------------ the partition

    def _replication(self, state: Model) -> Iterator[tuple[str, Model]]:
        if state.committed < len(state.log):
            yield "all replicas have all records", state._replace(committed=len(state.log))
        if state.watermark < state.committed:
            yield "the high watermark rises", state._replace(watermark=state.committed)
        if state.elections < self.bounds.elections:
            lowest = 0 if self.faults.unclean_election else state.committed
            for end in range(lowest, len(state.log) + 1):
                for watermark in {0, min(state.watermark, end)}:
                    yield (
                        f"a broker fails; the new one has {end} records and the high watermark {watermark}",
                        state._replace(
                            log=state.log[:end],
                            committed=min(state.committed, end),
                            watermark=watermark,
                            leader_begin=end,
                            remembered_from=min(state.remembered_from, end),
                            verified=0,
                            elections=state.elections + 1,
                        ),
                    )
        is_idle = state.remembered_from < len(state.log) and self._open_epoch(state) == 0
        if is_idle and state.expiries < self.bounds.expiries:
            yield (
                "the partition forgets its idle producer",
                state._replace(remembered_from=len(state.log), expiries=state.expiries + 1),
            )

    def _open_epoch(self, state: Model) -> int:
        """The epoch of the transaction that is open in the partition; 0 if none is."""
        last = state.log[-1] if len(state.log) > state.remembered_from else None
        return last.epoch if isinstance(last, Batch) else 0

    def _known_epoch(self, state: Model) -> int:
        return max((entry.epoch for entry in state.log[state.remembered_from :]), default=0)

    def _arrivals(self, state: Model) -> Iterator[tuple[str, Model]]:
        for batch in state.requests:
            rest = state.requests - {batch}
            if batch.epoch < self._known_epoch(state):
                yield f"{batch.name} is refused: old epoch", self._failed(state, batch, rest)
                continue
            confirmed = batch.epoch in (self._open_epoch(state), state.verified)
            if not confirmed and not self.faults.no_verification:
                if batch.epoch != state.epoch or state.coordination != "ongoing":
                    yield f"{batch.name} is refused: no transaction", self._failed(state, batch, rest)
                else:
                    yield f"the coordinator confirms {batch.name}", state._replace(verified=batch.epoch)
                continue
            if self.faults.no_sequence_numbers or self._is_next(state, batch):
                yield (
                    f"{batch.name} is appended",
                    state._replace(log=(*state.log, batch), requests=rest, verified=0),
                )
        if self.bounds.losses > state.losses:
            for batch in state.requests:
                lost = self._failed(state, batch, state.requests - {batch})
                yield f"{batch.name} is lost and given up", lost._replace(losses=state.losses + 1)

    def _is_next(self, state: Model, batch: Batch) -> bool:
        """Whether its sequence number follows the last one; any does if the partition knows none."""
        known = [
            entry.sequence
            for entry in state.log[state.remembered_from :]
            if isinstance(entry, Batch) and entry.epoch == batch.epoch
        ]
        return batch.sequence == max(known) + 1 if known else batch.sequence == 0 or state.remembered_from > 0

    def _failed(self, state: Model, batch: Batch, rest: frozenset[Batch]) -> Model:
        """Its sender ends, as ours does at each failed write; what it has sent besides is under way still."""
        leaders = list(state.leaders)
        for number, leader in enumerate(leaders):
            if leader.epoch == batch.epoch and leader.stage in ("fencing", "leading"):
                waiting = tuple(one for one in leader.waiting if one != batch)
                leaders[number] = leader._replace(waiting=waiting)
                if leader.stage == "fencing" or not self.faults.goes_on_after_failure:
                    leaders[number] = leaders[number]._replace(stage="ended")
        return state._replace(requests=rest, leaders=tuple(leaders))

    # ------------------------------------------------------------------ the coordinator

    def _coordinator(self, state: Model) -> Iterator[tuple[str, Model]]:
        if state.coordination == "ongoing" and state.time_outs < self.bounds.time_outs:
            yield (
                "the coordinator aborts a transaction that is open for too long",
                state._replace(coordination="fencing", epoch=state.epoch + 1, time_outs=state.time_outs + 1),
            )
        if state.coordination not in ("ending", "fencing"):
            return
        marker = Marker(state.epoch, state.transaction)
        if marker not in state.log:
            yield "the marker is appended", state._replace(log=(*state.log, marker), verified=0)
            if self.bounds.loses_markers:
                yield "the transaction has ended without a marker", state._replace(coordination="empty")
        elif marker in state.log[: state.watermark]:
            yield "the transaction has ended", state._replace(coordination="empty")

    # ------------------------------------------------------------------ leaders

    def _leader(self, state: Model, number: int, leader: Leader) -> Iterator[tuple[str, Leader, Model]]:
        if leader.stage in ("idle", "claiming"):
            if self.faults.reads_before_claim and leader.stage == "idle":
                yield (
                    "lists and reads",
                    self._read(leader, state, state.watermark)._replace(stage="claiming"),
                    state,
                )
            else:
                yield from self._claim(state, leader)
        elif leader.stage == "fencing":
            yield from self._fence(state, number, leader)
        elif leader.stage == "listing":
            if state.watermark >= state.leader_begin:
                yield (
                    f"learns the end {state.watermark}",
                    leader._replace(stage="fetching", end=state.watermark),
                    state,
                )
        elif leader.stage == "fetching":
            if state.watermark >= leader.end:
                yield f"reads up to {leader.end}", self._read(leader, state, leader.end), state
        elif leader.stage == "leading":
            yield from self._lead(state, number, leader)

    def _read(self, leader: Leader, state: Model, end: int) -> Leader:
        after: Stage = "fencing" if self.faults.reads_before_fence else "leading"
        return leader._replace(stage=after, end=end, view=counted(state.log[:end]))

    def _claim(self, state: Model, leader: Leader) -> Iterator[tuple[str, Leader, Model]]:
        after: Stage = "fencing"
        if self.faults.reads_before_fence:
            after = "listing"
        elif self.faults.no_fence:
            after = "leading" if self.faults.reads_before_claim else "listing"
        if state.coordination == "empty":
            epoch = state.epoch + 1
            yield (
                f"has the epoch {epoch}",
                leader._replace(stage=after, epoch=epoch),
                state._replace(epoch=epoch),
            )
        elif state.coordination == "ongoing":
            aborted = state._replace(epoch=state.epoch + 1, coordination="fencing")
            yield "has the open transaction aborted", leader._replace(stage="claiming"), aborted

    def _fence(self, state: Model, number: int, leader: Leader) -> Iterator[tuple[str, Leader, Model]]:
        """Bring the epoch to the partition, and go on once that is acknowledged."""
        if not leader.has_begun:
            yield from self._begin(state, leader)
        elif not leader.sequence:
            yield self._sent(state, leader, Batch(leader.epoch, 0, UNREACHED, f"the fence of {number + 1}"))
        elif self._is_stored(state, leader.waiting[0]):
            end, is_read = leader.end, self.faults.reads_before_claim or self.faults.reads_before_fence
            if not is_read:
                end = state.log.index(leader.waiting[0])
            after: Stage = "leading" if is_read else "fetching"
            yield "learns where its fence is", leader._replace(stage=after, end=end, waiting=()), state

    def _lead(self, state: Model, number: int, leader: Leader) -> Iterator[tuple[str, Leader, Model]]:
        """Begin a transaction, write, take answers, end the transaction."""
        if leader.waiting and self._is_stored(state, first := leader.waiting[0]):
            acknowledged = (*leader.acknowledged, first.name)
            changed = leader._replace(waiting=leader.waiting[1:], acknowledged=acknowledged)
            yield f"acknowledges {first.name}", changed, state
        if not leader.has_begun:
            yield from self._begin(state, leader)
            return
        if leader.written < self.bounds.writes[number] and len(leader.waiting) < self.bounds.in_flight:
            name = f"{number + 1}.{leader.written + 1}"
            batch = Batch(leader.epoch, leader.sequence, len(leader.view), name)
            changed = leader._replace(view=(*leader.view, name), written=leader.written + 1)
            yield self._sent(state, changed, batch)
        if not leader.waiting:
            if leader.epoch < state.epoch:
                yield "is refused to end: old epoch", leader._replace(stage="ended"), state
            elif state.coordination == "ongoing":
                yield (
                    "ends its transaction",
                    leader._replace(has_begun=False),
                    state._replace(coordination="ending"),
                )

    def _begin(self, state: Model, leader: Leader) -> Iterator[tuple[str, Leader, Model]]:
        if leader.epoch < state.epoch:
            yield "is refused a transaction: old epoch", leader._replace(stage="ended"), state
        elif state.coordination == "empty" and state.transaction < self.bounds.transactions:
            begun = state._replace(coordination="ongoing", transaction=state.transaction + 1)
            yield "begins a transaction", leader._replace(has_begun=True), begun

    def _sent(self, state: Model, leader: Leader, batch: Batch) -> tuple[str, Leader, Model]:
        changed = leader._replace(sequence=batch.sequence + 1, waiting=(*leader.waiting, batch))
        return f"writes {batch.name}", changed, state._replace(requests=state.requests | {batch})

    def _is_stored(self, state: Model, batch: Batch) -> bool:
        """Whether the partition has acknowledged a record."""
        upto = len(state.log) if self.faults.acknowledges_at_append else state.watermark
        return batch in state.log[:upto]
