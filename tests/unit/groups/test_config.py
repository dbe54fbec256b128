"""A group's configuration and the delays between attempts."""

import msgspec
import pytest

from timerwheel.groups.config import (
    ATTEMPTS_MAX,
    Exponential,
    GroupConfig,
    IllegalGroupError,
    Ladder,
    check_group,
    config_of,
)
from timerwheel.model.delay_levels import LevelTable
from timerwheel.model.tags import IllegalFilterError
from timerwheel.settings import DEFAULT_LEVELS

LEVELS = LevelTable.parse(DEFAULT_LEVELS)
MINUTE_MS = 60_000


@pytest.mark.parametrize("tags", ["", " "])
def test_empty_tags_are_refused_but_stand_for_all_where_an_older_version_stored_them(tags):
    with pytest.raises(IllegalFilterError, match="empty"):
        GroupConfig(tags=tags).check()
    assert config_of({"tags": tags}).tags == "*"


def test_the_ladder_climbs_the_delay_levels_from_the_third_and_stays_on_the_last():
    delays = [Ladder().delay_ms(attempt, LEVELS) for attempt in range(1, 20)]
    seconds = [
        10,
        30,
        *(60 * m for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
        3600,
        7200,
        7200,
        7200,
        7200,
    ]
    assert delays == [1_000 * s for s in seconds]


@pytest.mark.parametrize(
    ("levels", "delays_ms"), [("1s", [1_000] * 3), ("1s 2s 3s 4s", [3_000, 4_000, 4_000])]
)
def test_the_ladder_of_a_short_table_stays_on_its_last_level(levels, delays_ms):
    table = LevelTable.parse(levels)
    assert [Ladder().delay_ms(attempt, table) for attempt in (1, 2, 3)] == delays_ms


@pytest.mark.parametrize(
    ("backoff", "delays_ms"),
    [
        (Exponential(), [1_000, 2_000, 4_000, 8_000]),
        (Exponential(initial_ms=100, factor=1.0), [100, 100, 100, 100]),
        (Exponential(initial_ms=100, factor=1.5, max_ms=200), [100, 150, 200, 200]),
        (Exponential(initial_ms=500, max_ms=0), [0, 0, 0, 0]),
        (Exponential(initial_ms=0, factor=100.0), [0, 0, 0, 0]),
    ],
)
def test_an_exponential_delay_grows_by_its_factor_up_to_its_maximum(backoff, delays_ms):
    assert [backoff.delay_ms(attempt, LEVELS) for attempt in (1, 2, 3, 4)] == delays_ms


def test_an_exponential_delay_of_the_last_attempt_there_can_be_is_its_maximum():
    backoff = Exponential(initial_ms=1, factor=100.0, max_ms=12_345)
    assert backoff.delay_ms(ATTEMPTS_MAX, LEVELS) == 12_345


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": 1_001},
        {"invisible_ms": 0},
        {"invisible_ms": 12 * 60 * MINUTE_MS + 1},
        {"start": "middle"},
        {"backoff": {"type": "exponential", "factor": 0.5}},
        {"backoff": {"type": "exponential", "initial_ms": -1}},
        {"backoff": {"type": "exponential", "max_ms": 7 * 24 * 60 * MINUTE_MS + 1}},
        {"backoff": {"type": "other"}},
        {"backoff": {"type": "ladder", "more": 1}},
        {"unknown": 1},
        {"max_attempts": "3"},
        [],
        None,
    ],
)
def test_a_wrong_value_is_refused_by_name(wrong):
    with pytest.raises(IllegalGroupError):
        config_of(wrong)


def test_a_configuration_made_in_code_is_checked_as_one_from_json():
    with pytest.raises(IllegalGroupError, match="max_attempts"):
        GroupConfig(max_attempts=0).check()
    with pytest.raises(IllegalFilterError):
        GroupConfig(tags="A||").check()
    config = GroupConfig(tags="A", backoff=Exponential(initial_ms=5))
    assert config.check() == config
    assert config_of(msgspec.to_builtins(config)) == config


def test_a_first_delay_above_the_longest_is_refused_but_one_that_is_kept_still_works():
    wrong = GroupConfig(backoff=Exponential(initial_ms=2_000, max_ms=1_000))
    with pytest.raises(IllegalGroupError, match=r"initial_ms = 2000 .* max_ms = 1000"):
        wrong.check()
    assert config_of(msgspec.to_builtins(wrong)) == wrong
    GroupConfig(backoff=Exponential(initial_ms=1_000, max_ms=1_000)).check()


@pytest.mark.parametrize("name", ["g", "a-b_c|d%e", "-", "|", "9", "x" * 120])
def test_names_that_groups_may_have(name):
    assert check_group(name) == name


@pytest.mark.parametrize("name", ["", "x" * 121, "a/b", "a b", "ä", "a\n", "%g", ".", "a.b", "/"])
def test_names_that_groups_may_not_have(name):
    with pytest.raises(IllegalGroupError):
        check_group(name)


@pytest.mark.parametrize("name", ["%RETRY%w", "%g"])
def test_the_error_for_a_name_names_its_first_character(name):
    with pytest.raises(IllegalGroupError, match="not beginning with %"):
        check_group(name)


def test_a_long_name_is_shown_short_and_marked_as_cut():
    with pytest.raises(IllegalGroupError) as caught:
        check_group("x" * 121)
    assert str(caught.value).startswith("'" + "x" * 40 + "'... is not")
    with pytest.raises(IllegalGroupError) as caught:
        check_group("a b")
    assert "..." not in str(caught.value)
