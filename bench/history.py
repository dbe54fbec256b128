"""Generates logs of any length, as a service would have left them after a long time of work.

Every record is valid, with its CRC, and the records of every timer are consistent, so that replay, rebuild
and audit find no problem. All bodies are equal: such a log is only good for reading.
"""

from pathlib import Path
from zlib import crc32

import numpy as np

from timerwheel.store.files import DiskFiles
from timerwheel.store.record import FORMAT_VERSION, HEADER_DTYPE, HEADER_SIZE, NO_OFFSET, Kind
from timerwheel.store.segment import SEGMENT_HEADER_SIZE, encode_header, segment_name
from timerwheel.store.sidecar import write
from timerwheel.store.table import Rows, Table, rows_of
from timerwheel.wheel.geometry import DAY_MS

SEGMENT_BYTES = 128 << 20
STEP_RECORDS = 40_000
STEP_MS = 1_000
BODY = b"x" * 200
TOPICS = ("orders", "ticket", "remind", "letter")  # of equal length, so that records have one size
PENDING_DAYS = 30
LOG_ID = bytes(range(16))


def make_log(data: Path, records: int, now_ms: int, *, segments: int | None = None) -> int:
    """Write a log of about this many records into a new data directory; returns the number of pending timers.

    Without `segments`, they are as large as a service's are by default.

    Of 100 records, 75 schedule, 20 deliver and 5 recall: half of the records are pending timers. Those are
    due within 30 days from `now_ms`; the others were due a second after they were sent.
    """
    directory = data / "log"
    directory.mkdir(parents=True)
    step_records = STEP_RECORDS if segments is None else max(records // segments // 4 * 4, 4)
    steps = max(records // step_records, 1)
    story = _Story(now_ms - steps * STEP_MS, now_ms, step_records)
    segment_bytes = SEGMENT_BYTES if segments is None else SEGMENT_HEADER_SIZE + story.step_bytes
    base = 0
    while steps:
        offset = base + SEGMENT_HEADER_SIZE
        parts: list[Rows] = []
        with (directory / segment_name(base)).open("xb") as file:
            file.write(encode_header(base, LOG_ID, story.store_ms))
            while steps and offset - base + story.step_bytes <= segment_bytes:
                found, rows = story.step(offset)
                file.write(found)
                parts.append(rows)
                offset += len(found)
                steps -= 1
        if steps:
            name = segment_name(base).replace(".log", ".side")
            write(DiskFiles(), directory / name, Table(np.concatenate(parts), list(TOPICS)), base, offset)
        base = offset
    return story.pending


class _Story:
    """The timers of the last step that are still to be delivered or recalled."""

    def __init__(self, begin_ms: int, now_ms: int, step_records: int) -> None:
        self.store_ms = begin_ms
        self.pending = 0
        self._records = step_records
        self.step_bytes = step_records * (HEADER_SIZE + len(TOPICS[0]) + len(BODY) + _padding(BODY))
        self._now_ms = now_ms
        self._random = np.random.default_rng(17)
        self._due = np.zeros(0, HEADER_DTYPE)
        self._due_places = np.zeros(0, np.uint64)

    def step(self, offset: int) -> tuple[bytes, Rows]:
        """The records of one second of work from a log offset on, and their table."""
        over, places = self._due, self._due_places
        messages = len(over) * 4 // 5
        timers = self._timers(self._records - len(over))
        found: list[tuple[np.ndarray, bytes]] = [
            (timers, BODY),
            (self._ends(over[:messages], places[:messages], Kind.MESSAGE), BODY),
            (self._ends(over[messages:], places[messages:], Kind.CANCEL), b""),
        ]
        data, rows = [], []
        for headers, body in found:
            encoded = _encode(headers, body)
            places = offset + np.arange(len(headers), dtype=np.uint64) * np.uint64(encoded.shape[1])
            topics = headers["queue"].astype(np.uint32)
            rows.append(rows_of(headers, places, topics))
            data.append(encoded.tobytes())
            offset += encoded.size
        self._due, self._due_places = timers[: self._records // 4], rows[0]["offset"][: self._records // 4]
        self.pending += len(timers) - len(over)
        self.store_ms += STEP_MS
        return b"".join(data), np.concatenate(rows)

    def _timers(self, count: int) -> np.ndarray:
        headers = np.zeros(count, HEADER_DTYPE)
        headers["kind"] = Kind.TIMER
        headers["queue"] = np.arange(count) % len(TOPICS)
        headers["root"] = headers["origin"] = NO_OFFSET
        headers["store_ms"] = headers["enqueue_ms"] = self.store_ms
        headers["due_ms"] = self._now_ms + self._random.integers(0, PENDING_DAYS * DAY_MS, count)
        headers["due_ms"][: self._records // 4] = self.store_ms + STEP_MS
        return headers

    def _ends(self, timers: np.ndarray, places: np.ndarray, kind: Kind) -> np.ndarray:
        headers = timers.copy()
        headers["kind"] = kind
        headers["root_crc"] = timers["crc"]
        headers["root"] = headers["origin"] = places
        headers["store_ms"] = self.store_ms
        headers["prior_due_ms"] = timers["due_ms"]
        return headers


def _encode(headers: np.ndarray, body: bytes) -> np.ndarray:
    """Builds records as rows of bytes, with sizes and CRCs. The queue number is the index of the topic."""
    rest = np.zeros((len(headers), len(TOPICS[0]) + len(body) + _padding(body)), np.uint8)
    names = np.array([list(name.encode()) for name in TOPICS], np.uint8)
    rest[:, : names.shape[1]] = names[headers["queue"]]
    rest[:, names.shape[1] : names.shape[1] + len(body)] = np.frombuffer(body, np.uint8)
    headers["version"] = FORMAT_VERSION
    headers["size"] = size = HEADER_SIZE + rest.shape[1]
    headers["topic_len"] = names.shape[1]
    headers["body_len"] = len(body)
    whole = np.hstack([headers.view(np.uint8).reshape(len(headers), HEADER_SIZE), rest])
    flat = whole.reshape(-1).data
    headers["crc"] = [crc32(flat[at + 8 : at + size]) for at in range(0, whole.size, size)]
    whole[:, 4:8] = headers["crc"].astype("<u4").reshape(-1, 1).view(np.uint8)
    return whole


def _padding(body: bytes) -> int:
    return -(len(TOPICS[0]) + len(body)) & 7
