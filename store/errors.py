"""The errors of the storage layer: what happened, to which thing, and what to do."""

import errno
from pathlib import Path

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE)
"""Errors that freeing space or raising a limit resolves: full disk, quota, limits of process or system."""
UNREADABLE = (errno.EIO, errno.EBADMSG, errno.ENODATA)
"""Errors of a read by which a disk says that it has lost these bytes."""


class StoreError(Exception):
    """Base of all storage errors; `code` is stable and may be matched by programs."""

    code = "store_error"


class CorruptionError(StoreError):
    """Bytes on disk are not what was written. `remains` are those at the offset, of a header at most."""

    code = "corruption"

    def __init__(self, path: Path | str, offset: int, reason: str, remains: bytes = b"") -> None:
        super().__init__(
            f"{path}: damaged at log offset {offset}: {reason}; "
            "run `timerwheel fsck` on this data directory to see what is intact"
        )
        self.path = str(path)
        self.offset = offset
        self.reason = reason
        self.remains = remains


class LogDamagedError(CorruptionError):
    """The log is damaged in a way that no crash causes: intact records follow the damage."""

    def __init__(self, path: Path | str, offset: int, reason: str, later: int | None = None) -> None:
        super().__init__(path, offset, reason)
        goes_on = "" if later is None else f", and intact records continue at offset {later}"
        text = (
            f"{path}: damaged at log offset {offset}: {reason}{goes_on}. A crash cannot cause this, so the "
            "log was not changed. `timerwheel fsck` lists the damage; check whether a backup has these "
            "records. To start without them, run `timerwheel serve --salvage` once: it keeps every intact "
            "record on both sides. Or run `timerwheel serve --cut` once: it ends the log before the first "
            "damage that prevents a start, and moves the rest into quarantine files beside it"
        )
        self.args = (text,)
        self.later = later


class ForeignSegmentError(CorruptionError):
    """A segment belongs to another log than the others of its directory."""


class CopyDamagedError(CorruptionError):
    """The copy of a journal is damaged, which has the whole log."""

    def __init__(self, path: Path | str, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        text = (
            f"{path}: damaged at log offset {offset}: {reason}. This is a copy of a journal; remove the "
            "directory of this file, and start again to copy it once more"
        )
        self.args = (text,)


class FormatError(StoreError):
    """A file has a format that this version does not read."""

    code = "format"


class NotAFileError(FormatError):
    """Something else is where a file belongs: a directory, a pipe, a device, or a link that leads nowhere."""

    def __init__(self, path: Path | str, found: str) -> None:
        self.reason = f"{path} is not an ordinary file but {found}"
        super().__init__(f"{self.reason}; move it away, and put back the file that belongs there")


class OffsetError(StoreError):
    """No record at this log offset: it is before the first segment, past the tail or unaligned."""

    code = "offset"

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"log offset {offset}: {reason}")
        self.offset = offset


class IndexDamagedError(StoreError):
    """The index cannot be trusted; it is derived from the log and must be rebuilt."""

    code = "index_damaged"


class IndexAheadError(IndexDamagedError):
    """The index knows records that the log does not have: with local files alone, these have been lost."""


class IndexBusyError(StoreError):
    """Other processes hold every reader slot of the index; reading works again when one is free."""

    code = "index_busy"


class LogFailedError(StoreError):
    """A sync failed: what the disk holds is unknown, so the process must stop and recover."""

    code = "log_failed"


class WriteUnknownError(LogFailedError):
    """The log failed during this write: after the next start it is stored completely or not at all."""

    code = "outcome_unknown"


class JournalAwayError(LogFailedError):
    """The journal did not answer in time: opening the log again claims it as soon as it does."""

    code = "journal_away"


class JournalFencedError(LogFailedError):
    """Another process has claimed the journal: this one may acknowledge nothing more."""

    code = "journal_fenced"


class CopyFullError(LogFailedError):
    """A record is in the journal, and its copy found no space on the disk: the next start copies it."""

    code = "log_failed"


class JournalMismatchError(StoreError):
    """The directory and the journal do not belong together, or the journal has lost a part of the log."""

    code = "journal_mismatch"


class NoSpaceError(StoreError):
    """The disk is full; nothing of the batch was stored."""

    code = "no_space"


class IndexMapFullError(NoSpaceError):
    """The index has grown to its map size, which a setting bounds: more disk does not help."""


def is_for_space(error: BaseException) -> bool:
    """Whether an error, or what caused it, is lack of space, which may be over later."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, IndexMapFullError):
            return False
        if isinstance(cause, NoSpaceError | CopyFullError) or (
            isinstance(cause, OSError) and cause.errno in NO_SPACE
        ):
            return True
        cause = cause.__cause__
    return False


class LockedError(StoreError):
    """Another process owns the data directory."""

    code = "locked"
