"""The manifest `start`: where the kept log begins, once retention has removed something before it.

Format: `doc/log-format.md`.
"""

import re
from pathlib import Path

import msgspec

from timerwheel.state.memtable import SettingsDump
from timerwheel.state.state import LogState
from timerwheel.store.errors import FormatError
from timerwheel.store.files import ReadFiles, ReadPath, read_whole
from timerwheel.store.log import CommitLog
from timerwheel.store.log_reader import START_FILE
from timerwheel.store.sealed_json import SealError, check_seal, seal

LOG_DIRECTORY = "log"
UNFINISHED_LOG = LOG_DIRECTORY + ".restoring"
"""The log of a restore in progress; renamed when it is complete."""
SHARD_DIRECTORY = "shard-{}"
"""The data directory of a shard, in that of its node."""
SHARDS_FILE = "shards"
"""A file in a node's directory: each of its shards has had a log there."""
LOST_AND_FOUND = "lost+found"
"""The directory at the top of a file system; a directory with nothing else in it counts as empty."""


class LogStart(msgspec.Struct, frozen=True):
    """The state at the offset where the kept log begins: the first queue offset of each queue there.

    It also keeps the settings and groups of the dropped segments, as of the log up to `settings_until`.
    """

    offset: int
    queues: list[tuple[str, int, int]]
    settings_until: int = 0
    settings: SettingsDump | None = None


_match_shard = re.compile(r"shard-[0-9]+").fullmatch


def shards_in(home: Path) -> list[Path]:
    """Return the directories of shards in a node's directory, in order."""
    if not home.is_dir():
        return []
    found = [path for path in home.iterdir() if _match_shard(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def log_directory(data: Path) -> Path:
    """Return the log directory of a data directory; FormatError if it is not a data directory."""
    directory = data / LOG_DIRECTORY
    if directory.is_dir():
        return directory
    if shards := shards_in(data):
        raise FormatError(
            f"{data} is the directory of a node in front of shards; give that of a shard: {shards[0]}, ..."
        )
    if broken := next((path for path in (data, directory) if path.is_symlink() and not path.exists()), None):
        raise FormatError(f"{broken} is a link that leads nowhere; is its disk mounted?")
    if data.is_dir():
        wrong = f"{directory} is a file" if directory.exists() else f"it has no {LOG_DIRECTORY}/"
    else:
        wrong = "it is a file" if data.exists() else "there is no such directory"
    raise FormatError(
        f"{data} is not a data directory of timerwheel: {wrong}; give the one that `timerwheel "
        "serve` uses, with --data or TIMERWHEEL_DATA"
    )


def read_start(files: ReadFiles, directory: ReadPath) -> LogStart | None:
    """Return the manifest, None while nothing was ever dropped."""
    path = directory / START_FILE if isinstance(directory, Path) else f"{directory}/{START_FILE}"
    raw = read_whole(files, path)
    return None if raw is None else decode_start(path, raw)


def decode_start(path: ReadPath, raw: bytes) -> LogStart:
    """Decode a manifest; FormatError if the bytes are not what was written.

    A manifest of an earlier version has no checksum and is accepted without.
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


def write_start(log: CommitLog, start: LogStart) -> None:
    """Write the manifest; call it before the segments that it replaces are removed."""
    log.write_start(encode_start(start))


def encode_start(start: LogStart) -> bytes:
    """Encode a manifest, with its checksum."""
    return seal(msgspec.json.encode(start))


def begin_state(log_state: LogState, start: LogStart, begin: int) -> None:
    """Load a manifest into an empty state; the kept log begins at the offset `begin`."""
    log_state.begin_at(begin)
    for name, queue, first in start.queues:
        found = log_state.queue(log_state.topic(name), queue)
        found.min_offset = found.next_offset = first
        log_state.memtable.topics.add(log_state.topic(name).id)
    if start.settings is not None:
        log_state.load_settings(start.settings, start.settings_until)
