"""`python -m bench.generator`: runs the job on stdin and prints the result."""

import asyncio
import gc
import sys
import time

import msgspec
import uvloop

from bench.generator.plan import Done, Job, Load, Outcome, Progress, Sent
from bench.generator.receiving import Receiving
from bench.generator.sending import Sending
from bench.wires.wire import RefusedError

PROGRESS_S = 0.25


def _say(line: Progress | Done) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


async def _carry_out(job: Job) -> list[Outcome]:
    sendings = [Sending(load, job.seed + at) for at, load in enumerate(job.loads)]
    receivings = [Receiving(load) if load.receiver is not None else None for load in job.loads]

    async def one(load: Load, sending: Sending, receiving: Receiving | None) -> Sent:
        if receiving is not None:
            await receiving.begin()
        await asyncio.sleep(load.start_s)
        sent = await sending.run()
        if receiving is not None:
            await receiving.wait_for(sent.count, sending.dues.last_ms)
        return sent

    async def report() -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            received = sum(receiving.received for receiving in receivings if receiving is not None)
            _say(Progress(sum(sending.answered for sending in sendings), received))

    reporting = asyncio.create_task(report())
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(one(*parts)) for parts in zip(job.loads, sendings, receivings, strict=True)
            ]
    finally:
        reporting.cancel()
    return [
        Outcome(load.name, sent, None if receiving is None else receiving.judged(sent.count))
        for load, receiving, sent in zip(
            job.loads, receivings, (task.result() for task in tasks), strict=True
        )
    ]


def _leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    """The errors of a group and of its subgroups."""
    found: list[Exception] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def main() -> None:
    """Read the job, run it, print the result."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    # There is no cyclic garbage here, and a collection would show up as lateness of the system.
    gc.disable()
    began, began_cpu = time.perf_counter(), time.process_time()
    try:
        loads = uvloop.run(_carry_out(job))
    except* (
        OSError,
        RefusedError,
    ) as group:  # an error of the system, not of the generator: no traceback needed
        sys.exit("; ".join(dict.fromkeys(f"{type(error).__name__}: {error}" for error in _leaves(group))))
    _say(Done(loads, time.process_time() - began_cpu, time.perf_counter() - began))


if __name__ == "__main__":
    main()
