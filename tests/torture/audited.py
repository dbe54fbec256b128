"""What `timerwheel audit --kafka` says behind a run: it finds nothing, and has counted all that the run did.

An audit that read too little would find nothing either. So its counts must be those of the books, and what is
put into Kafka by hand must be found.
"""

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from tests.harness.processes import COMMAND, python
from tests.torture.books import Books, Fate
from timerwheel.client import Message
from timerwheel.state.log_manifest import LOG_DIRECTORY, shards_in
from timerwheel.store.files import DiskFiles
from timerwheel.store.journal import Run, RunKind, label
from timerwheel.store.log_reader import LogReader
from timerwheel.store.record import FLAG_LEASE, FLAG_MORE, NO_OFFSET, Kind, decode_header
from timerwheel.store.segment import SEGMENT_HEADER_SIZE

FLUSH_S = 30.0


class Auditor:
    """Audits the services of one cluster from outside, with a copy of their logs of its own.

    `address` is that of the brokers; the log is in the journal `cluster`, or in `data` if that is given.
    """

    def __init__(
        self, directory: Path, address: str, *, cluster: str = "shop", data: Path | None = None
    ) -> None:
        self._directory = directory
        self._address = address
        self._cluster = cluster
        self._copy = data or directory / "audited"
        self._where = f"kafka://{address}" if data is not None else f"kafka://{address}/{cluster}"
        self._audits = 0

    def audit(self, *flags: object) -> dict[str, Any]:
        """The document that the command gives; its exit code fits it."""
        self._audits += 1
        out = self._directory / f"audit-{self._audits}"
        where = ("--kafka", self._where, "--data", self._copy, "--out", out, "--report-only")
        done = python(*COMMAND[1:], "audit", *where, "--master", "local[2]", "--json", *flags)
        assert done.code in {0, 1}, done.err
        found: dict[str, Any] = orjson.loads(done.out)
        assert found["balanced"] == (done.code == 0)
        return found

    def balance(self, books: Books, waiting: list[Message], *, is_whole: bool) -> None:
        """Raises AssertionError if the audit finds something, or has counted other messages than the books.

        If the log is not whole, since retention has removed its beginning, it may have counted fewer.
        """
        found = self.audit()
        assert found["balanced"], (found["rules"], found["findings"][:5], found["damaged"][:5])
        counted = {one["topic"]: one["accounts"] for one in found["topics"]}
        begins = {node["begin"] for node in found["nodes"]}
        has_all = begins == {SEGMENT_HEADER_SIZE}
        assert has_all or not is_whole, f"the logs begin at {begins}"
        for topic, wanted in _wanted(books, waiting).items():
            sums = counted.get(topic, Counter())
            came = sums["direct"] + sums["delivered"] + sums["early"]
            judged = {"came": came, "pending": sums["pending"], "recalled": sums["recalled"]}
            if has_all:
                assert judged == wanted, (topic, judged, wanted)
            else:
                assert all(judged[name] <= wanted[name] for name in judged), (topic, judged, wanted)
                assert judged["pending"] == wanted["pending"], (topic, judged, wanted)
        print(f"audited {found['records']:,} records of {len(found['nodes'])} logs: nothing is wrong")

    def finds_a_forged_delivery(self) -> None:
        """A message that is written a second time to the end of a log is found, by nothing but the audit."""
        logs = shards_in(self._copy) or [self._copy]
        for shard, data in enumerate(logs):
            last, tail = _last_delivery(data / LOG_DIRECTORY)
            if last is not None:
                topic = f"{self._cluster}-{shard}-log" if len(logs) > 1 else f"{self._cluster}-log"
                self._store(topic, Run(RunKind.RECORDS, tail, last))
                break
        else:
            raise AssertionError("no log has a message that was due later than it was sent")
        found = self.audit()
        assert found["rules"] == {"delivered_twice": 1}, found["rules"]
        assert [one["offset"] for one in found["findings"]] == [tail]

    def _store(self, topic: str, run: Run) -> None:
        from confluent_kafka import Producer  # noqa: PLC0415 - only with the extra

        producer = Producer({"bootstrap.servers": self._address})
        producer.produce(topic, run.data, partition=0, headers=[("run", label(run))])
        assert producer.flush(FLUSH_S) == 0


def _wanted(books: Books, waiting: list[Message]) -> dict[str, dict[str, int]]:
    """By topic, what the log of a service with these books has."""
    wanted: dict[str, Counter[str]] = {entry.topic: Counter() for entry in books.entries.values()}
    for (topic, _), deliveries in books.queues.items():
        wanted[topic]["came"] += len(deliveries)
    for message in waiting:
        wanted[message.topic]["pending"] += 1
    for entry in books.entries.values():
        wanted[entry.topic]["recalled"] += entry.fate is Fate.RECALLED
    names = ("came", "pending", "recalled")
    return {topic: {name: counts[name] for name in names} for topic, counts in wanted.items()}


def _last_delivery(directory: Path) -> tuple[bytes | None, int]:
    """The last record of a message that fired and is a unit by itself; and where the log ends."""
    log = LogReader(directory, DiskFiles())
    log.open_readonly()
    with closing(log):
        found, is_inside = None, False
        for _, record in log.scan(log.start):
            header = decode_header(record)
            has_more = bool(header.flags & FLAG_MORE)
            fired = header.kind == Kind.MESSAGE and header.origin != NO_OFFSET
            if fired and not is_inside and not has_more and not header.flags & FLAG_LEASE:
                found = record
            is_inside = has_more
        return found, log.tail
