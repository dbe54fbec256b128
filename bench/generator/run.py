"""Starts the generator's process for a job and reads its output."""

import asyncio
import sys
from collections.abc import Callable

import msgspec

from bench.generator.plan import Done, Job, Progress

LINE_MAX_BYTES = 64 * 2**20


class LoadFailedError(Exception):
    """The generator ended with an error: a request was refused, or a connection lost."""


async def run(job: Job, report: Callable[[Progress], None] = lambda _: None) -> Done:
    """Returns the measurements of the job. Raises LoadFailedError with the last output of the generator."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.generator"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LINE_MAX_BYTES,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        process.stdin.write(msgspec.json.encode(job))
        process.stdin.close()
        errors = asyncio.create_task(process.stderr.read())
        async for line in process.stdout:
            if line.startswith(b'{"loads"'):
                return msgspec.json.decode(line, type=Done)
            report(msgspec.json.decode(line, type=Progress))
        raise LoadFailedError((await errors).decode(errors="replace")[-2000:].strip())
    finally:
        # It has finished, or its result is no longer needed.
        if process.returncode is None:
            process.kill()
            await process.wait()
