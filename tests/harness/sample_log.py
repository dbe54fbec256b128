"""A log of a real engine that has every kind of record in a few small segments, on the real disk."""

from pathlib import Path
from typing import NamedTuple

from tests.harness.world import World
from timerwheel.groups.config import GroupConfig, GroupTerms
from timerwheel.model.messages import Outgoing
from timerwheel.store.files import DiskFiles
from timerwheel.store.log_reader import LogReader

BINARY = bytes(range(256))
LAST_UNIT_RECORDS = 3


class Sample(NamedTuple):
    """A data directory, and the id that the engine gave to each body (bodies are unlike each other)."""

    data: Path
    ids: dict[bytes, str]


async def make_sample(data: Path) -> Sample:
    """Messages with and without a delay, in arrays, keyed, recalled, rescheduled, fired, acked, retried."""
    world = World(data)
    world.files = DiskFiles()
    engine = await world.open()
    ids: dict[bytes, str] = {}

    async def send(*messages: Outgoing) -> list[str]:
        receipts = await engine.sender.send(list(messages))
        ids.update({message.body: found.id for message, found in zip(messages, receipts, strict=True)})
        return [found.id for found in receipts]

    await send(Outgoing("orders", b"at once"), Outgoing("orders", BINARY, {"TAGS": "ä€", "KEYS": "a b"}))
    await send(*(Outgoing("orders", b"of one key %d" % n, {"__SHARDINGKEY": "k"}) for n in range(2)))
    await send(Outgoing("tickets", b"", {"TIMER_DELAY_MS": "500"}))
    await send(*(Outgoing("orders", b"near %d" % n, {"TIMER_DELAY_MS": "500"}) for n in range(9)))
    far = await send(
        *(Outgoing("tickets", b"far %d" % n * 20, {"TIMER_DELAY_MS": "900000"}) for n in range(12))
    )
    await send(Outgoing("orders", b"keyed", {"DELAY": "5"}, "a key"))
    await engine.topics.change("orders", ordered=True)
    await engine.groups.put("orders", "closers", GroupConfig())
    await world.roll()
    await world.advance(500)
    await engine.recalls.recall(far[0])
    await engine.recalls.reschedule(far[1], {"TIMER_DELAY_MS": "800000"})
    got = await engine.groups.receive("orders", "closers", count_max=6, terms=GroupTerms(create=True))
    # None is leased when the engine stops: it would store that behind the last array.
    await engine.groups.ack("orders", "closers", [one.receipt for one in got[:2]])
    await engine.groups.nack("orders", "closers", [one.receipt for one in got[2:]], reason="broken")
    await world.roll()
    array = [
        Outgoing("orders", b"last %d" % n, {"TIMER_DELAY_MS": "70000"}) for n in range(LAST_UNIT_RECORDS)
    ]
    await send(*array)
    await engine.close()
    write_sidecars(data)
    return Sample(data, ids)


def write_sidecars(data: Path) -> None:
    """Give each sealed segment its sidecar, made by scanning."""
    log = open_log(data)
    for base in log.bases[:-1]:
        log.write_sidecar(base, None)
    log.close()


def open_log(data: Path) -> LogReader:
    """The log, for reading as the service reads it."""
    log = LogReader(data / "log", DiskFiles())
    log.open_readonly()
    return log
