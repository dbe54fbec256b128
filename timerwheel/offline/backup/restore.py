"""Restores a backup into a data directory. The copy is checked and durable before the directory has a log.

    DATA/log.restoring/   the copy in progress
    DATA/log/             the finished copy, after one rename
    DATA/../tokens.json   of a shard, unless its node has tokens; of any other service, DATA/tokens.json
    DATA/../shards        the number of shards, of a shard

The restored service continues from the end of the backup. Never run it beside the original. See
`doc/operations.md`.
"""

import contextlib
import functools
from pathlib import Path

from timerwheel import tokens
from timerwheel.errors import SettingsError
from timerwheel.model.durations import format_ms
from timerwheel.model.shards import Shard, shard_of_log
from timerwheel.offline.backup.files import (
    BESIDE,
    BackupFile,
    Manifest,
    Progress,
    are_nested,
    check_file,
    check_listed,
    check_segment,
    check_start,
    copy,
    copy_small,
    crc_of,
    listed,
    nobody,
    node_of,
    private,
    reading,
)
from timerwheel.runtime.data_directory import restored_directory
from timerwheel.state.log_manifest import LOG_DIRECTORY, LOST_AND_FOUND, SHARDS_FILE, UNFINISHED_LOG
from timerwheel.store.errors import FormatError, NoSpaceError
from timerwheel.store.files import DiskFiles, make_directory, remove
from timerwheel.store.log_reader import START_FILE, LogReader


def restore_backup(backup: Path, data: Path, now_ms: int, progress: Progress | None = None) -> Manifest:
    """Create the data directory `data` from a backup; it is durable when this returns.

    Raises FormatError if `backup` was not finished or has a file that is not an ordinary file, or if `data`
    is not new; SettingsError if one contains the other: the next backup would remove what is in its own
    directory; BackupDamagedError for a file that differs from the manifest; NoSpaceError before it copies
    anything; LockedError if `data` is in use or a run replaces `backup` at the same time. An error leaves
    nothing behind. `progress` gets (bytes done, bytes in all).
    """
    with reading(backup) as manifest:
        if are_nested(data, backup):
            raise SettingsError(f"{data}: give a directory outside the backup {backup}")
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
    node = node_of(data, manifest.log_id)
    for file in manifest.files:
        is_beside = file.name in BESIDE and (node is None or file.name != tokens.FILE)
        # Before the log, which takes long: tokens that somebody creates later are added to these.
        to = (data if is_beside else building) / file.name
        check_file(log / file.name, file, functools.partial(_copied, to, file.size))
        check_start(to, log / file.name, manifest)
    for path, segment in listed(backup, manifest, progress):
        to = building / path.name

        def copied(source: Path, to: Path = to, size: int = segment.size) -> int:
            return copy(source, to, size)

        check_file(path, segment.file, copied)
        check_segment(to, path, segment, manifest)
    _write_sidecars(building, manifest)
    if node is not None:
        _prepare_node(node, building / tokens.FILE, shard_of_log(bytes.fromhex(manifest.log_id)))
    files = DiskFiles()
    files.sync_dir(building)
    building.rename(data / LOG_DIRECTORY)
    for directory in (data, data.absolute().parent):
        files.sync_dir(directory)


def _prepare_node(node: Path, found: Path, shard: Shard) -> None:
    """Give a node the tokens of its shard, unless it has some: from another shard's backup, or new ones.

    It does not start until all its shards are restored: otherwise it would begin empty logs for the others.
    """
    if found.exists() and not (node / tokens.FILE).exists():
        copy_small(found, node / tokens.FILE)
    found.unlink(missing_ok=True)
    if not (node / SHARDS_FILE).exists():
        DiskFiles().write_whole(node / SHARDS_FILE, f"{shard.of}\n".encode())


def _write_sidecars(building: Path, manifest: Manifest) -> None:
    """Scan the sealed segments and write new sidecars: no checksum covers those of the backup."""
    log = LogReader(building, DiskFiles())
    log.open_readonly(keep_from=manifest.start)
    with contextlib.closing(log):
        for segment in manifest.segments[:-1]:
            if segment.damage is None:
                log.write_sidecar(segment.base, None)


def _refuse_small(data: Path, manifest: Manifest) -> None:
    """Raise NoSpaceError if the file system has less room than the segments take."""
    free = DiskFiles().free_bytes(data)
    if free < manifest.size_bytes:
        raise NoSpaceError(
            f"{data} has {free:,} bytes free and the backup takes {manifest.size_bytes:,}; make room, or "
            "restore to another disk"
        )


def _copied(to: Path, size: int, source: Path) -> int:
    if to.name == START_FILE:  # it may be too large to be read at once
        return copy(source, to, size)
    copy_small(source, to)
    return crc_of(to)


def _refuse_old(data: Path, manifest: Manifest) -> None:
    """Raise FormatError if the directory holds anything but leftovers of a restore of this backup."""
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
