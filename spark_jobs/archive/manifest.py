"""Manifests: what an archive holds of a log, and in which files.

A chunk is a run of consecutive segments of one log that were archived together. Its manifest counts: records
in a file that no manifest names are not part of the archive.

    _manifest/<log id>/<base>.json                                 base: of the chunk's first segment
    records/date=2026-12-24/<log id>-<base>-<digest>.parquet       the chunk's records of one UTC day
    date=2026-12-24/topic=orders/<log id>-<base>.parquet           the same in format 1, for each topic

1. Every path follows from other fields of the manifest, so none can lead out of the archive.
2. `digest` is the start of the file's SHA-256: two attempts that write different bytes write different files.
3. Format 1 had one segment in a chunk, and kept topics in the names of directories instead of in a column.

Steps for a change: raise FORMAT, keep decoding what is there, add an archive to `tests/golden`.
"""

import datetime as dt
import hashlib
import re
from collections.abc import Sequence

import msgspec

from timerwheel.state.config_table import Put
from timerwheel.store.record import HEADER_SIZE
from timerwheel.store.sealed_json import check_seal, seal

FORMAT = 2
FORMATS = (1, FORMAT)
MANIFESTS = "_manifest"
RECORDS = "records"
DELTA_LOG = f"{RECORDS}/_delta_log/"
"""What `spark_jobs.delta.archive` keeps beside the files."""
NAME_BYTES_MAX = 255
MANIFEST_BYTES_MAX = 1 << 30
FILE_BYTES_MAX = 1 << 40  # as large as a segment can be set
DIGEST_DIGITS = 16
TIME_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999
OFFSET_MAX = (1 << 63) - 1
QUEUE_MAX = 0xFFFF

LOG_ID = re.compile(r"[0-9a-f]{32}")
MANIFEST_NAME = re.compile(r"([0-9]{20})\.json")
_FILE = re.compile(
    r"(?:records/date=[^/]+/([0-9a-f]{32})-([0-9]{20})-[0-9a-f]{16}|"
    r"date=[^/]+/topic=[^/]+/([0-9a-f]{32})-([0-9]{20}))\.parquet"
)
_ESCAPED = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ArchivedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Parquet file; `path` is within the archive. In format 1 all its records are of `topic`."""

    path: str
    date: str
    rows: int
    bytes: int
    sha256: str
    topic: str | None = None


class Lost(msgspec.Struct, frozen=True):
    """A region [offset, end) of the segment without an intact record when it was archived."""

    offset: int
    end: int
    reason: str


class Beginning(msgspec.Struct, frozen=True):
    """State of earlier, removed segments, from the log's manifest `start`: see `LogStart`."""

    queues: list[tuple[str, int, int]]
    settings_until: int
    settings: list[Put]


class ArchivedSegment(msgspec.Struct, frozen=True):
    """What a manifest says of one segment.

    `queues` lists topic, queue and the number of messages that became visible; `made_ms` is from the header.
    """

    base: int
    end: int
    made_ms: int
    records: int
    last_store_ms: int
    queues: list[tuple[str, int, int]]
    lost: list[Lost]
    beginning: Beginning | None


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest without its files."""

    format: int
    log_id: str
    node: str
    segments: list[ArchivedSegment]

    @property
    def base(self) -> int:
        """The offset where its first segment begins."""
        return self.segments[0].base

    @property
    def end(self) -> int:
        """The offset where its last segment ends."""
        return self.segments[-1].end

    @property
    def records(self) -> int:
        """The number of its records."""
        return sum(segment.records for segment in self.segments)


class Manifest(Chunk, frozen=True, kw_only=True):
    """The whole manifest of a chunk."""

    files: list[ArchivedFile]


class _Format(msgspec.Struct):
    format: int


class _SegmentManifest(ArchivedSegment, frozen=True, kw_only=True):
    """A manifest of format 1."""

    format: int
    log_id: str
    node: str
    files: list[ArchivedFile]

    def chunk(self) -> Manifest:
        """Convert it to the form of today's manifest."""
        segment = ArchivedSegment(*(getattr(self, name) for name in ArchivedSegment.__struct_fields__))
        return Manifest(
            format=self.format, log_id=self.log_id, node=self.node, segments=[segment], files=self.files
        )


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest of today's format."""
    return seal(msgspec.json.encode(manifest))


def decode_manifest(raw: bytes) -> Manifest:
    """A manifest that says nothing impossible. Raises ValueError with the reason."""
    check_seal(raw)
    try:
        found = msgspec.json.decode(raw, type=_Format).format
        if found not in FORMATS:
            raise ValueError(f"it has format {found}; this program reads {' and '.join(map(str, FORMATS))}")
        if found == 1:
            manifest = msgspec.json.decode(raw, type=_SegmentManifest).chunk()
        else:
            check_seal(raw, required=True)
            manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
    _check_segments(manifest.segments)
    _check_files(manifest)
    return manifest


