"""From a backup back to a data directory: copied, checked and durable before it has a log to start with.

    DATA/log.restoring/   until then
    DATA/log/             the same, by one rename

What is restored is the service as of the end of the backup. Never run it and the one it was taken from as if
they were one. See `doc/operations.md`.
"""

import functools
from pathlib import Path

from store.errors import FormatError
from store.files import DiskFiles, make_directory
from store.lock import DirectoryLock
from store.segment import SIDECAR_SUFFIX
from timerwheel.backup.files import (
    BESIDE,
    BackupFile,
    Manifest,
    Progress,
    check_file,
    copy,
    copy_small,
    crc_of,
    finished_manifest,
    listed,
    nobody,
    private,
    remove,
)
from timerwheel.durations import format_ms
from timerwheel.log_start import LOG_DIRECTORY, LOST_AND_FOUND, UNFINISHED_LOG


def restore_backup(backup: Path, data: Path, now_ms: int, progress: Progress | None = None) -> Manifest:
    """Make a new data directory of a backup; when this returns it is durable.

    Raises FormatError if `backup` is none that was finished, or if `data` is not new; BackupDamagedError for
    a file that is not what was backed up; LockedError if `data` is in use. After an error `data` has no log,
    and the next try begins anew. `progress` gets (bytes done, bytes in all).
    """
    manifest = finished_manifest(backup)
    _refuse_old(data, manifest)
    with private(), DirectoryLock(data, purpose="timerwheel restore", now_text=format_ms(now_ms)):
        _refuse_old(data, manifest)
        _restore(backup, data, manifest, progress or nobody)
    return manifest


def _restore(backup: Path, data: Path, manifest: Manifest, progress: Progress) -> None:
    log, building = backup / LOG_DIRECTORY, data / UNFINISHED_LOG
    remove(building)
    make_directory(building)

    def copied(path: Path) -> int:
        return copy(path, building / path.name, path.stat().st_size)

    for path, segment in listed(backup, manifest, progress):
        check_file(path, segment.file, copied)
        side = path.with_suffix(SIDECAR_SUFFIX)
        copy_small(side, building / side.name)
    for file in manifest.files:
        # Those beside the log first: without its tokens, a service would be open.
        to = (data if file.name in BESIDE else building) / file.name
        copy_small(log / file.name, to)
        check_file(log / file.name, file, functools.partial(_crc_of_copy, to))
    files = DiskFiles()
    files.sync_dir(building)
    building.rename(data / LOG_DIRECTORY)
    for directory in (data, data.absolute().parent):
        files.sync_dir(directory)


def _crc_of_copy(to: Path, _source: Path) -> int:
    return crc_of(to)


def _refuse_old(data: Path, manifest: Manifest) -> None:
    """FormatError if there is anything in the directory that a restore of this backup did not leave."""
    try:
        names = {path.name for path in data.iterdir()}
    except FileNotFoundError:
        return
    own = {"lock", UNFINISHED_LOG, LOST_AND_FOUND} | {f"{name}.tmp" for name in BESIDE}
    own |= {file.name for file in manifest.files if file.name in names and _is_copy(data / file.name, file)}
    if names - own:
        raise FormatError(f"{data} is not new: it has {min(names - own)}; restore into a new directory")


def _is_copy(path: Path, file: BackupFile) -> bool:
    return path.stat().st_size == file.size and crc_of(path) == file.crc
