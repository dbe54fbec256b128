"""The audit's third side, Kafka: what the bridge took from there, and what it brought back.

    look     the outlet's committed positions, and the ends of the topics that it writes to      [driver]
    outlet   messages that the log delivered  <->  records of the target topics, by TIMER_ID     [executors]
    inlet    records of the inlet  <->  messages of the log, by their content                    [executors]

1. `look` comes before the logs are read: then whatever a target topic has up to its end is in the logs.
2. A message is owed to Kafka if its queue offset is in [where its topic begins to go out, the committed
   position). It must be in its topic once, or among the rejected records.
3. A record of the inlet before the log's position has one message of the same topic, key, headers and value,
   or one rejection that names its place. With a deduplication key, one message is enough for all records, and
   it may be any that the service takes for the same send, over HTTP too: of the same key and content hash.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import msgspec
import orjson
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from timerwheel.kafka import names
from timerwheel.kafka.envelope import Envelope, Header, UnreadableHeadersError, headers_of
from timerwheel.kafka.names import KafkaTopics, kafka_topic_of, topic_of
from timerwheel.kafka.translation import shown
from timerwheel.model.admission import DOMAIN_PROPERTY, ENVELOPE_PROPERTY, HASH_PROPERTY, KEY_PROPERTY
from timerwheel.spark_jobs.columns import arrow_schema
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.kafka_topics import Brokers, Row, Stretch, read_topics, stretches
from timerwheel.spark_jobs.logs import NodeLog
from timerwheel.state.config_table import ConfigTable
from timerwheel.state.dedup_key import content_hash, contents_in, digest_of

FINDINGS_MAX = 200
CALL_S = 10.0
_YES, _NO = True, False
_NEVER = (1 << 63) - 1
_TIMESTAMP_PLACE = 1  # in confluent-kafka's (kind, milliseconds)
_RECORDS = "topic string, partition int, id string, due_ms bigint, stamp_ms bigint"
_TAKEN = "partition int, position bigint, what string, digest string, keyed string"
_SENT = "digest string, keyed string, id string, place string"
_PUTS = "name string, key string, value string, node string, offset bigint"


class KafkaRule(StrEnum):
    """The rules between the logs and Kafka."""

    MISSING = "missing_in_kafka"
    TWICE = "twice_in_kafka"
    EARLY = "early_in_kafka"
    UNKNOWN = "unknown_in_kafka"
    NOT_TAKEN = "not_taken"
    TAKEN_TWICE = "taken_twice"


KAFKA_MEANING = {
    KafkaRule.MISSING: "a message went out, by the committed position, but is not in its Kafka topic",
    KafkaRule.TWICE: "a message is in its Kafka topic more than once",
    KafkaRule.EARLY: "a message has a time in Kafka before its due time",
    KafkaRule.UNKNOWN: "a Kafka topic has a message that no log delivered",
    KafkaRule.NOT_TAKEN: "a record of the inlet has neither a message nor a rejection",
    KafkaRule.TAKEN_TWICE: "the log has more messages with this content than the inlet has records",
}


class KafkaFinding(msgspec.Struct, frozen=True):
    """One breach of a rule: of a message, or of a record of the inlet at `topic/partition@offset`."""

    rule: KafkaRule
    topic: str
    what: str
    due_ms: int | None
    count: int


class OutletAudit(msgspec.Struct, frozen=True):
    """One Kafka topic. `owed` = `found` + `deleted` + missing.

    `behind` were delivered by the log and are not owed yet. `deleted` are older than what the topic keeps.
    `others` are records that did not come from the bridge, `dropped` ones whose messages the logs dropped.
    """

    topic: str
    owed: int
    found: int
    deleted: int
    behind: int
    others: int
    dropped: int


class InletAudit(msgspec.Struct, frozen=True):
    """The inlet: its committed records before the log's position, and what became of them.

    `unchecked` are those that were taken before the kept part of the log begins.
    """

    topic: str
    records: int
    messages: int
    recalls: int
    rejected: int
    unchecked: int


class KafkaAudit(msgspec.Struct, frozen=True):
    """The result."""

    outlets: list[OutletAudit]
    inlet: InletAudit | None
    rules: dict[str, int]
    findings: list[KafkaFinding]

    @property
    def balanced(self) -> bool:
        """Whether no rule is broken."""
        return not self.rules


class KafkaView(NamedTuple):
    """What there is in Kafka: the outlet's next offsets by node, topic and queue; and the targets' ends."""

    brokers: Brokers
    topics: KafkaTopics
    positions: Mapping[str, Mapping[str, Mapping[int, int]]]
    targets: Sequence[Stretch]


def has_bridge(brokers: Brokers, inlet: str) -> bool:
    """Whether a service has brought anything to Kafka for this inlet. JobError if it cannot be reached."""
    from confluent_kafka import KafkaException  # noqa: PLC0415 - only with the extra

    from timerwheel.kafka.clients import error_text  # noqa: PLC0415 - as above
    from timerwheel.kafka.cluster import Cluster  # noqa: PLC0415 - as above

    topics = KafkaTopics(inlet)
    try:
        with Cluster(brokers.servers, brokers.properties, topics).admin() as admin:
            return topics.positions in admin.list_topics(timeout=CALL_S).topics
    except KafkaException as error:
        raise JobError(f"Kafka at {brokers.servers}: {error_text(error)}") from None


def look(brokers: Brokers, inlet: str, logs: Sequence[NodeLog]) -> KafkaView:
    """Look at Kafka before the logs are read. JobError if it cannot be reached, or has no bridge's topics."""
    from confluent_kafka import KafkaException  # noqa: PLC0415 - only with the extra

    from timerwheel.kafka import positions  # noqa: PLC0415 - as above
    from timerwheel.kafka.clients import error_text  # noqa: PLC0415 - as above
    from timerwheel.kafka.cluster import BridgeError, Cluster  # noqa: PLC0415 - as above
    from timerwheel.kafka.front import service_name  # noqa: PLC0415 - as above

    topics = KafkaTopics(inlet)
    try:
        with Cluster(brokers.servers, brokers.properties, topics).admin() as admin:
            known = admin.list_topics(timeout=CALL_S).topics
        if topics.positions not in known:
            raise JobError(
                f"there is no Kafka topic {topics.positions} at {brokers.servers}: no service has sent "
                "anything there; --kafka-inlet names the topic that the service takes records from"
            )
        found: dict[str, dict[str, dict[int, int]]] = {}
        for log in logs:
            cluster = Cluster(brokers.servers, brokers.properties, topics, service_name(log.log_id))
            found[log.node] = positions.read(cluster).whole
        targets = {kafka_topic_of(topic) for offsets in found.values() for topic in offsets}
        targets.add(topics.rejected)
        parts: list[Stretch] = []
        for topic in sorted(targets & known.keys()):
            parts += _parts(brokers, topic, known[topic].partitions)
    except KafkaException as error:
        raise JobError(f"Kafka at {brokers.servers}: {error_text(error)}") from None
    except BridgeError as error:
        raise JobError(str(error)) from None
    return KafkaView(brokers, topics, found, parts)


