"""The data directory that a restore makes: its log is built beside and renamed when it is whole.

    DATA/log.restoring/    segments and the manifest `start`, until all is durable
    DATA/log/              the same, by one rename

A restore that was killed leaves no `log`, and so nothing that a service or a job would take for a log of
messages. The next one begins anew. The directory's lock is held all the while.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timerwheel.runtime.data_directory import remove, restored_directory
from timerwheel.state.log_manifest import LOG_DIRECTORY, LOST_AND_FOUND, UNFINISHED_LOG, LogStart, write_start
from timerwheel.store.errors import FormatError
from timerwheel.store.files import DiskFiles, ReadFiles
from timerwheel.store.log import CommitLog

_OWN = ("lock", UNFINISHED_LOG, LOST_AND_FOUND)
_CHUNK_BYTES = 8 << 20


def check_new(data: Path) -> None:
    """FormatError if there is anything in the directory that a restore did not leave there."""
    try:
        names = DiskFiles().names(data)
    except FileNotFoundError:
        return
    others = [name for name in names if name not in _OWN]
    if others:
        raise FormatError(f"{data} is not new: it has {others[0]}; restore into a directory of its own")


@contextmanager
def restored_log(data: Path, segment_size_bytes: int, now_text: str) -> Iterator["RestoredLog"]:
    """A log that is there when the block has called `finish`, and not at all if it ends before.

    Raises FormatError if the directory is not new, LockedError if another process has it.
    """
    check_new(data)
    with restored_directory(data, (), now_text=now_text):
        check_new(data)
        remove(data / UNFINISHED_LOG)
        log = RestoredLog(data, segment_size_bytes)
        try:
            yield log
        finally:
            log.close()
            remove(data / UNFINISHED_LOG)


class RestoredLog:
    """The log that is built. `begin`, `append` as often as needed, `finish`."""

    def __init__(self, data: Path, segment_size_bytes: int) -> None:
        self._data = data
        self._segment_size_bytes = segment_size_bytes
        self._files = DiskFiles()
        self._log: CommitLog | None = None
        self._now_ms = 0

    def begin(self, log_id: bytes, base: int, now_ms: int) -> None:
        """The first segment: of this log, at this offset."""
        self._log = CommitLog(self._data / UNFINISHED_LOG, self._files, self._segment_size_bytes)
        self._log.open(new_log_id=log_id, now_ms=now_ms, keep_from=base)
        self._now_ms = now_ms

    def append(self, files: ReadFiles, path: Path) -> int:
        """Append a file of records, one behind the other; returns how many. Memory: a chunk and a record."""
        assert self._log is not None
        file = files.open_readonly(path)
        count = position = 0
        try:
            end = file.size()
            wanted = _CHUNK_BYTES
            while position < end:
                records = _whole_records(file.read(position, wanted))
                if not records:  # one that is larger than a chunk
                    wanted *= 2
                    continue
                wanted = _CHUNK_BYTES
                _, error = self._log.append([[one] for one in records], sync=False, now_ms=self._now_ms)
                if error is not None:
                    raise error
                count += len(records)
                position += sum(map(len, records))
        finally:
            file.close()
        return count

    def finish(self, start: LogStart) -> int:
        """Make the log durable, and then the log of the data directory; returns where it ends."""
        assert self._log is not None
        self._log.sync()
        write_start(self._files, self._log, start)
        self._files.sync_dir(self._log.directory)
        self._log.directory.rename(self._data / LOG_DIRECTORY)
        for directory in (self._data, self._data.absolute().parent):
            self._files.sync_dir(directory)
        return self._log.tail

    def close(self) -> None:
        """Release its files."""
        if self._log is not None:
            self._log.close()


def _whole_records(data: bytes) -> list[bytes]:
    """The records that lie in `data` from its beginning, without the last one if that is cut."""
    found: list[bytes] = []
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        if at + size > len(data):
            break
        found.append(data[at : at + size])
        at += size
    return found
