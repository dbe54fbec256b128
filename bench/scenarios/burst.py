"""`burst`: many messages due in the same millisecond, while another topic has a steady rate.

Only for systems with due times; delays in whole seconds cannot make such a burst. Besides the lateness of the
burst it measures that of the other topic, whose messages fall due from half a second before the burst on. For
this service it also measures a group of workers that receive the burst and acknowledge it, each receive with
the receipts of the one before; and how long re-injection alone takes, without readers.
"""

import asyncio
import time

import msgspec
import orjson

from bench.connection import AnsweredError, Connection
from bench.generator.plan import Delays, Load
from bench.peers.registry import OURS, OURS_ASYNC, OURS_GROUP, SYSTEMS
from bench.peers.system import System
from bench.peers.timerwheel import Timerwheel
from bench.runner import Bench, Place, fault_of
from bench.scenarios.fire import delivered_figures, steady

NAME = "burst"
SENT_PER_S = 20_000
"""A cautious guess at the send rate, so that all messages are stored before they are due."""
FIRED_PER_S = 100_000
OTHER_PER_S = 200
ARRAY = 1_000
LEAD_S = 4
PATIENCE_S = 120
LOOK_S = 0.02
WORKERS = 8
HTTP_NOT_FOUND = 404


async def measure(bench: Bench) -> None:
    """All counts on all systems, the systems in turn in each round."""
    names = bench.present(
        name for name in SYSTEMS if name not in {OURS_ASYNC, OURS_GROUP} and "beanstalkd" not in name
    )
    for number in range(1, bench.options.rounds + 1):
        for name in names:
            for count in bench.options.counts:
                case = f"{count:,} in one millisecond"
                async with bench.running(name) as system:
                    await _one(bench, system, (NAME, case, name, number), count)
                for group in bench.present([OURS_GROUP]) if name == OURS else ():
                    async with bench.running(group) as system:
                        place = (NAME, f"{case}, read by {WORKERS} workers", group, number)
                        await _one(bench, system, place, count, WORKERS)
                if name == OURS:
                    async with bench.running(name) as system:
                        assert isinstance(system, Timerwheel)
                        await _unread(bench, system, number, count)


def loads(system: System, count: int, receivers: int = 1) -> tuple[Load, Load]:
    """The burst with so many receivers, and the other topic beside it with one."""
    lead_s = LEAD_S + count / SENT_PER_S
    burst = Load(
        "burst",
        system.sender("burst"),
        Delays(at_ms=int((time.time() + lead_s) * 1000)),
        connections=4,
        array=ARRAY,
        count=count,
        receiver=system.receiver("burst"),
        receivers=receivers,
        patience_s=PATIENCE_S,
    )
    other = steady(system, "other", OTHER_PER_S, 2 + count / FIRED_PER_S, delay_s=1)
    return burst, msgspec.structs.replace(other, start_s=lead_s - 1.5)


async def _unread(bench: Bench, system: Timerwheel, number: int, count: int) -> None:
    """Wait until the topic has all messages; a second later the count must be the same."""
    burst = msgspec.structs.replace(loads(system, count)[0], receiver=None)
    assert burst.delays.at_ms is not None
    await bench.put(f"{NAME}, {count:,}, nobody reading", burst)
    with bench.waiting(f"{NAME}, {count:,}, nobody reading"):
        connection = await Connection.open(system.port)
        while (visible := await _visible(connection)) < count and time.time() * 1000 < (
            burst.delays.at_ms + PATIENCE_S * 1000
        ):
            await asyncio.sleep(LOOK_S)
        last_ms = time.time() * 1000 - burst.delays.at_ms
        await asyncio.sleep(1)
        visible = await _visible(connection)
        connection.close()
    place = (NAME, f"{count:,} in one millisecond, nobody reading", system.name, number)
    fault = None if visible == count else f"{visible:,} of {count:,} came"
    bench.figure(place, {"last_ms": last_ms, "delivered_per_s": count * 1000 / last_ms}, fault=fault)


async def _visible(connection: Connection) -> int:
    try:
        return int(orjson.loads(await connection.call("GET", "/v1/topics/burst"))["visible"])
    except AnsweredError as error:
        if error.status == HTTP_NOT_FOUND:
            return 0
        raise


async def _one(bench: Bench, system: System, place: Place, count: int, receivers: int = 1) -> None:
    for topic in ("burst", "other"):
        await system.prepare(topic)
    done = await bench.load(place, *loads(system, count, receivers))
    if done is None:
        return
    burst, other = done.loads
    assert burst.delivered is not None
    assert other.delivered is not None
    histograms = {"lateness": burst.delivered.lateness, "other_lateness": other.delivered.lateness}
    bench.figure(place, delivered_figures(burst), histograms, fault_of(burst, other))
