"""Whether executors reach what `schedule` needs there: the service, and the files of the table."""

import asyncio
import hashlib
from collections.abc import Sequence

import pyarrow as pa

from timerwheel.client.errors import ClientError
from timerwheel.spark_jobs.preflight import Call
from timerwheel.spark_jobs.schedule.sending import WAIT_FOR, Target
from timerwheel.spark_jobs.schedule.table import Table
from timerwheel.spark_jobs.storage import file_system, shown, storage_errors

ANSWER_MS = 10_000
"""How long an executor waits for the answer of the service: one that a firewall hides does not refuse."""
FILES_MAX = 8
HEAD_BYTES = 4096


def calls(target: Target, source: str, table: Table | None) -> list[Call]:
    """What the preflight calls on executors; without a table, of a query, only what calls the service."""
    found: list[Call] = [(__name__, "problem_with_service", tuple(target))]
    if table is not None:
        paths = list(dict.fromkeys(piece.path for piece in table.pieces))[:FILES_MAX]
        digests = [_digest(source, path) for path in paths]
        found.append((__name__, "problem_with_table", (source, paths, digests)))
    return found


def problem_with_service(*target: object) -> str:
    """What keeps this executor from sending to the service, "" if nothing. JobError for a missing file."""
    return asyncio.run(_problem_with_service(Target._make(target)))


async def _problem_with_service(target: Target) -> str:
    async with target.client(ANSWER_MS) as client:
        try:
            await client.send_arrow(pa.table({"topic": pa.array([], pa.string())}))
        except ClientError as error:
            if error.status in WAIT_FOR:
                return ""  # it is reached, and the job waits for it
            return (
                f"they cannot send to the service ({error}), unlike this machine: give --url an address that "
                f"all of them reach, instead of {shown(target.url)}"
            )
    return ""


def problem_with_table(source: str, paths: Sequence[str], digests: Sequence[str]) -> str:
    """What this executor finds wrong with the files of the table, "" if nothing."""
    for path, digest in zip(paths, digests, strict=True):
        try:
            is_same = _digest(source, path) == digest
        except Exception as error:  # noqa: BLE001 - a problem to report, whatever it is
            why = f"cannot read {path} ({error})"
        else:
            if is_same:
                continue
            why = f"read something else in {path}"
        return (
            f"they {why}, unlike this machine: give --from a file or directory that all of them reach, "
            f"instead of {shown(source)}"
        )
    return ""


def _digest(source: str, path: str) -> str:
    """A digest of how a file of the table begins."""
    fs, _ = file_system(source)
    with storage_errors(source), fs.open(path, "rb", block_size=HEAD_BYTES) as file:
        return hashlib.sha256(file.read(HEAD_BYTES)).hexdigest()
