"""Stores the log of a stopped service in a journal that is empty: the way from the local disk to Kafka.

A service in shards has a log, and so a topic, for each of them. The way back needs no code of its own:
`timerwheel rebuild --kafka`, then a backup, which is never a copy of a journal, and its restore.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from timerwheel.clock import SystemClock
from timerwheel.errors import SettingsError
from timerwheel.kafka.journal import KafkaJournal
from timerwheel.model.durations import format_ms
from timerwheel.model.shards import shard_of_log
from timerwheel.settings import JournalAddress
from timerwheel.state.log_manifest import log_directory, read_start, shards_in
from timerwheel.store.errors import CorruptionError, JournalMismatchError
from timerwheel.store.files import DiskFiles
from timerwheel.store.journal_fill import fill
from timerwheel.store.lock import DirectoryLock
from timerwheel.store.log_reader import LogReader


class FilledTopic(NamedTuple):
    """One log and its topic."""

    topic: str
    start: int
    tail: int
    appended_bytes: int


def fill_journal(
    address: JournalAddress,
    properties: Mapping[str, str],
    data: Path,
    replication: int = 0,
    progress: Callable[[int, int], None] | None = None,
    *,
    from_copy: bool = False,
) -> list[FilledTopic]:
    """Store the log of a data directory, or those of all shards of a node, in a journal.

    With `from_copy`, it is the copy of another journal, which is lost.
    Raises LockedError if a service owns the directory, JournalMismatchError and JournalAwayError as
    `timerwheel.store.journal_fill.fill`, and SettingsError if not all shards are there.
    """
    shards = shards_in(data)
    call = partial(_fill_one, properties=properties, replication=replication, from_copy=from_copy)
    if not shards:
        return [call(address, data, progress=progress)]
    for number, one in enumerate(shards):
        found = _shard_of(one)
        if found != (number, len(shards)):
            raise SettingsError(
                f"{one} holds shard {found[0]} of {found[1]}, and {len(shards)} are in {data}"
            )
    return [call(address.of_shard(number), one, progress=progress) for number, one in enumerate(shards)]


def _shard_of(data: Path) -> tuple[int, int]:
    log = LogReader(log_directory(data), DiskFiles())
    log.open_readonly()
    log.close()
    return shard_of_log(log.log_id)


def _fill_one(
    address: JournalAddress,
    data: Path,
    *,
    properties: Mapping[str, str],
    replication: int,
    progress: Callable[[int, int], None] | None,
    from_copy: bool,
) -> FilledTopic:
    clock, files = SystemClock(), DiskFiles()
    directory = log_directory(data)
    with DirectoryLock(data, purpose="timerwheel cluster fill", now_text=format_ms(clock.now_ms())):
        start = read_start(files, directory)
        journal = KafkaJournal(address, properties, clock, replication=replication)
        keep_from = 0 if start is None else start.offset
        try:
            found = fill(
                directory, files, journal, keep_from=keep_from, from_copy=from_copy, progress=progress
            )
        except CorruptionError as error:
            raise JournalMismatchError(
                f"{error.path}: damaged at log offset {error.offset}: {error.reason}. Start the service "
                "without --journal and stop it, which ends the log behind the last whole record after a "
                "crash; if it does not start, `timerwheel fsck` says what is damaged"
            ) from error
        finally:
            journal.close()
    return FilledTopic(journal.topic, *found)
