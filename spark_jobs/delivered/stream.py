"""The stream of `timerwheel.delivered`: the offsets of a micro-batch, and the same tasks for the same ones.

1. The initial offset names no node. The first micro-batch has no rows and gives each node its position, and
   so does the one that finds a new node: Spark's checkpoint has every position that rows were read from.
   Spark asks for the initial offset again if a query stops in its first micro-batch, when `latest`, or what
   retention has left, may be somewhere else.
2. Between two offsets nothing is remembered here but counts, which are read again if they are missing.
3. A query that ends by itself has read each log that has a position up to where it ended when the query
   began, also one that only the archive still has.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from timerwheel.spark_jobs.delivered.nodes import Counts, Limit, Node, find_nodes
from timerwheel.spark_jobs.delivered.options import EARLIEST, Options
from timerwheel.spark_jobs.delivered.position import DataLossError, Position, document, nodes_of
from timerwheel.spark_jobs.delivered.rows import Selection, Stretch, StretchReader
from timerwheel.spark_jobs.segments import SegmentGoneError

logger = logging.getLogger("timerwheel")

LOOKS_MAX = 3  # retention may remove a segment between two looks at a log
_Found = TypeVar("_Found")


class StretchPartition(InputPartition):
    """One stretch."""

    def __init__(self, stretch: Stretch) -> None:
        super().__init__(stretch)


class DeliveredStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver and reads them in executors."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._selection = Selection(options.topics)
        self._counts: Counts = {}
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """No node yet."""
        return document({})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """What the options allow for a micro-batch."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Note where each log ends now: this query goes no further, and takes no other node.

        Logs of which only the archive has something are not known before the positions are: see `_aim`.
        """
        self._target = _look_again(
            lambda: {node.digest: node.end_bound() for node in self._nodes(None).values()}
        )

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's
        """The offset behind what can be read now, within the limit."""
        known = nodes_of(start, "the offset in the checkpoint")
        return document(_look_again(lambda: self._advanced(known, limit)))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The stretches between two offsets; a node that only `end` has begins there."""
        first, last = nodes_of(start, "the start offset"), nodes_of(end, "the end offset")
        return _look_again(lambda: self._planned(first, last))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one stretch."""
        reader = StretchReader(self._selection, self._schema, self._options.archive, self._options.skip)
        return reader.read(partition.value)

    def _nodes(self, known: Mapping[str, Position] | None) -> dict[str, Node]:
        return find_nodes(self._options, self._selection, known, self._counts)

    def _advanced(self, known: Mapping[str, Position], limit: ReadLimit) -> dict[str, Position]:
        place = self._options.start if not known else EARLIEST
        named = place if isinstance(place, dict) else known
        nodes = self._nodes(named)
        for name in sorted(named.keys() - nodes.keys()):
            self._lose(name, nodes)
        self._aim({name: node for name, node in nodes.items() if name in named})
        found = dict(known)
        for name, node in nodes.items():
            if name not in known and (self._target is None or node.digest in self._target):
                found[name] = node.at(place)
        going = {name: node for name, node in nodes.items() if name in known}
        if isinstance(limit, ReadMaxRows | ReadMaxBytes):
            return found | self._advanced_within(going, known, limit)
        return found | {
            name: node.advance(known[name], Limit(self._until(node)))[0] for name, node in going.items()
        }

    def _advanced_within(
        self, nodes: Mapping[str, Node], known: Mapping[str, Position], limit: ReadMaxRows | ReadMaxBytes
    ) -> dict[str, Position]:
        """Divides the limit evenly, and what a node does not need among those that have more."""
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else limit.max_bytes
        backlog = {name: node.backlog_bytes(known[name]) for name, node in nodes.items()}
        names = sorted((name for name in nodes if backlog[name]), key=lambda name: (backlog[name], name))
        found: dict[str, Position] = {}
        for place, name in enumerate(names):
            if left <= 0:
                break
            node, share = nodes[name], -(-left // (len(names) - place))
            if isinstance(limit, ReadMaxRows):
                found[name], taken = node.advance(known[name], Limit(self._until(node), rows=share))
            else:
                found[name], _ = node.advance(known[name], Limit(self._until(node), size_bytes=share))
                taken = found[name].at - known[name].at
            left -= taken
        return found

    def _aim(self, nodes: Mapping[str, Node]) -> None:
        """Note where logs with a position end, if the query has an end and theirs was not known yet."""
        if self._target is not None:
            for node in nodes.values():
                if node.digest not in self._target:
                    self._target[node.digest] = node.end_bound()

    def _until(self, node: Node) -> int | None:
        return None if self._target is None else self._target[node.digest]

    def _planned(self, first: Mapping[str, Position], last: Mapping[str, Position]) -> list[InputPartition]:
        moved = {name: at for name, at in last.items() if name in first and first[name].at < at.at}
        if not moved:
            return []
        nodes = self._nodes(last)
        found: list[InputPartition] = []
        for name, end in moved.items():
            if name in nodes:
                found += map(StretchPartition, nodes[name].stretches(first[name], end))
            else:
                self._lose(name, nodes)
        return found

    def _lose(self, name: str, nodes: Mapping[str, Node]) -> None:
        text = f"the log of {name} is gone; there are {', '.join(sorted(nodes)) or 'no others'}"
        if not self._options.skip:
            raise DataLossError(f"{text}. failOnDataLoss=false goes on without it")
        logger.warning("%s", text)


def _look_again(look: Callable[[], _Found]) -> _Found:
    """Runs `look`, again if retention removed a segment in the middle of it."""
    for _ in range(LOOKS_MAX - 1):
        try:
            return look()
        except SegmentGoneError as error:
            logger.info("looking again: %s", error)
    return look()
