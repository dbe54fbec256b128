"""The forecast against what the service itself says that waits."""

import asyncio
import io
import shutil
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from tests.harness.consumers import put, receive
from tests.harness.permissions import wide_in
from tests.harness.world import World
from tests.integration.runtime.test_retention import age
from timerwheel.cli import forecast as command
from timerwheel.cli.table import typed
from timerwheel.model.messages import SlotInfo
from timerwheel.spark_jobs.forecast.flatten import Outcome, flatten
from timerwheel.spark_jobs.forecast.horizon import WITHIN_MAX_MS, Horizon, horizon_of
from timerwheel.spark_jobs.forecast.job import (
    Forecast,
    count_due,
    forecast,
    in_units,
    totals_of,
    write_counts,
)
from timerwheel.spark_jobs.forecast.plot import draw
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.segment_stats import ReadOptions, survey
from timerwheel.store.files import DiskFiles

NODES = 2
WITHIN_MS = 2 * 3_600_000
PNG = b"\x89PNG\r\n\x1a\n"


class Waiting(NamedTuple):
    """A log of short and eventful life, and what its engine says that waits: topic and due time of each."""

    data: Path
    now_ms: int
    messages: list[tuple[str, int]]


async def live(world: World) -> Waiting:
    """Timers fired, recalled, rescheduled, moved by retention and leased; ends lie segments behind timers."""
    engine = await world.open(retention_ms=10_000)
    moved = await world.send_ids(*[5_000_000 + 100 * n for n in range(25)])
    moved += await world.send_ids(*[900_000_000] * 3, topic="far")
    assert await age(world) > 0
    ids = await world.send_ids(*[60_000 + n for n in range(30)], *[61_000] * 5, topic="mail")
    await world.send(*[500] * 10)
    await world.send(*[3_600_000] * 7, 6_000, topic="%odd-name")
    await put(world, invisible_ms=90_000)
    await world.roll()
    await world.advance(500)
    assert len(await receive(world)) == 10  # leases: timers of the group, which are no messages to come
    for message_id in (moved[0], ids[0], ids[31]):
        await engine.recalls.recall(message_id)
    await engine.recalls.reschedule(moved[1], {"TIMER_DELAY_MS": "7000000"})
    await engine.recalls.reschedule(ids[1], {"TIMER_DELAY_MS": "60000"})
    assert engine.core.log.start > 64
    page = await engine.messages.pending(limit=10_000)
    await engine.close()
    # Seen 20 s later, some of these are overdue.
    now_ms = world.clock.now_ms() + 20_123
    return Waiting(world.directory, now_ms, [(message.topic, message.due_ms) for message in page.messages])


@pytest.fixture(scope="module")
def waiting(tmp_path_factory) -> Waiting:
    world = World(tmp_path_factory.mktemp("forecast") / "node-1")
    world.files = DiskFiles()
    found = asyncio.run(live(world))
    shutil.copytree(found.data, found.data.with_name("node-2"))
    return found


@pytest.fixture(scope="module")
def horizon(waiting) -> Horizon:
    return horizon_of(waiting.now_ms, WITHIN_MS)


@pytest.fixture(scope="module")
def surveyed(spark, waiting, tmp_path_factory):
    logs = find_logs([str(waiting.data.with_name("node-*"))])
    return survey(spark, logs, ReadOptions(str(tmp_path_factory.mktemp("staging"))))


@pytest.fixture(scope="module")
def counted(spark, surveyed, horizon):
    return count_due(spark, surveyed, horizon)


