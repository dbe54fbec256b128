"""Copies a log that brokers keep into a data directory, without a service: for `rebuild` and `audit`.

1. It claims nothing, so the leader goes on undisturbed.
2. The copy ends where the journal ended when it began, and is synced. A later call continues it.
3. The directory is then what a standby would have there, without its index.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from timerwheel.clock import SystemClock
from timerwheel.kafka.journal import KafkaJournal
from timerwheel.model.durations import format_ms
from timerwheel.model.shards import Shard, shard_of_log
from timerwheel.settings import JournalAddress, Settings
from timerwheel.state.log_manifest import LOG_DIRECTORY
from timerwheel.store.errors import JournalMismatchError
from timerwheel.store.files import DiskFiles
from timerwheel.store.journaled_log import JournaledLog
from timerwheel.store.lock import DirectoryLock
from timerwheel.store.segment import read_header


class Copied(NamedTuple):
    """What a copy holds: positions of the journal that were read now, and the log offset of its end."""

    start: int
    end: int
    tail: int
    shard: Shard
    """The one that the log belongs to."""


def shards_of(address: JournalAddress, properties: Mapping[str, str]) -> list[JournalAddress]:
    """Return the logs of a service in shards with this journal, in order; none if the journal is one log.

    JournalAwayError.
    """
    topics = KafkaJournal(address, properties, SystemClock()).topics()
    found: list[JournalAddress] = []
    while address.topic not in topics and address.of_shard(len(found)).topic in topics:
        found.append(address.of_shard(len(found)))
    return found


def copy_log(
    address: JournalAddress,
    properties: Mapping[str, str],
    data: Path,
    progress: Callable[[int, int], None] | None = None,
) -> Copied:
    """Copy the log of a cluster into a data directory; `progress` gets two positions, at and end.

    Raises JournalAwayError if the brokers do not answer; JournalMismatchError if the topic does not exist,
    has no log yet, or does not fit what the directory holds; and LockedError if a service owns the directory.
    """
    clock = SystemClock()
    journal = KafkaJournal(address, properties, clock)
    if journal.topic not in journal.topics():
        raise JournalMismatchError(
            f"there is no Kafka topic {journal.topic} at {address.servers}: give the address that the "
            "service has as --journal"
        )
    with DirectoryLock(data, purpose="copy of a journal", now_text=format_ms(clock.now_ms())):
        log = JournaledLog(data / LOG_DIRECTORY, DiskFiles(), Settings(data=data).segment_size_bytes, journal)
        with closing(log):
            extent = journal.extent(make=False)
            log.attach(extent)
            start = log.position
            log.catch_up(extent.end, progress)
            if not log.bases:
                raise JournalMismatchError(
                    f"the Kafka topic {journal.topic} has no log yet: nothing was sent"
                )
            last = log.bases[-1]
            log_id = read_header(log.file(last), log.path(last), last)
            return Copied(start, extent.end, log.tail, shard_of_log(log_id))