def _parts(brokers: Brokers, topic: str, partitions: Iterable[int]) -> Iterator[Stretch]:
    for partition, (first, end) in _bounds(brokers, topic, partitions).items():
        yield from stretches(topic, partition, first, end)


def _bounds(brokers: Brokers, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
    """The offsets [first, end) of partitions; `end` is behind open transactions too."""
    from confluent_kafka import TopicPartition  # noqa: PLC0415 - only with the extra

    reader = brokers.consumer()
    try:
        return {
            number: reader.get_watermark_offsets(TopicPartition(topic, number), timeout=CALL_S)
            for number in partitions
        }
    finally:
        reader.close()


def audit_kafka(
    spark: SparkSession, view: KafkaView, logs: Sequence[NodeLog], *, salvage: bool = False
) -> KafkaAudit:
    """Compare the logs with what `view` saw. Raises JobError, and the errors of Spark."""
    settings = _settings(spark, logs)
    findings: list[KafkaFinding] = []
    rules: dict[str, int] = {}
    outlets = _Outlets(spark, view, logs, settings).audit(rules, findings, salvage=salvage)
    inlet = _Inlet(spark, view, logs, settings).audit(rules, findings)
    return KafkaAudit(outlets, inlet, rules, findings[:FINDINGS_MAX])


# ---------------------------------------------------------------------- the bridge's settings in the logs


class _Setting(NamedTuple):
    """The last value of a setting, and the first one that the kept log has, with its place."""

    last: Any
    first: Any
    first_offset: int


class _Settings(NamedTuple):
    """The topics that go out with their first offsets, and the inlet's next offsets; by node and key."""

    outlets: dict[tuple[str, str], _Setting]
    inlets: dict[tuple[str, str], _Setting]


def _settings(spark: SparkSession, logs: Sequence[NodeLog]) -> _Settings:
    """The bridge's settings; a task returns the first and the last value of each key that it meets."""
    urls = ",".join(log.url for log in logs)
    records = (
        spark.read.format("commitlog")
        .option("paths", urls)
        .schema("node string, offset bigint, kind string, body binary")
        .load()
        .where("kind = 'control'")
    )
    found = _Settings({}, {})
    for row in sorted(records.mapInArrow(_ends_of_puts, _PUTS).collect(), key=lambda row: row.offset):
        table = found.outlets if row.name == ConfigTable.KAFKA_OUTLET else found.inlets
        value, key = orjson.loads(row.value), (row.node, row.key)
        known = table.get(key, _Setting(value, value, row.offset))
        table[key] = known._replace(last=value)
    return found


def _ends_of_puts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    wanted = {str(ConfigTable.KAFKA_INLET), str(ConfigTable.KAFKA_OUTLET)}
    first: dict[tuple[str, str, str], tuple[int, str]] = {}
    last: dict[tuple[str, str, str], tuple[int, str]] = {}
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("node", "offset", "body"))
        for node, offset, body in zip(*columns, strict=True):
            for put in orjson.loads(body):
                if put["table"] in wanted:
                    key = (node, put["table"], put["key"])
                    value = (offset, orjson.dumps(put["value"]).decode())
                    first.setdefault(key, value)
                    last[key] = value
    rows = [
        {"name": key[1], "key": key[2], "value": value, "node": key[0], "offset": offset}
        for ends in (first, last)
        for key, (offset, value) in ends.items()
    ]
    if rows:
        yield pa.RecordBatch.from_pylist(rows, arrow_schema(_PUTS))


