"""From a backup back to a data directory: copied, checked and durable before it has a log to start with.

    DATA/log.restoring/   until then
    DATA/log/             the same, by one rename

What is restored is the service as of the end of the backup. Never run it and the one it was taken from as if
they were one. See `doc/operations.md`.
"""

import contextlib
import functools
from pathlib import Path

from timerwheel.model.durations import format_ms
from timerwheel.offline.backup.files import (
    BESIDE,
    BackupFile,
    Manifest,
    Progress,
    check_file,
    check_listed,
    check_segment,
    check_start,
    copy,
    copy_small,
    crc_of,
    finished_manifest,
    listed,
    nobody,
    private,
)
from timerwheel.runtime.data_directory import remove, restored_directory
from timerwheel.state.log_manifest import LOG_DIRECTORY, LOST_AND_FOUND, UNFINISHED_LOG
from timerwheel.store.errors import FormatError, NoSpaceError
from timerwheel.store.files import DiskFiles, make_directory
from timerwheel.store.log_reader import LogReader


def restore_backup(backup: Path, data: Path, now_ms: int, progress: Progress | None = None) -> Manifest:
    """Make a new data directory of a backup; when this returns it is durable.

    Raises FormatError if `backup` is not one that was finished or has a file that is not an ordinary one, or
    if `data` is not new; BackupDamagedError for a file that is not what was backed up; NoSpaceError before it
    copies anything; LockedError if `data` is in use. An error leaves nothing behind. `progress` gets (bytes
    done, bytes in all).
    """
    manifest = finished_manifest(backup)
    check_listed(backup, manifest)
    _refuse_old(data, manifest)
    with private(), restored_directory(data, BESIDE, now_text=format_ms(now_ms)):
        _refuse_old(data, manifest)
        _refuse_small(data, manifest)
        _restore(backup, data, manifest, progress or nobody)
    return manifest


def _restore(backup: Path, data: Path, manifest: Manifest, progress: Progress) -> None:
    log, building = backup / LOG_DIRECTORY, data / UNFINISHED_LOG
    remove(building)
    make_directory(building)
    for path, segment in listed(backup, manifest, progress):
        to = building / path.name

        def copied(source: Path, to: Path = to, size: int = segment.size) -> int:
            return copy(source, to, size)

        check_file(path, segment.file, copied)
        check_segment(to, path, segment, manifest)
    for file in manifest.files:
        # Those beside the log first: without its tokens, a service would be open.
        to = (data if file.name in BESIDE else building) / file.name
        check_file(log / file.name, file, functools.partial(_copied, to))
        check_start(to, log / file.name, manifest)
    _write_sidecars(building, manifest)
    files = DiskFiles()
    files.sync_dir(building)
    building.rename(data / LOG_DIRECTORY)
    for directory in (data, data.absolute().parent):
        files.sync_dir(directory)


def _write_sidecars(building: Path, manifest: Manifest) -> None:
    """Scan the sealed segments again: no checksum says that a sidecar of the backup tells the truth."""
    log = LogReader(building, DiskFiles())
    log.open_readonly(keep_from=manifest.start)
    with contextlib.closing(log):
        for segment in manifest.segments[:-1]:
            if segment.damage is None:
                log.write_sidecar(segment.base, None)


def _refuse_small(data: Path, manifest: Manifest) -> None:
    """NoSpaceError if the file system has less room than the segments take."""
    free = DiskFiles().free_bytes(data)
    if free < manifest.size_bytes:
        raise NoSpaceError(
            f"{data} has {free:,} bytes free and the backup takes {manifest.size_bytes:,}; make room, or "
            "restore to another disk"
        )


def _copied(to: Path, source: Path) -> int:
    copy_small(source, to)
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
    return path.stat(follow_symlinks=False).st_size == file.size and crc_of(path) == file.crc
