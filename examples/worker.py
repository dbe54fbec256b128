"""A worker of a consumer group, and each way in which a job can go.

    fine     is done, and acknowledged as its handler returns
    slow     takes longer than its lease: it is extended while the handler runs
    long     knows that it takes long, and asks for it once
    busy     cannot be done now: `Retry` gives it back, to be delivered again after the delay that it names
    flaky    fails at first: the exception gives it back, and it comes again after the group's backoff
    poison   always fails: after its last attempt it is a dead letter, with the reason

    python examples/worker.py --url http://127.0.0.1:8686 --jobs 60

The run ends by proving its books: every job was done but the poison, which is among the dead letters. Exit
code 1 if they do not balance. Delivery is at least once, so a job may be done twice; with a job's name as the
key of what it does, as here, that is harmless.
"""

import argparse
import asyncio
import logging
import os
import sys
from collections import Counter
from dataclasses import dataclass, field

from timerwheel import App, Client, Retry
from timerwheel.client import DEFAULT_URL, ClientError, Exponential, Group, GroupConfig, Lease
from timerwheel.clock import SystemClock

KINDS = ("fine", "slow", "long", "busy", "flaky", "poison")
ATTEMPTS_MAX = 3
LEASE_MS = 600
SLOW_MS = 1_500
LIMIT_MS = 45_000  # how long the run may take
CLOCK = SystemClock()


@dataclass
class Worker:
    """What one worker did; a job's name is its kind and its number."""

    attempts: Counter[str] = field(default_factory=Counter)
    done: set[str] = field(default_factory=set)

    async def handle(self, lease: Lease) -> None:
        """One attempt at a job. Returning acknowledges it, raising gives it back."""
        job = lease.text
        self.attempts[job] += 1
        match job.partition("-")[0]:
            case "slow":
                await CLOCK.sleep_for(SLOW_MS)
            case "long":
                await lease.extend(2 * SLOW_MS)
                await CLOCK.sleep_for(SLOW_MS)
            case "busy" if lease.attempt == 1:
                raise Retry("the machine is busy", delay="1s")
            case "flaky" if lease.attempt == 1:
                raise ConnectionError("the first time never works")
            case "poison":
                raise ValueError("this job cannot be done")
        self.done.add(job)


async def run(url: str, count: int, concurrency: int) -> list[str]:
    """Send the jobs, work until all are done or dead; returns what does not balance."""
    topic = f"jobs-{CLOCK.now_ms()}"
    jobs = [f"{KINDS[number % len(KINDS)]}-{number}" for number in range(count)]
    poison = {job for job in jobs if job.startswith("poison")}
    app, worker = App(url), Worker()
    app.worker(topic, group=topic, concurrency=concurrency, invisible_ms=LEASE_MS)(worker.handle)
    async with Client(url) as client:
        group = client.group(topic, topic)
        await group.put(GroupConfig(max_attempts=ATTEMPTS_MAX, backoff=Exponential(initial_ms=500)))
        await client.send_many([{"topic": topic, "body": job, "dedup_key": job} for job in jobs])
        print(f"{count} jobs on topic {topic}, {concurrency} at a time")
        async with app.running():
            await _wait_for(group, worker, set(jobs) - poison, len(poison))
        letters = [letter async for letter in client.dead_letters(topic, topic).all()]
        print(f"done {len(worker.done)} in {worker.attempts.total()} attempts, {len(letters)} dead letters")
        for letter in letters[:1]:
            print(f"dead: {letter.message.text} after {letter.attempts} attempts: {letter.reason}")
        faults = [f"{job}: not done" for job in sorted(set(jobs) - poison - worker.done)]
        faults += [f"{job}: done" for job in sorted(poison & worker.done)]
        if {letter.message.text for letter in letters} != poison:
            faults.append("the dead letters are not the poison")
        if (await group.info()).lag:
            faults.append("the group has not seen every message")
        await group.delete()
    return faults


async def _wait_for(group: Group, worker: Worker, jobs: set[str], dead: int) -> None:
    """Return when these are done and as many are dead, or too much later."""
    end_ms = CLOCK.monotonic_ms() + LIMIT_MS
    while CLOCK.monotonic_ms() < end_ms:
        info = await group.info()
        if jobs <= worker.done and info.dead_letters == dead and not info.in_flight:
            return
        await CLOCK.sleep_for(100)


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description="A worker of a consumer group, and every way a job can go.")
    parser.add_argument("--url", default=os.environ.get("TIMERWHEEL_URL", DEFAULT_URL))
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--verbose", action="store_true", help="log each failed attempt")
    given = parser.parse_args()
    if given.jobs < 1 or given.concurrency < 1:
        parser.error("--jobs and --concurrency must be greater than 0")
    logging.basicConfig(level=logging.INFO if given.verbose else logging.CRITICAL)
    try:
        faults = asyncio.run(run(given.url, given.jobs, given.concurrency))
    except ClientError as error:
        print(f"worker: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    for fault in faults:
        print(f"WRONG: {fault}", file=sys.stderr)
    if not faults:
        print("The books balance: every job is done, and what cannot be done is a dead letter.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
