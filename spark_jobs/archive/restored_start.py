"""The start of a restored log: the latest settings, and the next offset of each queue."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from timerwheel.model.admission import DEAD_PREFIX
from timerwheel.spark_jobs.archive.manifest import ArchivedSegment, Manifest
from timerwheel.spark_jobs.archive.part import Part, batches_of, each_chunk
from timerwheel.state.config_table import CONTROL_TOPIC, EVENTS, ConfigTable, Put, TopicEnd
from timerwheel.state.groups import SEPARATOR, DeadLetters
from timerwheel.state.log_manifest import LogStart
from timerwheel.state.memtable import SettingsDump

RESTORED_GAP_MESSAGES = 1 << 36
_Queue = tuple[str, int]
_NOT_RESTORED = EVENTS | {ConfigTable.LEASES}  # a restored log has other queue offsets than those of leases


def last_puts(spark: SparkSession, part: Part) -> list[Put]:
    """The last value of every setting, in the order in which they were first put."""
    since = [segment.beginning for segment in part.segments if segment.beginning is not None]
    settings_until = since[-1].settings_until if since else 0
    archive = part.archive

    def read(_number: int, manifest: Manifest) -> Iterator[pa.RecordBatch]:
        for file in manifest.files:
            for batch in batches_of(archive, manifest, file, ("offset", "body"), topic=CONTROL_TOPIC):
                yield _puts_of(batch, settings_until)

    rows = each_chunk(spark, part, read, "setting string, place bigint, number int, value binary")
    order = F.struct("place", "number")
    last = rows.groupBy("setting").agg(
        F.min(order).alias("first"), F.max_by(F.col("value"), order).alias("value")
    )
    found: dict[str, Put] = {}
    for put in since[-1].settings if since else ():
        if put.table not in _NOT_RESTORED:
            found[_name_of(put)] = put
    for row in sorted(last.collect(), key=lambda row: row.first):
        found[row.setting] = msgspec.json.decode(bytes(row.value), type=Put)
    return [put for put in found.values() if put.value is not None]


def _puts_of(batch: pa.RecordBatch, settings_until: int) -> pa.RecordBatch:
    """The changes in CONTROL records from an offset on; there are few settings."""
    settings, places, numbers, values = [], [], [], []
    for offset, body in zip(batch["offset"].to_pylist(), batch["body"].to_pylist(), strict=True):
        if offset < settings_until:
            continue
        for number, put in enumerate(msgspec.json.decode(body, type=list[Put])):
            if put.table not in _NOT_RESTORED:
                settings.append(_name_of(put))
                places.append(offset)
                numbers.append(number)
                values.append(msgspec.json.encode(put))
    return pa.record_batch(
        {
            "setting": pa.array(settings, pa.string()),
            "place": pa.array(places, pa.int64()),
            "number": pa.array(numbers, pa.int32()),
            "value": pa.array(values, pa.binary()),
        }
    )


def _name_of(put: Put) -> str:
    return msgspec.json.encode([put.table, put.key]).decode()


def log_start(segments: Sequence[ArchivedSegment], puts: Sequence[Put], base: int) -> LogStart:
    """The manifest `start` of a restored log: queues continue after a gap, groups hold nothing."""
    queues: defaultdict[tuple[str, int], int] = defaultdict(int)
    for segment in segments:
        for topic, queue, first in segment.beginning.queues if segment.beginning is not None else ():
            queues[topic, queue] = max(queues[topic, queue], first)
        for topic, queue, visible in segment.queues:
            queues[topic, queue] += visible
    firsts = {place: count + RESTORED_GAP_MESSAGES for place, count in queues.items()}
    cursors: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (topic, queue), first in firsts.items():
        cursors[topic][str(queue)] = first
    groups = {
        put.key: [cursors.get(put.key.partition(SEPARATOR)[0], {}), [], base]
        for put in puts
        if put.table == ConfigTable.GROUP
    }
    dead = {
        topic: DeadLetters(first)
        for (topic, queue), first in firsts.items()
        if topic.startswith(DEAD_PREFIX) and queue == 0
    }
    settings = [put for one in puts if (put := _restored(one, queues, firsts)) is not None]
    return LogStart(
        base,
        [(topic, queue, first) for (topic, queue), first in sorted(firsts.items())],
        base,
        SettingsDump(settings, groups, dead),
    )


def _restored(put: Put, queues: Mapping[_Queue, int], firsts: Mapping[_Queue, int]) -> Put | None:
    """Return a setting as the restored log has it: a topic that was not used since its end stays deleted."""
    if put.table != ConfigTable.TOPIC_END:
        return put
    end = msgspec.convert(put.value, TopicEnd, strict=False)
    own = {queue: first for (topic, queue), first in firsts.items() if topic == put.key}
    if any(queues[put.key, queue] > end.queues.get(queue, 0) for queue in own):
        return None
    return Put(put.table, put.key, msgspec.to_builtins(TopicEnd(end.at_ms, end.until, own), str_keys=True))
