import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.errors import SettingsError
from timerwheel.model.delay_levels import LEVELS_MAX, LevelTable
from timerwheel.settings import DEFAULT_LEVELS

UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def test_default_table_is_rocketmqs_eighteen_levels():
    table = LevelTable.parse(DEFAULT_LEVELS)
    minutes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120]
    assert table.delays_ms == (1_000, 5_000, 10_000, 30_000, *(minute * 60_000 for minute in minutes))
    assert table.highest == 18


def test_level_n_is_the_nth_entry_counted_from_one():
    table = LevelTable.parse("7s 1d 2h")
    assert [table.delay_ms(level) for level in (1, 2, 3)] == [7_000, 86_400_000, 7_200_000]
    assert table.texts == ("7s", "1d", "2h")


@pytest.mark.parametrize("level", [-1, 0, 3])
def test_level_outside_the_table_is_an_index_error(level):
    with pytest.raises(IndexError, match=f"no delay level {level}; give one from 1 to 2"):
        LevelTable.parse("1s 2s").delay_ms(level)


@pytest.mark.parametrize(("level", "clamped"), [(1, 1), (2, 2), (3, 2), (2**63 - 1, 2)])
def test_level_above_the_highest_is_clamped_to_the_highest(level, clamped):
    assert LevelTable.parse("1s 2s").clamp(level) == clamped


@pytest.mark.parametrize(
    "entry",
    [
        "0s",
        "000d",
        "-1s",
        "+1s",
        "s",
        "1",
        "1w",
        "1ms",
        "1S",
        "1.5s",
        "1s,",
        "\u0661s",
        "9" * 19 + "s",
        "\ud800s",
    ],
)
def test_bad_entry_is_named_with_its_level(entry):
    with pytest.raises(SettingsError) as caught:
        LevelTable.parse(f"1s {entry} 3s")
    assert repr(entry) in str(caught.value)
    assert "level 2" in str(caught.value)


def test_entry_of_a_million_digits_is_refused_and_shown_cut_short():
    with pytest.raises(SettingsError) as caught:
        LevelTable.parse("9" * 1_000_000 + "s")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_empty_table_is_refused(text):
    with pytest.raises(SettingsError, match="the table is empty"):
        LevelTable.parse(text)


def test_table_of_255_levels_is_the_longest():
    assert LevelTable.parse("1s " * LEVELS_MAX).highest == 255
    with pytest.raises(SettingsError, match="256 entries; at most 255"):
        LevelTable.parse("1s " * (LEVELS_MAX + 1))


def test_level_of_a_thousand_years_is_the_longest_delay():
    assert LevelTable.parse("365000d").highest == 1
    with pytest.raises(SettingsError, match=r"'365001d' \(level 1\) is longer than 1000 years"):
        LevelTable.parse("365001d")


@given(st.lists(st.tuples(st.integers(1, 10_000), st.sampled_from("smhd")), min_size=1, max_size=LEVELS_MAX))
def test_table_means_number_times_unit_in_the_order_written(entries):
    table = LevelTable.parse(" ".join(f"{number}{unit}" for number, unit in entries))
    assert list(table.delays_ms) == [number * UNIT_MS[unit] for number, unit in entries]
