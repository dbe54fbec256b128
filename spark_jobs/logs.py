"""Finds the logs that a job reads, one in each node's data directory."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from timerwheel.spark_jobs.segments import Segment
from timerwheel.spark_jobs.storage import expand, join, last_name, normal, place_of
from timerwheel.state.log_manifest import LOG_DIRECTORY, LogStart, read_start
from timerwheel.store.errors import CorruptionError, FormatError
from timerwheel.store.segment import SEGMENT_HEADER_SIZE, read_header, segment_base, segment_name


class NoSegmentError(FormatError):
    """A log directory has no intact segment: perhaps its first one is being created."""


class NoLogError(FormatError):
    """A path has no log, or a pattern matches none: a mistake, or the node was retired."""


class NodeLog(NamedTuple):
    """The log of one node: its segments, and the manifest that retention wrote."""

    node: str
    url: str
    log_id: bytes
    segments: tuple[Segment, ...]
    start: LogStart | None

    @property
    def begin(self) -> int:
        """The offset of the first kept record."""
        return self.segments[0].base + SEGMENT_HEADER_SIZE


def find_logs(
    urls: Sequence[str], *, may_begin: bool = False, gone: list[NoLogError] | None = None
) -> list[NodeLog]:
    """The logs in these data directories; a pattern may match many.

    A node is named after its directory, or by its whole URL if two directories share a name. Raises
    NoLogError for a directory without a log, and if nothing matches; with `gone` these are put there. With
    `may_begin`, a directory that a pattern matches may be without a segment, and is left out.
    """
    found: list[str] = []
    by_pattern: set[str] = set()
    for url in urls:
        matched = expand(url)
        if matched != [url]:
            matched = [one for one in matched if _has_log(one)]
            if not matched:
                _lack(NoLogError(f"{url} matches no data directory of timerwheel"), gone)
            by_pattern.update(map(normal, matched))
        found += [one for one in map(normal, matched) if one not in found]
    names = Counter(map(last_name, found))
    logs: list[NodeLog] = []
    for url in found:
        try:
            logs.append(_log_at(url, last_name(url) if names[last_name(url)] == 1 else url))
        except NoSegmentError:
            if not may_begin or url not in by_pattern:
                raise
        except NoLogError as error:
            _lack(error, gone)
    return logs


def _lack(error: NoLogError, gone: list[NoLogError] | None) -> None:
    if gone is None:
        raise error
    gone.append(error)


def _has_log(url: str) -> bool:
    files, path = place_of(url)
    try:
        return LOG_DIRECTORY in files.names(path)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _log_at(url: str, node: str) -> NodeLog:
    directory = join(url, LOG_DIRECTORY)
    place = place_of(directory)
    files = place.files
    try:
        bases = sorted(base for base in map(segment_base, files.names(place.path)) if base is not None)
    except (FileNotFoundError, NotADirectoryError):
        raise NoLogError(f"{url} is not a data directory of timerwheel: it has no {LOG_DIRECTORY}/") from None
    start = read_start(files, place.path)
    if start is not None:
        bases = [base for base in bases if base >= start.offset]
    log_id = None
    for base in bases:
        if log_id is not None and base != bases[-1]:
            continue  # there may be thousands, and readers look at each
        try:
            file = files.open_readonly(place.file(segment_name(base)))
        except FileNotFoundError:
            continue  # retention has just removed it
        try:
            found = read_header(file, place.file(segment_name(base)), base)
            log_id = log_id or found
        except CorruptionError:
            if base == bases[-1] and len(bases) > 1 and file.size() <= SEGMENT_HEADER_SIZE:
                bases = bases[:-1]  # it was being created
                break
            continue  # the reader of the segment reports or refuses it
        finally:
            file.close()
    if log_id is None:
        raise NoSegmentError(f"{directory}: no intact segment of a commit log")
    first = 0 if start is None else start.offset
    if first < bases[0]:
        bases.insert(0, first)  # a missing file, which its reader reports as damage
    ends = [*bases[1:], None]
    segments = tuple(
        Segment(node, directory, base, end, log_id=log_id) for base, end in zip(bases, ends, strict=True)
    )
    return NodeLog(node, url, log_id, segments, start)
