"""`rows`: a table of `--records` rows into the wheel with `df.write.format("timerwheel")`, each with a key.

Spark, its Python workers and the service share the machine. The seconds include the start of Spark, which is
`start_s`; the rows are made by Spark while they are sent. Afterwards the messages are counted on both sides.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from bench.connection import connected
from bench.cost import Cost
from bench.peers.registry import OURS
from bench.peers.timerwheel import Timerwheel
from bench.runner import Bench

NAME = "rows"
TOPIC = "reminders"
POLL_S = 0.2
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


async def measure(bench: Bench) -> None:
    """The table of each round goes into a service of its own."""
    records = bench.options.records
    for number in range(1, bench.options.rounds + 1):
        async with bench.running(OURS) as system:
            assert isinstance(system, Timerwheel)
            with bench.waiting(f"{NAME}, {records:,} rows"):
                figures = await sent(system, records)
        bench.figure((NAME, f"{records:,} rows", OURS, number), figures)


async def sent(system: Timerwheel, records: int) -> dict[str, float]:
    """The figures of one table. Raises ValueError if the service does not have each row once."""
    cost = Cost(system)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.generator.table", system.url, TOPIC, str(records)),
        stdout=asyncio.subprocess.PIPE,
    )
    spark_ticks: dict[int, int] = {}
    reading = asyncio.create_task(process.communicate())
    while not reading.done():
        spark_ticks |= _ticks_of(process.pid)
        await asyncio.wait({reading}, timeout=POLL_S)
    out, _ = reading.result()
    seconds = cost.took_s
    write_s = json.loads(out)["write_s"]
    async with connected(system.port, 1) as [connection]:
        answer = await connection.call("GET", f"/v1/topics/{TOPIC}")
    pending = json.loads(answer)["pending"]
    if pending != records:
        raise ValueError(f"the service has {pending:,} messages of {records:,} rows")
    return {
        "seconds": seconds,
        "start_s": seconds - write_s,
        "rows_per_s": records / write_s,
        "service_cpu_us_per_row": cost.cpu_us(records),
        "spark_cpu_us_per_row": sum(spark_ticks.values()) * 1e6 / TICKS_PER_S / records,
    }


def _ticks_of(root: int) -> dict[int, int]:
    """The processor time of a process and all below it, in ticks of the clock, by process."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.name)
        parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: ticks[pid] for pid in found if pid in ticks}


def table(url: str, topic: str, records: int) -> dict[str, float]:
    """Write the table with Spark, in this process."""
    # Only here: the benchmark itself needs no Spark.
    from timerwheel.spark_jobs.session import session  # noqa: PLC0415

    with session("rows") as spark:
        rows = spark.range(records).selectExpr(
            "timestamp_millis(unix_millis(now()) + 86400000 + pmod(xxhash64(id), 2592000000)) as send_at",
            'concat(\'{"user":\', id, \',"text":"your appointment is tomorrow"}\') as body',
            "concat('user-', id) as key",
        )
        began = time.perf_counter()
        options = {"url": url, "topic": topic, "due": "send_at", "key": "key"}
        rows.write.format("timerwheel").mode("append").options(**options).save()
        return {"write_s": time.perf_counter() - began}
