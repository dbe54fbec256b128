"""`clients`: RocketMQ's own Java client, with the same load for this service and for a RocketMQ broker.

Each case is a process of the generator in `bench/generator/java`, with a producer and a push consumer as they
are by default, except that the consumer takes up to 32 messages at once. Topics have four queues. The first
part of each load is not measured: code is compiled then. Sends over gRPC are those of RocketMQ's gRPC client.
"""

import math
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bench.cost import Cost
from bench.generator.java import run as java
from bench.generator.run import LoadFailedError
from bench.histograms import histogram
from bench.peers.registry import OURS
from bench.peers.system import HOST, System
from bench.runner import Bench, Options

NAME = "clients"
PEERS = ("RocketMQ 5 sync",)
SEND_THREADS = 16
BATCH_THREADS = 4
BATCH = 32
LEAD_S = 3
WARM_UP_MESSAGES_PER_S = 5_000
GRPC = "grpc"
GRPC_TOPIC = "load"
"""The topic in `GrpcSends.java`."""


class Case(NamedTuple):
    """A load by its name in `Load.java`, with its numbers."""

    name: str
    load: str
    numbers: dict[str, int]


async def measure(bench: Bench) -> None:
    """Each part on each system, the systems in turn in each round."""
    if (command := java.missing()) is not None:
        bench.say(f"[yellow]{NAME}: not measured, because the load generator is not there. Run: {command}")
        return
    for number in range(1, bench.options.rounds + 1):
        for part in bench.options.parts or PARTS:
            for case in _CASES[part](bench.options):
                for name in bench.present([OURS, *PEERS]):
                    async with bench.running(name, remoting=True, grpc=case.load == GRPC) as system:
                        await _measure(bench, system, case, number)


def _warm_up(options: Options) -> int:
    return int(options.warm_up_s * WARM_UP_MESSAGES_PER_S)


def _sends(options: Options) -> Iterator[Case]:
    times = {"warmUpMs": int(options.warm_up_s * 1000), "ms": int(options.seconds * 1000)}
    for threads, batch in ((SEND_THREADS, 1), (BATCH_THREADS, BATCH)):
        yield Case(
            f"{threads} threads, {batch} a request", "send", times | {"threads": threads, "batch": batch}
        )


def _grpc_sends(options: Options) -> Iterator[Case]:
    times = {"warmUpMs": int(options.warm_up_s * 1000), "ms": int(options.seconds * 1000)}
    yield Case(f"gRPC, {SEND_THREADS} threads", GRPC, times | {"threads": SEND_THREADS})


def _backlogs(options: Options) -> Iterator[Case]:
    for count in options.counts:
        numbers = {"count": count, "batch": BATCH, "threads": BATCH_THREADS}
        numbers["warmUp"] = min(_warm_up(options), count // 2)
        yield Case(f"push consumer, backlog of {count:,}", "push", numbers)


def _bursts(options: Options) -> Iterator[Case]:
    for count in options.counts:
        yield Case(f"{count:,} in one millisecond", "burst", {"count": count, "warmUp": _warm_up(options)})


def _steady(options: Options) -> Iterator[Case]:
    delay_ms = 1000 * (math.ceil(options.seconds) + LEAD_S)  # sending has ended when the first is due
    for rate in options.rates:
        numbers = {"rate": rate, "ms": int(options.seconds * 1000), "delayMs": delay_ms}
        yield Case(f"{rate:,} a second", "steady", numbers | {"warmUp": _warm_up(options)})


_CASES: dict[str, Callable[[Options], Iterator[Case]]] = {
    "send": _sends,
    GRPC: _grpc_sends,
    "push": _backlogs,
    "burst": _bursts,
    "steady": _steady,
}
PARTS = tuple(_CASES)


async def _measure(bench: Bench, system: System, case: Case, number: int) -> None:
    place = (NAME, case.name, system.name, number)
    cost = Cost(system)
    service_cpu_us, busy_share = 0.0, 0.0

    def ended(generator_cpu_s: float) -> None:
        nonlocal service_cpu_us, busy_share
        service_cpu_us = cost.cpu_us(1)
        busy_share = generator_cpu_s / cost.took_s / (os.cpu_count() or 1)

    with bench.waiting(f"{NAME}, {case.name}, {system.name}"):
        address = system.name_server
        if case.load == GRPC:
            address = f"{HOST}:{system.grpc_port}"
            await system.prepare_work(GRPC_TOPIC)
        try:
            found = await java.run(address, case.load, case.numbers, system.directory, cost.begin, ended)
        except LoadFailedError as error:
            bench.figure(place, {}, fault=str(error))
            return
    figures = {
        "service_cpu_us_per_message": service_cpu_us / max(found.measured, 1),
        "generator_busy_share": busy_share,
    }
    if found.lateness:
        figures["last_ms"] = max(found.lateness) / 1000
    else:
        figures["messages_per_s"] = found.measured * 1e6 / max(found.took_us, 1)
    times_us = {"latency": found.latency, "lateness": found.lateness}
    histograms = {name: histogram(values) for name, values in times_us.items() if values}
    bench.figure(place, figures, histograms, found.fault)
