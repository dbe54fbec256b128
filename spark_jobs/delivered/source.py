"""`timerwheel.delivered`: a Spark data source of the messages that consumers can read.

It reads commit logs, archives or both, and no service. `doc/spark.md` describes options and guarantees.

    spark.read.format("timerwheel.delivered").option("topic", "orders").load("/srv/timerwheel/node-*")
    spark.readStream.format("timerwheel.delivered").option("archive", "s3://bucket/timers").load("/srv/node-1")
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from timerwheel.spark_jobs.conditions import Condition, conditions_of, may_hold
from timerwheel.spark_jobs.delivered.nodes import Node, find_nodes
from timerwheel.spark_jobs.delivered.options import EARLIEST, LATEST, Options, columns_of, read_options
from timerwheel.spark_jobs.delivered.position import DataLossError, Position
from timerwheel.spark_jobs.delivered.rows import (
    COLUMNS,
    IN_TABLES,
    Ranges,
    Selection,
    Stretch,
    StretchReader,
)
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.source_options import check_schema

logger = logging.getLogger("timerwheel")

NAME = "timerwheel.delivered"
_FILTERED = {name: str if COLUMNS[name] == "string" else int for name in ("node", "offset", *IN_TABLES)}


class DeliveredSource(DataSource):
    """The Spark data source `timerwheel.delivered`; the module docstring describes it."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> str:
        """The columns that the options select."""
        given = {name.lower(): value for name, value in self.options.items()}
        return ", ".join(f"{name} {COLUMNS[name]}" for name in columns_of(given))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch."""
        return DeliveredReader(read_options(self.options, stream=False), arrow_schema_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """The reader of a stream. JobError if this PySpark cannot limit or resume one."""
        options = read_options(self.options, stream=True)
        try:
            from timerwheel.spark_jobs.delivered.stream import DeliveredStreamReader  # noqa: PLC0415
        except ImportError:
            raise JobError(f"a stream of {NAME} needs PySpark 4.2 or later") from None
        return DeliveredStreamReader(options, arrow_schema_of(schema))


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark wants for these columns; JobError for one that the source does not have."""
    check_schema(schema, COLUMNS)
    return to_arrow_schema(schema)


class DeliveredPartition(InputPartition):
    """One stretch."""

    def __init__(self, stretch: Stretch) -> None:
        super().__init__(stretch)


class DeliveredReader(DataSourceReader):
    """Plans a batch on the driver and reads it in executors."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's
        """Note those that spare reading; Spark applies all of them again."""
        self._conditions = conditions_of(filters, _FILTERED)
        return filters

    @property
    def _selection(self) -> Selection:
        return Selection(self._options.topics, tuple(self._conditions), self._options.ranges)

    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each segment, or chunk of the archive, that has wanted messages."""
        selection = self._selection
        start, end = self._options.start, self._options.end
        known = {**(start if isinstance(start, dict) else {}), **(end if isinstance(end, dict) else {})}
        nodes = find_nodes(self._options, selection, known, {})
        for name in sorted(known.keys() - nodes.keys()):
            self._lose(name, nodes)
        if not nodes and not known:
            raise JobError(f"{', '.join(self._options.paths)}: no log has a segment yet")
        found: list[InputPartition] = []
        for node in nodes.values():
            if may_hold(self._conditions, {"node": node.name}):
                found += map(DeliveredPartition, self._stretches(node, selection))
        return found

    def _lose(self, name: str, nodes: Mapping[str, Node]) -> None:
        text = f"{name} has an offset, and is not among the logs: {', '.join(nodes) or 'none'}"
        if not self._options.skip:
            raise DataLossError(f"{text}. failOnDataLoss=false goes on without it")
        logger.warning("%s", text)

    def _stretches(self, node: Node, selection: Selection) -> Iterator[Stretch]:
        """Without a position that has to be counted, nothing is read here."""
        options = self._options
        bounded = (options.start, options.end) != (EARLIEST, LATEST)
        if "offset" not in self._schema.names and not selection.needs_offsets and not bounded:
            yield from node.stretches_from(node.at(EARLIEST).at)
            return
        start = node.at(options.start)
        if options.start == EARLIEST and options.ranges is not None and not options.skip:
            _check_ranges(node.name, selection, options.ranges, start)
        yield from node.stretches(start, node.at(options.end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one stretch."""
        if partition.value is None:  # Spark's own: nothing is wanted
            return iter(())
        reader = StretchReader(self._selection, self._schema, self._options.archive, self._options.skip)
        return reader.read(partition.value)


def _check_ranges(node: str, selection: Selection, ranges: Ranges, start: Position) -> None:
    """Raise DataLossError if a queue begins behind the offset that is asked for by `from`."""
    for (topic, queue), first in start.numbers.items():
        low = ranges.of(topic, queue)[0]
        if ranges.low and low < first and selection.wants(topic):
            raise DataLossError(
                f"{node}: queue {queue} of {topic} begins at offset {first}, and not at {low}: retention has "
                "removed what was before. failOnDataLoss=false goes on without it"
            )
