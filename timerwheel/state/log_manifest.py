"""The manifest `start`: where the kept log begins, once retention has removed something before it.

Format: `doc/log-format.md`.
"""

from pathlib import Path

import msgspec

from timerwheel.state.memtable import SettingsDump
from timerwheel.state.state import LogState
from timerwheel.store.errors import FormatError
from timerwheel.store.files import Files, ReadFiles, read_whole
from timerwheel.store.log_reader import LogReader
from timerwheel.store.sealed_json import SealError, check_seal, seal

LOG_DIRECTORY = "log"
UNFINISHED_LOG = LOG_DIRECTORY + ".restoring"
"""What a restore writes until all of it is there."""
START_FILE = "start"
LOST_AND_FOUND = "lost+found"
"""What a file system of its own has at its top: a directory with nothing else in it is new, or empty."""


class LogStart(msgspec.Struct, frozen=True):
    """What retention knows at the offset where the kept log begins: each queue's first offset there.

    It also keeps the settings and groups of the dropped segments, as of the log up to `settings_until`.
    """

    offset: int
    queues: list[tuple[str, int, int]]
    settings_until: int = 0
    settings: SettingsDump | None = None


def log_directory(data: Path) -> Path:
    """Where the log of a data directory is; FormatError that says why it is none."""
    directory = data / LOG_DIRECTORY
    if directory.is_dir():
        return directory
    if data.is_dir():
        wrong = f"{directory} is a file" if directory.exists() else f"it has no {LOG_DIRECTORY}/"
    else:
        wrong = "it is a file" if data.exists() else "there is no such directory"
    raise FormatError(
        f"{data} is not a data directory of timerwheel: {wrong}; give the one that `timerwheel "
        "serve` uses, with --data or TIMERWHEEL_DATA"
    )


def read_start(files: ReadFiles, directory: Path) -> LogStart | None:
    """The retention manifest, None while nothing was ever dropped."""
    path = directory / START_FILE
    raw = read_whole(files, path)
    return None if raw is None else decode_start(path, raw)


def decode_start(path: Path, raw: bytes) -> LogStart:
    """The manifest in these bytes; FormatError if they are not what was written.

    A manifest of an earlier version has no checksum, and is believed.
    """
    try:
        check_seal(raw)
        return msgspec.json.decode(raw, type=LogStart)
    except SealError as error:
        raise FormatError(
            f"{path}: {error}. Nothing was changed; restore a backup of this data directory"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is not a manifest of a log: {error}") from None


def write_start(files: Files, log: LogReader, start: LogStart) -> None:
    """Put the manifest down, before the segments that it stands for are removed."""
    files.write_whole(log.directory / START_FILE, seal(msgspec.json.encode(start)))


def begin_state(log_state: LogState, start: LogStart, begin: int) -> None:
    """Have an empty view begin with what the manifest tells; the kept log begins at the offset `begin`."""
    log_state.origin_floor = begin
    for name, queue, first in start.queues:
        found = log_state.queue(log_state.topic(name), queue)
        found.min_offset = found.next_offset = first
        log_state.memtable.topics.add(log_state.topic(name).id)
    if start.settings is not None:
        log_state.load_settings(start.settings, start.settings_until)