def due_seconds(waiting: Waiting, horizon: Horizon) -> Counter[tuple[str, int]]:
    """What the engine says, over all nodes: how many of a topic are due in which second."""
    found = Counter((topic, due_ms // 1_000 - horizon.from_s) for topic, due_ms in waiting.messages)
    return Counter({key: NODES * count for key, count in found.items()})


def test_what_falls_due_is_what_the_engine_says_waits(waiting, horizon, counted):
    expected: Counter[tuple[str, int]] = Counter()
    for (topic, second), count in due_seconds(waiting, horizon).items():
        expected[topic, min(max(second, -1), horizon.seconds)] += count
    assert {second for _, second in expected} > {-1, horizon.seconds}
    assert {(row.topic, row.second): row.messages for row in counted.collect()} == expected


def test_sums_busiest_times_and_topics_follow_from_the_counts(waiting, horizon, counted):
    expected = due_seconds(waiting, horizon)
    totals = totals_of(counted, horizon)
    found = forecast(counted, totals, horizon, rate=3, top=2)
    assert found.waiting == NODES * len(waiting.messages)
    assert found.overdue == sum(n for (_, second), n in expected.items() if second < 0) > 0
    assert found.later == sum(n for (_, second), n in expected.items() if second >= horizon.seconds) > 0
    mail = np.zeros(horizon.seconds, np.int64)
    for (topic, second), count in expected.items():
        if topic == "mail":
            mail[second] += count
    start_ms = (horizon.from_s + int(mail.argmax())) * 1_000
    peak = SlotInfo("second", start_ms, start_ms + 1_000, int(mail.max()))
    assert found.busiest["second"][0] == peak
    assert [len(slots) for slots in found.busiest.values()] == [2, 2, 2]
    assert found.topics[0].topic == "mail"
    assert (found.topics[0].within, found.topics[0].worst) == (mail.sum(), peak)
    assert found.topics[0].flattening == flatten(mail, 3)
    assert found.flattening == flatten(totals.per_second, 3)
    assert found.flattening.outcome is Outcome.SPREAD
    assert len(found.topics) == 2


def test_one_topic_alone(spark, surveyed, horizon):
    counted = count_due(spark, surveyed, horizon, topic="%odd-name")
    totals = totals_of(counted, horizon)
    assert totals.per_second.sum() + totals.overdue + totals.later == NODES * 8
    assert totals.overdue == NODES


def test_the_written_counts_are_those_within_the_horizon(spark, waiting, horizon, counted, tmp_path):
    write_counts(counted, horizon, str(tmp_path / "of a day" / "counts"))
    assert wide_in(tmp_path / "of a day") == []
    rows = spark.read.parquet(str(tmp_path / "of a day" / "counts")).collect()
    seconds = due_seconds(waiting, horizon)
    assert {(row.topic, row.due_ms // 1_000 - horizon.from_s): row.messages for row in rows} == {
        key: count for key, count in seconds.items() if 0 <= key[1] < horizon.seconds
    }
    due_ms = [row.due_ms for row in rows]
    assert due_ms == sorted(due_ms)


def test_a_horizon_begins_with_the_second_of_now_and_has_whole_seconds():
    assert horizon_of(1_999, 1) == Horizon(1, 1)
    assert horizon_of(2_000, 1_001) == Horizon(2, 2)
    assert horizon_of(0, WITHIN_MAX_MS).seconds == 31 * 86_400


@pytest.mark.parametrize("unit", ["second", "minute", "hour", "day"])
def test_units_are_aligned_and_lose_nothing(unit):
    horizon = Horizon(1_800_000_123, 200_000)
    per_second = np.random.default_rng(1).integers(0, 3, horizon.seconds)
    per_second[50_000:150_000] = 0
    slots = in_units(per_second, horizon, unit)
    assert sum(slot.count for slot in slots) == per_second.sum()
    assert slots[0].start_ms <= horizon.from_ms + 1_000
    for slot in slots:
        assert slot.start_ms % (slot.end_ms - slot.start_ms) == 0
        first, last = slot.start_ms // 1_000 - horizon.from_s, slot.end_ms // 1_000 - horizon.from_s
        assert slot.count == per_second[max(first, 0) : last].sum() > 0


@pytest.mark.parametrize("rate", [None, 100])
def test_any_forecast_can_be_drawn(rate):
    horizon = Horizon(1_800_000_059, 10_000)
    for fullest in (0, 500):
        per_second = np.zeros(horizon.seconds, np.int64)
        per_second[0] = fullest
        file = io.BytesIO()
        found = None if rate is None else flatten(per_second, rate)
        draw(file, per_second, horizon, found, None, "of the topic $\\frac 数")
        assert file.getvalue().startswith(PNG)


@pytest.mark.parametrize(
    "flags",
    [["--within", "32d"], ["--within", "0s"], ["--within", "soon"], ["--rate", "0"], ["--chart", "x"]],
)
def test_what_cannot_be_asked_is_refused_before_spark_is_started(flags):
    app = typer.Typer()
    app.command()(typed(command.forecast))
    result = CliRunner().invoke(app, flags)
    assert result.exit_code == 2
    assert flags[0] in result.output


def test_advice_names_the_jitter_or_says_that_none_helps():
    per_second = np.zeros(10, np.int64)
    per_second[7] = 500
    report = Forecast(0, 10_000, 0, 500, 0, {}, [], None)
    words = {rate: command.advice(flatten(per_second, rate), report) for rate in (49, 100, 1_000)}
    assert words[49].startswith(
        "No jitter keeps every second at 49 messages: 500 fall due within 10s, 50.0 a"
    )
    assert words[100].startswith("A jitter of 5s keeps every second at 100 messages")
    assert "from 0 to 4. The busiest second then expects 100.0 instead of 500." in words[100]
    assert words[1_000].startswith("No second has more than 1,000 messages, the busiest has 500")
