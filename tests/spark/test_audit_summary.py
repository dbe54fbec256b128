"""The sums of an audit against a plain count of the same tallies, however they are distributed."""

import random
from collections import defaultdict

import msgspec
import pyarrow.parquet as pq
import pytest

from timerwheel.spark_jobs.audit.findings import Finding, Rule
from timerwheel.spark_jobs.audit.summary import Caps, summarize
from timerwheel.spark_jobs.audit.tallies import TALLIES

CAPS = Caps(findings=5, topics=3, groups=2, hours=4)
SEGMENTS = 6
HOUR_MS = 3_600_000
COLUMNS = [column.split()[0] for column in TALLIES.split(",")]


def tally(**values):
    return tuple(values.get(name) for name in COLUMNS)


def some_tallies(seed):
    """Rows as segments make them: few of each sort, many equal but for the segment."""
    chance = random.Random(seed)
    rows = []
    for segment in range(SEGMENTS):
        node = f"node-{segment % 2}"
        logged = ("unproved", "out_of_order")
        rows += [tally(node=node, sort="log", what=what, count=chance.randrange(3)) for what in logged]
        for lease, topics in ((False, 7), (True, 5)):
            for topic in chance.sample([f"topic-{n}" for n in range(topics)], topics - 1):
                own = {"node": node, "lease": lease, "topic": topic}
                rows.append(tally(**own, sort="record", what="scheduled", count=chance.randrange(1, 9)))
                rows.append(tally(**own, sort="timer", what="overdue", count=2, most_ms=chance.randrange(99)))
                for _ in range(0 if lease else 3):
                    hour_ms, bucket = chance.randrange(9) * HOUR_MS, chance.randrange(4)
                    late = {"hour_ms": hour_ms, "bucket": bucket, "most_ms": bucket, "count": 1}
                    rows.append(tally(**own, sort="lateness", **late))
        rows.append(tally(node=node, lease=False, sort="rule", what="early", count=4))
        for at in chance.sample(range(1_000 * segment, 1_000 * segment + 1_000), 4):
            found = Finding(
                node,
                None,
                Rule.EARLY,
                lease=False,
                topic="t",
                offset=at,
                timer=None,
                root=0,
                due_ms=0,
                detail="",
            )
            packed = msgspec.msgpack.encode(found)
            rows.append(tally(node=node, lease=False, sort="finding", what="early", at=at, finding=packed))
    return rows


def added(rows, *keys):
    """The sum of counts and the largest `most_ms` by these keys."""
    found = defaultdict(lambda: (0, None))
    for row in rows:
        key = tuple(row[name] for name in keys)
        count, most_ms = found[key]
        later = [ms for ms in (most_ms, row["most_ms"]) if ms is not None]
        found[key] = (count + row["count"], max(later, default=None))
    return found


def counted(rows):
    return sorted((bucket, *sums) for (bucket,), sums in added(rows, "bucket").items())


def totals(rows):
    return dict(added([row for row in rows if row["sort"] != "lateness"], "sort", "what"))


@pytest.mark.parametrize("seed", range(3))
def test_sums_lists_and_their_lengths_are_those_of_a_plain_count(spark, tmp_path, seed):
    tallies = some_tallies(seed)
    frame = spark.createDataFrame(tallies, TALLIES).repartition(4)
    found = summarize(frame, CAPS, str(tmp_path))
    every = [dict(zip(COLUMNS, row, strict=True)) for row in tallies]
    rows = [row for row in every if row["sort"] != "finding"]
    late = [row for row in rows if row["sort"] == "lateness"]
    for lease in (None, False, True):
        assert found.totals[lease] == totals([row for row in rows if row["lease"] is lease])
    assert sorted(found.lateness) == counted(late)
    for lease, listed, total, count_max in (
        (False, found.topics, found.topics_total, CAPS.topics),
        (True, found.groups, found.groups_total, CAPS.groups),
    ):
        own = [row for row in rows if row["lease"] is lease and row["topic"]]
        sizes = added([row for row in own if row["sort"] == "record"], "topic")
        busiest = sorted(sizes, key=lambda key: (-sizes[key][0], key))[:count_max]
        assert [(one.topic,) for one in listed] == busiest
        assert total == len(sizes) > count_max
        for one in listed:
            about = [row for row in own if row["topic"] == one.topic]
            assert one.totals == totals(about)
            assert sorted(one.lateness) == counted([row for row in about if row["sort"] == "lateness"])
    hours = sorted({row["hour_ms"] for row in late})
    assert found.hours_total == len(hours) > CAPS.hours
    assert list(found.hours) == hours[-CAPS.hours :]
    for hour_ms, sums in found.hours.items():
        assert sorted(sums) == counted([row for row in late if row["hour_ms"] == hour_ms])
    first = sorted((row["node"], row["at"]) for row in every if row["sort"] == "finding")[: CAPS.findings]
    assert [(one.node, one.offset) for one in found.findings] == first
    written = pq.read_table(tmp_path / "lateness").to_pylist()
    assert {
        (row["node"], row["topic"], row["hour_ms"], row["bucket"]): (row["delivered"], row["latest_ms"])
        for row in written
    } == added(late, "node", "topic", "hour_ms", "bucket")


def test_summing_up_is_one_job_of_spark(spark):
    frame = spark.createDataFrame(some_tallies(1), TALLIES)
    spark.sparkContext.setJobGroup("sums", "one pass")
    summarize(frame, CAPS, None)
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup("sums")) == 1
