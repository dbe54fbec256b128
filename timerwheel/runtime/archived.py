"""The marker `archived` in a data directory: how much of its log an archive holds.

`timerwheel archive` writes it once the segments before that offset are whole and durable in the archive. With
`retention_archived_only`, retention removes no segment after it, and reads the marker again in each run.
"""

import logging
from pathlib import Path

import msgspec

from timerwheel.store.errors import FormatError
from timerwheel.store.files import Files, ReadFiles, read_whole
from timerwheel.store.sealed_json import SealError, check_seal, seal

MARKER_FILE = "archived"

logger = logging.getLogger("timerwheel")


class Archived(msgspec.Struct, frozen=True):
    """The segments of this log that end at or before `until` are in `archive`, as of `at_ms`."""

    log_id: str  # hex
    until: int
    archive: str
    at_ms: int


def read_archived(files: ReadFiles, data: Path) -> Archived | None:
    """Return the marker of a data directory, None if it has none; FormatError if the file is not a marker."""
    path = data / MARKER_FILE
    raw = read_whole(files, path)
    if raw is None:
        return None
    try:
        check_seal(raw)
        return msgspec.json.decode(raw, type=Archived)
    except (SealError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} cannot be read: {error}; run `timerwheel archive` again") from None


def write_archived(files: Files, data: Path, marker: Archived) -> None:
    """Write the marker, completely or not at all; call it once the archive is durable."""
    files.write_whole(data / MARKER_FILE, seal(msgspec.json.encode(marker)))


class ArchiveLimit:
    """Tells retention up to which offset the segments of its log are archived."""

    def __init__(self, files: ReadFiles, data: Path, log_id: bytes) -> None:
        self._files = files
        self._data = data
        self._log_id = log_id.hex()
        self._warned: str | None = None

    def until(self) -> int:
        """Return the archived offset, 0 if nothing of this log is known to be archived.

        Logs the reason once.
        """
        try:
            marker = read_archived(self._files, self._data)
        except (FormatError, OSError) as error:
            self._warn(str(error))
            return 0
        if marker is None:
            self._warn("nothing is archived yet; run `timerwheel archive`")
            return 0
        if marker.log_id != self._log_id:
            self._warn(f"{self._data / MARKER_FILE} belongs to another log, {marker.log_id}")
            return 0
        self._warned = None
        return marker.until

    def _warn(self, reason: str) -> None:
        if reason != self._warned:
            logger.warning("retention_archived_only: cannot remove segments: %s", reason)
            self._warned = reason