class _Sides(NamedTuple):
    """What is compared: the logs with what was seen in Kafka."""

    spark: SparkSession
    view: KafkaView
    logs: Sequence[NodeLog]
    settings: _Settings


@contextmanager
def _cached(frame: DataFrame) -> Iterator[DataFrame]:
    try:
        yield frame.cache()
    finally:
        frame.unpersist()


# ---------------------------------------------------------------------- what went out


class _Outlets(_Sides):
    """Compares what the logs delivered with the target topics."""

    def audit(
        self, rules: dict[str, int], findings: list[KafkaFinding], *, salvage: bool
    ) -> list[OutletAudit]:
        row = partial(_sent_row, rejected=self.view.topics.rejected)
        found = read_topics(self.spark, self.view.brokers, self.view.targets, row, _RECORDS)
        with _cached(found) as records, _cached(self._joined(records, salvage=salvage)) as joined:
            self._find(joined, rules, findings)
            return self._sums(joined, records)

    def _joined(self, records: DataFrame, *, salvage: bool) -> DataFrame:
        """A row for each message of a topic: whether it is owed, how often it is in Kafka, since when."""
        owed = self._delivered(salvage=salvage)
        got = (
            records.where("id is not null")
            .groupBy("topic", "id")
            .agg(f.count("*").alias("count"), f.min("stamp_ms").alias("stamp_ms"))
        )
        kept = self._kept(records)
        begins = max(log.begin for log in self.logs)
        root = f.conv(f.substring("id", 1, 16), 16, 10).cast("bigint")
        joined = owed.join(got, ["topic", "id"], "full_outer").join(f.broadcast(kept), "topic", "left")
        gone = f.col("kept_ms").isNotNull() & (f.col("delivered_ms") < f.col("kept_ms"))
        is_id = f.col("id").rlike("^[0-9a-f]{24}$")
        rule = (
            f.when(f.col("owed") & f.col("count").isNull() & ~gone, KafkaRule.MISSING)
            .when(f.col("count") > 1, KafkaRule.TWICE)
            .when(f.col("owed").isNull() & (~is_id | (root >= begins)), KafkaRule.UNKNOWN)
            .when(f.col("stamp_ms") < f.col("due_ms"), KafkaRule.EARLY)
        )
        return joined.withColumn("rule", rule).withColumn("gone", gone)

    def _delivered(self, *, salvage: bool) -> DataFrame:
        """What the logs delivered to topics that go out, and whether it is owed to Kafka.

        Of a topic that went out before, nothing is; of one that does again, what it has since then.
        """
        bounds = [
            (log.node, topic, queue, *((_NEVER, _NEVER) if starts is None else (starts.get(queue, 0), until)))
            for log in self.logs
            for topic, reached in self.view.positions[log.node].items()
            for starts in (self._starts(log.node, topic),)
            for queue, until in reached.items()
        ]
        schema = "node string, topic string, queue int, begins bigint, until bigint"
        limits = self.spark.createDataFrame(bounds, schema)
        topics = sorted({topic for _, topic, *_ in bounds})
        names_of = self.spark.createDataFrame(
            [(topic, kafka_topic_of(topic)) for topic in topics], "topic string, kafka_topic string"
        )
        if not bounds:
            empty = (
                "topic string, id string, owed boolean, behind boolean, due_ms bigint, delivered_ms bigint"
            )
            return self.spark.createDataFrame([], empty)
        rows = (
            self.spark.read.format("timerwheel.delivered")
            .option("paths", ",".join(log.url for log in self.logs))
            .option("topic", ",".join(topics))
            .option("failOnDataLoss", str(not salvage).lower())
            .option("columns", "node,topic,queue,offset,id,due_ms,delivered_ms")
            .load()
        )
        within = (f.col("offset") >= f.col("begins")) & (f.col("offset") < f.col("until"))
        return (
            rows.join(f.broadcast(limits), ["node", "topic", "queue"], "left")
            .join(f.broadcast(names_of), "topic")
            .select(
                f.col("kafka_topic").alias("topic"),
                "id",
                f.coalesce(within, f.lit(_NO)).alias("owed"),
                f.coalesce(f.col("offset") >= f.col("until"), f.lit(_YES)).alias("behind"),
                "due_ms",
                "delivered_ms",
            )
        )

    def _starts(self, node: str, topic: str) -> dict[int, int] | None:
        """From where the queues of a topic go out; None if it does not any more."""
        setting = self.settings.outlets.get((node, topic))
        if setting is None:
            return {}
        starts = setting.last
        return None if starts is None else {int(queue): offset for queue, offset in starts.items()}

    def _kept(self, records: DataFrame) -> DataFrame:
        """From when on a topic has all records, if Kafka has deleted some."""
        cut = {part.topic for part in self.view.targets if part.first > 0}
        first = records.where(f.col("topic").isin(sorted(cut))).groupBy("topic", "partition")
        oldest = first.agg(f.min("stamp_ms").alias("stamp_ms")).groupBy("topic")
        return oldest.agg(f.max("stamp_ms").alias("kept_ms"))

    @staticmethod
    def _find(joined: DataFrame, rules: dict[str, int], findings: list[KafkaFinding]) -> None:
        broken = joined.where("rule is not null")
        for row in broken.groupBy("rule").count().collect():
            rules[row["rule"]] = row["count"]
        if rules:
            for row in broken.orderBy("topic", "id").limit(FINDINGS_MAX).collect():
                rule = KafkaRule(row.rule)
                findings.append(KafkaFinding(rule, row.topic, row.id, row.due_ms, row["count"] or 0))

    @staticmethod
    def _sums(joined: DataFrame, records: DataFrame) -> list[OutletAudit]:
        def many(condition: Column) -> Column:
            return f.count(f.when(condition, 1))

        owed, found = f.col("owed"), f.col("count").isNotNull()
        sums = joined.groupBy("topic").agg(
            many(owed).alias("owed"),
            many(owed & found).alias("found"),
            many(owed & ~found & f.col("gone")).alias("deleted"),
            many(f.col("behind") & ~found).alias("behind"),
            many(owed.isNull() & f.col("rule").isNull()).alias("dropped"),
        )
        others = records.where("id is null").groupBy("topic").agg(f.count("*").alias("others"))
        rows = sums.join(others, "topic", "full_outer").na.fill(0).orderBy("topic").collect()
        return [
            OutletAudit(row.topic, row.owed, row.found, row.deleted, row.behind, row.others, row.dropped)
            for row in rows
        ]