def _check_segments(segments: Sequence[ArchivedSegment]) -> None:
    if not segments:
        raise ValueError("it has no segment")
    at = segments[0].base
    for segment in segments:
        if segment.base != at:
            raise ValueError(f"its segments leave out the offsets from {at} to {segment.base}")
        _check_segment(segment)
        at = segment.end


def _check_segment(segment: ArchivedSegment) -> None:
    if not 0 <= segment.base < segment.end <= OFFSET_MAX:
        raise ValueError(f"a segment cannot reach from {segment.base} to {segment.end}")
    for name in ("made_ms", "last_store_ms"):
        if not 0 <= getattr(segment, name) <= TIME_MS_MAX:
            raise ValueError(f"{name} = {getattr(segment, name)} is not a time")
    size = segment.end - segment.base
    if not 0 <= segment.records <= size // HEADER_SIZE:
        raise ValueError(f"a segment of {size} bytes cannot have {segment.records} records")
    beginning = segment.beginning.queues if segment.beginning is not None else []
    for topic, queue, count in (*segment.queues, *beginning):
        if not 0 <= queue <= QUEUE_MAX or not 0 <= count <= OFFSET_MAX:
            raise ValueError(f"queue {queue} of {topic!r} cannot have {count} messages")
    at = segment.base
    for lost in segment.lost:
        if not at <= lost.offset < lost.end <= segment.end:
            raise ValueError(f"the region from {lost.offset} to {lost.end} cannot have been lost")
        at = lost.end
    if segment.beginning is not None and not 0 <= segment.beginning.settings_until <= OFFSET_MAX:
        raise ValueError(f"settings_until = {segment.beginning.settings_until} is not an offset")


def _check_files(manifest: Manifest) -> None:
    """Raise ValueError for a file outside the place of this chunk's files, maybe outside the archive."""
    seen: set[str] = set()
    for file in manifest.files:
        if not _DATE.fullmatch(file.date):
            raise ValueError(f"{file.date!r} is not a date")
        dt.date.fromisoformat(file.date)  # a ValueError that says what is wrong
        if not _SHA256.fullmatch(file.sha256):
            raise ValueError(f"{file.sha256!r} is not a SHA-256")
        place = _place(manifest, file)
        if file.path != place or place in seen:
            raise ValueError(f"it must list {place!r} exactly once, and lists {file.path!r}")
        seen.add(place)
        if file.rows < 1 or not 0 < file.bytes <= FILE_BYTES_MAX:
            raise ValueError(f"{file.path} cannot have {file.rows} rows in {file.bytes} bytes")
    rows = sum(file.rows for file in manifest.files)
    if manifest.records != rows:
        raise ValueError(f"its files have {rows} rows, not {manifest.records}")


def _place(manifest: Manifest, file: ArchivedFile) -> str:
    """Where this file must be."""
    if manifest.format == 1:
        if not file.topic:
            raise ValueError(f"{file.path!r} has no topic")
        return segment_file_path(manifest.log_id, manifest.base, file.date, file.topic)
    if file.topic is not None:
        raise ValueError(f"{file.path!r} cannot have a topic")
    return file_path(manifest.log_id, manifest.base, file.date, file.sha256)


def manifest_path(log_id: str, base: int) -> str:
    """The path of a chunk's manifest in an archive."""
    return f"{MANIFESTS}/{log_id}/{base:020d}.json"


def file_path(log_id: str, base: int, date: str, sha256: str) -> str:
    """The path of the Parquet file of one chunk and day in an archive."""
    return f"{RECORDS}/date={date}/{log_id}-{base:020d}-{sha256[:DIGEST_DIGITS]}.parquet"


def segment_file_path(log_id: str, base: int, date: str, topic: str) -> str:
    """The path of the Parquet file of one segment, day and topic in an archive of format 1."""
    return f"date={date}/topic={partition_value(topic)}/{log_id}-{base:020d}.parquet"


def owner_of(path: str) -> tuple[str, int] | None:
    """Log id and base of the chunk whose file has such a path; None if it is not a path of records."""
    found = _FILE.fullmatch(path)
    if found is None:
        return None
    log_id, base = (one for one in found.groups() if one is not None)
    return log_id, int(base)


def partition_value(topic: str) -> str:
    """A topic's name as Hive and Spark write it in the name of a directory.

    A name too long for a directory is cut and gets a hash; the manifest has all of it.
    """
    escaped = _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", topic)
    room = NAME_BYTES_MAX - len("topic=")
    if len(escaped.encode()) <= room:
        return escaped
    tail = "~" + hashlib.sha256(topic.encode()).hexdigest()[:16]
    cut = re.sub(r"%[0-9A-F]?$", "", escaped.encode()[: room - len(tail)].decode(errors="ignore"))
    return cut + tail
