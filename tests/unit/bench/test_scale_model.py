"""What a load takes: the model beside what was measured, its limits, and the tables of its page."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.scale import app, page
from bench.scale_model import INPUTS, Check, Load, Reading, broker_bytes_s, checks, plan, ready_s
from timerwheel.settings import SHARDS_MAX

ROOT = Path(__file__).parents[3]
CHECKS = checks()
WORDS = {
    "MISSED": "missed after 6 s",
    "TAKEN_OVER": "within about a second",
    "burst with 8 workers, until the last": "2,006",  # ms for 100,000 messages
    "soak at 2,000/s with groups, all of it": "83.0",  # % of a core
    "single sends, in Kafka beside the disk": "92 %",
}
"""How a page says what is more than a number."""


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("check", CHECKS, ids=[one.what for one in CHECKS])
def test_the_model_is_as_near_to_what_was_measured_as_its_page_says(check: Check) -> None:
    assert abs(check.error) <= check.error_max


def test_no_input_checks_itself() -> None:
    inputs = {(one.page, one.value) for one in INPUTS.values()}
    # The empty disk is an input of `ready_s` only, and checks the least time, which is made of other figures.
    assert {one.what for one in CHECKS if (one.page, one.measured) in inputs} == {
        "empty disk, 2 M: ready, least"
    }


def is_on(page: str, shown: str) -> bool:
    return re.search(rf"(?<![\d.,]){re.escape(shown)}(?![\d])", (ROOT / page).read_text()) is not None


@pytest.mark.parametrize("name", INPUTS)
def test_each_input_is_on_its_page(name: str) -> None:
    one = INPUTS[name]
    assert is_on(one.page, WORDS.get(name, f"{one.value:,.12g}"))


@pytest.mark.parametrize("check", CHECKS, ids=[one.what for one in CHECKS])
def test_each_measured_figure_is_on_its_page(check: Check) -> None:
    assert is_on(check.page, WORDS.get(check.what, f"{check.measured:,.12g}"))


def test_the_page_says_what_a_broker_counts_with() -> None:
    text = (ROOT / "doc" / "scale.md").read_text()
    assert f"a broker counts with {broker_bytes_s() / 1e6:.0f} MB/s" in text


def test_the_page_has_the_tables_that_the_command_prints() -> None:
    text = (ROOT / "doc" / "scale.md").read_text()
    assert page() == [line for line in page() if line in text]
    assert run("--tables").splitlines() == page()


@pytest.mark.parametrize("field", ["in_per_s", "pending", "body_bytes", "consumers"])
def test_more_of_anything_never_takes_less(field: str) -> None:
    small, large = (plan(Load(**{field: value})) for value in (1_000, 1_000_000))
    assert large.shards >= small.shards
    assert large.brokers >= small.brokers
    assert large.log_bytes >= small.log_bytes
    assert large.node_disk_bytes_s >= small.node_disk_bytes_s


def test_a_million_a_second_for_groups_fits_into_the_shards_that_there_may_be_in_arrays_alone() -> None:
    made = plan(Load(in_per_s=1_000_000, pending=10_000_000_000))
    assert made.first_bottleneck == "processor of the shards"
    assert made.shards <= SHARDS_MAX
    assert made.breaks == ()
    assert any("pending in a shard" in what for what in made.untried)
    single = plan(Load(in_per_s=1_000_000, pending=10_000_000_000, array=1))
    assert single.shards > SHARDS_MAX
    assert any("ends at 64" in what for what in single.breaks)


def test_a_million_a_second_read_as_queues_fits_into_the_shards_that_there_may_be() -> None:
    made = plan(Load(in_per_s=1_000_000, reading=Reading.QUEUE, retention_s=3_600))
    assert made.shards <= SHARDS_MAX
    assert made.breaks == ()


def test_without_pending_or_rate_one_shard_is_enough() -> None:
    made = plan(Load(in_per_s=0, pending=0))
    assert (made.shards, made.brokers, made.log_bytes, made.topic_per_s_max) == (1, 3, 0, 0)


def test_without_a_journal_no_standby_takes_over_and_an_empty_node_has_nothing() -> None:
    made = plan(Load(replicas=0))
    assert (made.brokers, made.takeover_s, made.ready_s, made.broker_bytes) == (0, None, None, 0)
    assert "nobody takes over" in run("--replicas", "0")


def test_the_time_of_an_empty_node_is_the_measured_one_for_what_was_measured() -> None:
    assert ready_s(2_000_000) == pytest.approx(12.9)


@pytest.mark.parametrize("words", [("--array", "0"), ("--busy", "0"), ("--busy", "1.1"), ("--in", "-1")])
def test_a_load_that_cannot_be_is_refused(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, list(words)).exit_code == 2


def test_json_has_the_load_the_plan_and_each_input_with_its_page() -> None:
    shown = json.loads(run("--json", "--in", "100000", "--direct"))
    assert shown["load"]["in_per_s"] == 100_000
    assert shown["plan"]["node_cores"] == 0
    assert all((ROOT / one["page"]).exists() for one in shown["inputs"].values())