def _headers(message: Any) -> list[Header]:  # noqa: ANN401 - confluent-kafka's
    """Headers; none if they cannot be read, as the inlet has it, which refuses such a record."""
    try:
        return headers_of(message)
    except UnreadableHeadersError:
        return []


def _by_name(headers: Iterable[Header]) -> dict[str, bytes]:
    """Headers by name; the last of a name counts."""
    return {name: value or b"" for name, value in headers}


def _sent_row(message: Any, rejected: str) -> Row:  # noqa: ANN401 - confluent-kafka's
    """A record of a target topic. What a target refused counts for that target."""
    headers = _by_name(_headers(message))
    topic, stamp_ms = message.topic(), message.timestamp()[_TIMESTAMP_PLACE]
    message_id = headers.get(names.ID)
    if message_id is None:
        return (topic, message.partition(), None, None, stamp_ms)
    if topic == rejected and names.FROM not in headers and names.REJECTED in headers:
        topic = headers.get(names.TOPIC, b"").decode(errors="replace")
    due = headers.get(names.DUE_MS, b"")
    return (
        topic,
        message.partition(),
        message_id.decode(errors="replace"),
        int(due) if due.isdigit() else None,
        stamp_ms,
    )


# ---------------------------------------------------------------------- what came in


class _Inlet(_Sides):
    """Compares the inlet with the messages that the logs have from it."""

    def audit(self, rules: dict[str, int], findings: list[KafkaFinding]) -> InletAudit | None:
        """None if no log has taken from the topic as it is now."""
        inlet = self.view.topics.inlet
        bounds = self._bounds()
        if not bounds:
            return None
        parts = [
            part
            for partition, (first, _, end) in bounds.items()
            for part in stretches(inlet, partition, first, end)
        ]
        checked = {partition: begin for partition, (_, begin, _) in bounds.items()}
        is_whole = not any(first for first, *_ in bounds.values())
        row = partial(_taken_row, checked=checked)
        found = read_topics(self.spark, self.view.brokers, parts, row, _TAKEN)
        with _cached(found) as taken, _cached(self._sent()) as sent:
            return self._compare(taken, sent, rules, findings, is_whole=is_whole)

    def _bounds(self) -> dict[int, tuple[int, int, int]]:
        """The first offset in Kafka of each partition, the first to check, and the next one of the log."""
        from timerwheel.kafka.cluster import Cluster  # noqa: PLC0415 - needs confluent-kafka

        brokers, inlet = self.view.brokers, self.view.topics.inlet
        cluster = Cluster(brokers.servers, brokers.properties, self.view.topics)
        with cluster.admin() as admin:
            topic_id, count = cluster.inlet_id(admin)
        settings = {
            int(key.rpartition("/")[2]): (node, setting)
            for (node, key), setting in self.settings.inlets.items()
            if key.rpartition("/")[0] == topic_id
        }
        whole = {log.node for log in self.logs if log.start is None or log.start.offset == 0}
        watermarks = _bounds(brokers, inlet, range(count))
        found = {}
        for partition, (node, setting) in settings.items():
            first = watermarks[partition][0]
            begin = first if node in whole else max(first, setting.first)
            found[partition] = (first, begin, max(first, setting.last))
        return found

    def _sent(self) -> DataFrame:
        """A row for each message of the logs that came from the inlet, and for each rejection."""
        records = (
            self.spark.read.format("commitlog")
            .option("paths", ",".join(log.url for log in self.logs))
            .schema("kind string, topic string, id string, properties string, body binary")
            .load()
            .where("kind in ('timer', 'message')")
        )
        rejected = topic_of(self.view.topics.rejected)
        return records.mapInArrow(partial(_digests, rejected=rejected), _SENT).distinct()

    def _compare(
        self,
        taken: DataFrame,
        sent: DataFrame,
        rules: dict[str, int],
        findings: list[KafkaFinding],
        *,
        is_whole: bool,
    ) -> InletAudit:
        inlet = self.view.topics.inlet
        places = sent.where("place is not null").groupBy("place").agg(f.count("*").alias("rejections"))
        place = f.concat(f.lit(f"{inlet}/"), f.col("partition"), f.lit("@"), f.col("position"))
        joined = taken.withColumn("place", place).join(places, "place", "left").na.fill(0, ["rejections"])
        with _cached(joined) as rows:
            kinds = rows.groupBy("what").agg(
                f.count("*").alias("all"),
                f.count(f.when(f.col("rejections") > 0, 1)).alias("rejected"),
                f.count(f.when(f.col("rejections") > 1, 1)).alias("twice"),
            )
            counted = {row.what: (row["all"], row.rejected, row.twice) for row in kinds.collect()}
            sums = {what: every - rejected for what, (every, rejected, _) in counted.items()}
            twice = sum(one for *_, one in counted.values())
            illegal = sums.get("illegal", 0)
            plain = rows.where("what in ('message', 'unchecked') and rejections = 0")
            missing, more = self._contents(plain, sent, findings, is_whole=is_whole)
            broken = {KafkaRule.NOT_TAKEN: missing + illegal, KafkaRule.TAKEN_TWICE: more + twice}
            rules.update({str(rule): count for rule, count in broken.items() if count})
            if illegal or twice:
                self._note(rows, findings)
            return InletAudit(
                inlet,
                records=sum(every for every, *_ in counted.values()),
                messages=sums.get("message", 0),
                recalls=sums.get("recall", 0),
                rejected=sum(rejected for _, rejected, _ in counted.values()),
                unchecked=sums.get("unchecked", 0),
            )

    def _contents(
        self, rows: DataFrame, sent: DataFrame, findings: list[KafkaFinding], *, is_whole: bool
    ) -> tuple[int, int]:
        """How many records of the inlet have no message, and how many messages have no record.

        What Kafka has deleted may stand behind more messages than the records that are left: unless the inlet
        `is_whole`, none counts as too many.
        """
        same = sent.where("keyed is not null").groupBy("keyed").agg(f.lit(1).alias("same"))
        wanted = (
            rows.join(same, "keyed", "left")
            .groupBy("digest")
            .agg(
                f.count(f.when(f.col("what") == "message", 1)).alias("wanted"),
                f.count("*").alias("most"),
                f.max("keyed").isNotNull().alias("keyed"),
                f.max("same").alias("same"),
                f.min("place").alias("place"),
            )
        )
        got = sent.where("digest is not null").groupBy("digest").agg(f.count("*").alias("got"))
        both = wanted.join(got, "digest", "left").na.fill(0, ["got"])
        least = f.when(f.col("keyed") & (f.col("wanted") > 0), 1).otherwise(f.col("wanted"))
        got_it = f.greatest(f.col("got"), f.coalesce(f.when(f.col("keyed"), f.col("same")), f.lit(0)))
        both = both.withColumn("missing", f.greatest(least - got_it, f.lit(0)))
        more = f.greatest(f.col("got") - f.col("most"), f.lit(0)) if is_whole else f.lit(0)
        both = both.withColumn("more", more)
        broken = both.where("missing > 0 or more > 0")
        sums = broken.agg(f.sum("missing").alias("missing"), f.sum("more").alias("more")).first()
        for row in broken.orderBy("place").limit(FINDINGS_MAX).collect():
            rule = KafkaRule.NOT_TAKEN if row.missing else KafkaRule.TAKEN_TWICE
            findings.append(
                KafkaFinding(rule, self.view.topics.inlet, row.place, None, row.missing or row.more)
            )
        return (0, 0) if sums is None else (sums.missing or 0, sums.more or 0)

    def _note(self, rows: DataFrame, findings: list[KafkaFinding]) -> None:
        broken = rows.where("(what = 'illegal' and rejections = 0) or rejections > 1")
        for row in broken.orderBy("place").limit(FINDINGS_MAX).collect():
            rule = KafkaRule.TAKEN_TWICE if row.rejections else KafkaRule.NOT_TAKEN
            findings.append(KafkaFinding(rule, self.view.topics.inlet, row.place, None, row.rejections))


