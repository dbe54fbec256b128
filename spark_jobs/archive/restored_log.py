"""The data directory that a restore creates: its log is built under another name and renamed when complete.

    DATA/log.restoring/    segments and the manifest `start`, until all is durable
    DATA/log/              the same, by one rename

A killed restore leaves no `log`, so no service or job can mistake it for a log of messages. The next restore
starts over. The lock of the directory is held throughout.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from timerwheel.runtime.data_directory import restored_directory
from timerwheel.state.log_manifest import LOG_DIRECTORY, LOST_AND_FOUND, UNFINISHED_LOG, LogStart, write_start
from timerwheel.store.errors import FormatError
from timerwheel.store.files import DiskFiles, ReadFiles, ReadPath, remove
from timerwheel.store.log import CommitLog

_OWN = ("lock", UNFINISHED_LOG, LOST_AND_FOUND)
_CHUNK_BYTES = 8 << 20


def check_new(data: Path) -> None:
    """FormatError if the directory has anything in it but the leftovers of a restore."""
    try:
        names = DiskFiles().names(data)
    except FileNotFoundError:
        return
    others = [name for name in names if name not in _OWN]
    if others:
        raise FormatError(f"{data} is not empty: it has {others[0]}; restore into a new directory")


@contextmanager
def restored_log(data: Path, segment_size_bytes: int, now_text: str) -> Iterator["RestoredLog"]:
    """A log that exists once the block has called `finish`, and not at all if it ends earlier.

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
    """The log under construction. Call `begin`, `append` any number of times, then `finish`."""

    def __init__(self, data: Path, segment_size_bytes: int) -> None:
        self._data = data
        self._segment_size_bytes = segment_size_bytes
        self._files = DiskFiles()
        self._log: CommitLog | None = None
        self._now_ms = 0

    def begin(self, log_id: bytes, base: int, now_ms: int) -> None:
        """Create the first segment of this log at this offset."""
        self._log = CommitLog(self._data / UNFINISHED_LOG, self._files, self._segment_size_bytes)
        self._log.open(new_log_id=log_id, now_ms=now_ms, keep_from=base)
        self._now_ms = now_ms

    def append(self, files: ReadFiles, path: ReadPath) -> int:
        """Append a file of concatenated records; returns their number. Memory: a chunk and a record."""
        assert self._log is not None
        count = position = 0
        with closing(files.open_readonly(path)) as file:
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
        return count

    def finish(self, start: LogStart) -> int:
        """Make the log durable, then rename it into place; returns where it ends."""
        assert self._log is not None
        self._log.sync()
        write_start(self._log, start)
        self._files.sync_dir(self._log.directory)
        self._log.directory.rename(self._data / LOG_DIRECTORY)
        for directory in (self._data, self._data.absolute().parent):
            self._files.sync_dir(directory)
        return self._log.tail

    def close(self) -> None:
        """Close its files."""
        if self._log is not None:
            self._log.close()


def _whole_records(data: bytes) -> list[bytes]:
    """The records at the start of `data`, without a truncated last one."""
    found: list[bytes] = []
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        if at + size > len(data):
            break
        found.append(data[at : at + size])
        at += size
    return found
