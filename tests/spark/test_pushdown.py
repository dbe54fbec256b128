"""Conditions that the log source applies itself: rows are the same, and what they exclude is not read."""

import asyncio
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException

from tests.harness.sample_log import make_sample
from timerwheel.spark_jobs.formats import PUSHDOWN
from timerwheel.spark_jobs.logs import find_logs

TOPICS = ("orders", "tickets", "filler", "orders/closers", "nothing")
KINDS = ("message", "timer", "cancel", "hold", "control", "ack", "nothing")
NUMBERS = ("store_ms", "due_ms", "offset", "size", "flags", "queue", "root", "segment")
IN_SIDECARS = "node,segment,offset,size,kind,flags,topic,queue,root,origin,store_ms,due_ms"


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return asyncio.run(make_sample(tmp_path_factory.mktemp("pushdown") / "node-1"))


@pytest.fixture(scope="module")
def records(spark, sample):
    """All records as a table that Spark holds, so that it applies conditions by itself."""
    log = spark.read.format("commitlog").option("columns", f"{IN_SIDECARS},id,body").load(str(sample.data))
    held = spark.createDataFrame(log.collect(), log.schema)
    return held.cache()


def quoted(names):
    return st.sampled_from(names).map(lambda name: f"'{name}'")


def conditions(values):
    """Conditions on columns with values that occur, one beside them, and null."""

    def numbers(name):
        return st.sampled_from([*values[name], -1, min(values[name]) + 1, 2**62]).map(str)

    def listed(found):
        return st.lists(found, min_size=1, max_size=3).map(", ".join)

    texts = {"topic": quoted(TOPICS), "kind": quoted(KINDS), "node": quoted(("node-1", "node-2"))}
    found = [
        st.builds("{} {} {}".format, st.just(name), st.sampled_from(("=", "<>", "<=>", ">", "<")), text)
        for name, text in texts.items()
    ]
    found += [
        st.builds("{} {} ({})".format, st.just(name), st.sampled_from(("in", "not in")), listed(text))
        for name, text in texts.items()
    ]
    found.append(
        st.sampled_from(("topic like 'ord%'", "topic not like '%s'", "kind is not null", "topic is null"))
    )
    found.append(
        st.sampled_from(
            ("topic in ('orders', null)", "flags not in (1, null)", "due_ms > 1.5", "kind = null")
        )
    )
    found.append(st.sampled_from(("origin is null", "origin > 100", "not (queue = 0)")))
    for name in NUMBERS:
        compared = st.sampled_from(("=", "<>", "<", "<=", ">", ">=", "<=>"))
        found.append(st.builds("{} {} {}".format, st.just(name), compared, numbers(name)))
        found.append(st.builds("{} {} ({})".format, st.just(name), st.just("in"), listed(numbers(name))))
    return st.lists(st.one_of(found), min_size=1, max_size=3).map(" and ".join)


@pytest.mark.parametrize("columns", [IN_SIDECARS, f"{IN_SIDECARS},id,body"])
def test_rows_are_those_of_the_same_conditions_without_push_down(spark, sample, records, columns):
    values = {name: sorted({row[name] for row in records.collect()}) for name in NUMBERS}

    @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(conditions(values), st.booleans())
    def agree(condition, sidecars):
        log = spark.read.format("commitlog").options(columns=columns, sidecars=str(sidecars))
        found = log.load(str(sample.data)).where(condition)
        expected = records.selectExpr(*columns.split(",")).where(condition)
        assert sorted(found.collect()) == sorted(expected.collect()), condition

    agree()


def spoil_records(path):
    """Damage every record of a segment, and leave its size, its header and its sidecar."""
    data = path.read_bytes()
    path.write_bytes(data[:64] + b"\xff" * (len(data) - 64))


def test_a_segment_without_wanted_records_is_not_read(spark, sample, tmp_path):
    shutil.copytree(sample.data, tmp_path / "node-1")
    [log] = find_logs([str(tmp_path / "node-1")])
    first = log.segments[0]
    spoil_records(tmp_path / "node-1" / "log" / f"{first.base:020d}.log")
    bodies = spark.read.format("commitlog").option("columns", f"{IN_SIDECARS},id,body")
    found = bodies.load(str(tmp_path / "node-1"))
    with pytest.raises(PySparkException, match="size 4294967295 is not a record size"):
        found.count()
    sound = spark.read.format("commitlog").load(str(tmp_path / "node-1"))
    stored_ms = sound.where(f"segment = {first.base}").selectExpr("max(store_ms)").first()[0]
    for later in (f"store_ms > {stored_ms}", f"offset >= {first.end}", "topic = 'orders/closers'"):
        assert found.where(later).count() == sound.where(later).count() > 0
    assert found.where(f"segment <> {first.base}").count() > 0
    assert found.where("kind = 'nothing'").count() == 0
    assert found.where("node = 'node-2'").count() == 0


def test_damage_of_a_chosen_record_under_a_sidecar_is_named_or_left_out(spark, sample, tmp_path):
    shutil.copytree(sample.data, tmp_path / "node-1")
    [log] = find_logs([str(tmp_path / "node-1")])
    spoil_records(tmp_path / "node-1" / "log" / f"{log.segments[0].base:020d}.log")
    bodies = spark.read.format("commitlog").option("columns", f"{IN_SIDECARS},body")
    first = f"segment = {log.segments[0].base} and offset < 500"
    with pytest.raises(PySparkException, match="at log offset 64: size 4294967295 is not a record size"):
        bodies.load(str(tmp_path / "node-1")).where(first).count()
    assert bodies.option("salvage", "true").load(str(tmp_path / "node-1")).where(first).count() == 0


def test_push_down_that_is_off_is_an_error_that_names_the_setting(spark, sample):
    spark.conf.set(PUSHDOWN, "false")
    try:
        with pytest.raises(PySparkException, match=PUSHDOWN):
            spark.read.format("commitlog").load(str(sample.data)).count()
    finally:
        spark.conf.set(PUSHDOWN, "true")