def _taken_row(message: Any, checked: Mapping[int, int]) -> Row:  # noqa: ANN401 - confluent-kafka's
    """A record of the inlet: what it asks for, as far as that shows without the service's rules."""
    read = _headers(message)
    own = _by_name(read)
    partition, offset = message.partition(), message.offset()
    target, name, value = own.get(names.TOPIC), own.get(names.KEY), message.value() or b""
    if own.get(names.RECALL, b"").lower() == b"true":
        return (partition, offset, "recall", None, None)
    if target is None:
        return (partition, offset, "illegal", None, None)
    headers = [header for header in read if header[0] not in names.OWN_HEADERS]
    envelope = Envelope(message.key(), headers, message.value() is None).encode()
    topic = topic_of(target.decode(errors="replace"))
    digest, keyed = _digest(topic, name or b"", envelope, value), None
    if name is not None:
        delays = {each: own[each].decode(errors="replace") for each in names.DELAYS if each in own}
        keyed = _keyed(topic, name, content_hash(value, shown(message.key(), headers) | delays))
    return (partition, offset, "message" if offset >= checked[partition] else "unchecked", digest, keyed)


def _digests(batches: Iterable[pa.RecordBatch], rejected: str) -> Iterator[pa.RecordBatch]:
    """Yields the digest of each record that came from Kafka, or the place it was rejected for.

    For one with a deduplication key, from whatever client, also what says which sends count as the same.
    """
    for batch in batches:
        rows: list[Row] = []
        columns = (batch.column(name).to_pylist() for name in ("topic", "id", "properties", "body"))
        for topic, message_id, text, body in zip(*columns, strict=True):
            properties = orjson.loads(text) if text else {}
            envelope, key = properties.get(ENVELOPE_PROPERTY, ""), properties.get(KEY_PROPERTY, "").encode()
            is_from_kafka = Envelope.decode(envelope) is not None
            if is_from_kafka and topic == rejected:
                rows.append((None, None, message_id, properties.get(names.FROM)))
            elif is_from_kafka or (HASH_PROPERTY in properties and DOMAIN_PROPERTY not in properties):
                digest = _digest(topic, key, envelope, body) if is_from_kafka else None
                keyed = _keyed(topic, key, contents_in(properties)[0]) if key else None
                rows.append((digest, keyed, message_id, None))
        if rows:
            schema = arrow_schema(_SENT)
            columns_of = [pa.array(values, pa.string()) for values in zip(*rows, strict=True)]
            yield pa.record_batch(columns_of, schema=schema)


def _keyed(topic: str, key: bytes, content: bytes) -> str:
    """What is the same for two sends exactly if the service takes the later one for a repeat."""
    return digest_of(topic, key.decode(errors="replace")).hex() + content.hex()


def _digest(topic: str, key: bytes, envelope: str, body: bytes) -> str:
    content = hashlib.blake2b(digest_size=16)
    for part in (topic.encode(), key, envelope.encode()):
        content.update(len(part).to_bytes(4, "big") + part)
    content.update(body)
    return content.hexdigest()
