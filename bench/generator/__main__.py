"""`python -m bench.generator`: carry out the job on the input, and say what came of it."""

import asyncio
import gc
import sys
import time

import msgspec
import uvloop

from bench.generator.plan import Done, Job, Load, Outcome, Progress
from bench.generator.receiving import Receiving
from bench.generator.sending import Sending

PROGRESS_S = 0.25


def _say(line: Progress | Done) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


async def _carry_out(job: Job) -> list[Outcome]:
    sendings = [Sending(load, job.seed + at) for at, load in enumerate(job.loads)]
    receivings = [Receiving(load) if load.receiver is not None else None for load in job.loads]

    async def one(load: Load, sending: Sending, receiving: Receiving | None) -> Outcome:
        if receiving is not None:
            await receiving.begin()
        await asyncio.sleep(load.start_s)
        sent = await sending.run()
        if receiving is None:
            return Outcome(load.name, sent)
        return Outcome(load.name, sent, await receiving.all_of(sent.count, sending.dues.last_ms))

    async def tell() -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            received = sum(receiving.received for receiving in receivings if receiving is not None)
            _say(Progress(sum(sending.answered for sending in sendings), received))

    telling = asyncio.create_task(tell())
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(one(*parts)) for parts in zip(job.loads, sendings, receivings, strict=True)
            ]
    finally:
        telling.cancel()
    return [task.result() for task in tasks]


def main() -> None:
    """Read, run, answer."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    # Nothing here is cyclic garbage, and a collection would show as lateness of the system.
    gc.disable()
    began, began_cpu = time.perf_counter(), time.process_time()
    loads = uvloop.run(_carry_out(job))
    _say(Done(loads, time.process_time() - began_cpu, time.perf_counter() - began))


if __name__ == "__main__":
    main()
