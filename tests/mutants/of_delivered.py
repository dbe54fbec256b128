"""Mutants of `timerwheel.delivered`: positions, numbering, and which rows are left out."""

from tests.mutants.mutant import Mutant

MODEL = "tests/property/test_delivered_model.py"
HISTORIES = f"{MODEL}::test_a_stream_has_what_the_queues_had_and_each_batch_again"
LOSSES = f"{MODEL}::test_without_an_archive_what_is_lost_is_named_and_the_rest_has_its_offsets"
UNSYNCED = f"{MODEL}::test_a_log_that_lost_its_end_is_refused_and_goes_on_if_it_did_not"
RANGE = "tests/unit/spark_jobs/test_log_range.py"
CONDITIONS = "tests/unit/spark_jobs/test_conditions.py"
NODES = "spark_jobs/delivered/nodes.py"

MUTANTS = [
    Mutant(
        "delivered-lost-end-unseen",
        NODES,
        "a log that lost what was read is not read on",
        "                    if not source.has_record(at.last, at.at):",
        "                    if False:",
        (UNSYNCED,),
    ),
    Mutant(
        "delivered-numbers-stand-still",
        NODES,
        "each stretch is numbered from the end of the one before",
        "                yield self._stretch(step, own, start, end)\n"
        "            numbers = added(numbers, count.queues)\n",
        "                yield self._stretch(step, own, start, end)\n",
        (HISTORIES,),
    ),
    Mutant(
        "delivered-numbers-over-a-gap",
        NODES,
        "behind a gap the queue offsets are those of the log's manifest",
        "                reset = self._numbers_at(extent) or {}",
        "                reset = {}",
        (LOSSES,),
    ),
    Mutant(
        "delivered-gap-unseen",
        NODES,
        "what neither log nor archive has is named",
        "                if lo - expected != RESTORED_GAP_BYTES:",
        "                if lo - expected > RESTORED_GAP_BYTES:",
        (LOSSES,),
    ),
    Mutant(
        "delivered-cut-in-a-unit",
        "spark_jobs/delivered/log_range.py",
        "an incomplete unit at the end of the log is not read",
        "return table if hi is not None else Table(",
        "return table if hi is None else Table(",
        (RANGE,),
    ),
    Mutant(
        "delivered-part-from-the-beginning",
        "spark_jobs/delivered/log_range.py",
        "of a segment with a sidecar only the part that was planned is read",
        "        return Table(table.rows[first:last], table.topics)",
        "        return Table(table.rows[:last], table.topics)",
        (HISTORIES,),
    ),
    Mutant(
        "delivered-new-node-in-the-same-batch",
        "spark_jobs/delivered/stream.py",
        "a new node gets its position in the checkpoint before its rows are read",
        "        going = {name: node for name, node in nodes.items() if name in known}",
        "        known = found\n        going = nodes",
        (HISTORIES,),
    ),
    Mutant(
        "conditions-null-in-a-list",
        "spark_jobs/conditions.py",
        "a list with a null is left to Spark",
        "any(type(value) is not kind for value in values)",
        "all(type(value) is not kind for value in values)",
        (CONDITIONS,),
    ),
]
