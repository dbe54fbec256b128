"""The pure parts of the commands: sizes, lengths of time, and bars."""

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.cli.chart import BARS, EMPTY, HATCH, Cell, Held, Scale, bars, cells
from timerwheel.cli.units import (
    format_about,
    format_distance,
    format_rate,
    format_size,
    parse_length_ms,
    parse_rate,
    read_size_bytes,
)
from timerwheel.model.messages import SlotInfo
from timerwheel.model.text import printable

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


@given(st.integers(0, 1 << 50))
def test_a_size_is_read_back_as_it_was_written(size):
    assert read_size_bytes(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("4096", 4096), ("64k", 65536), ("1 MiB", 1 << 20), ("2GB", 2 * 10**9)]
)
def test_sizes_have_binary_and_decimal_units(text, size):
    assert read_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1.5GiB", "1 mile", "٣"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is not a size"):
        read_size_bytes(text)


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [
        ("10y", 10 * 365 * 86_400_000),
        ("1y1d", 366 * 86_400_000),
        ("0", 0),
        ("90s", 90_000),
        ("PT90S", 90_000),
    ],
)
def test_lengths_of_time_know_years_of_365_days(text, length_ms):
    assert parse_length_ms(text) == length_ms


@pytest.mark.parametrize("text", ["", "5", "y", "1y1y", "-1s", "1d1y"])
def test_what_is_no_length_of_time_is_refused(text):
    with pytest.raises(typer.BadParameter):
        parse_length_ms(text)


def test_distances_leave_out_what_nobody_reads():
    assert format_about(9_611_310) == "2h40m"
    assert format_distance(NOW_MS + 250, NOW_MS) == "in 250ms"
    assert format_distance(NOW_MS - 61_250, NOW_MS) == "1m1s ago"
    assert format_distance(NOW_MS, NOW_MS) == "now"


@given(st.text())
def test_printable_text_holds_nothing_that_a_terminal_acts_on(text):
    assert all(c.isprintable() for c in printable(text))


@given(st.lists(st.tuples(st.integers(0, 499), st.integers(1, 9))), st.integers(1, 50))
def test_cells_hold_what_the_slots_hold(pairs, slots_per_cell):
    slots = [SlotInfo("second", at * 1000, at * 1000 + 1000, count) for at, count in pairs]
    row = cells(slots, 0, slots_per_cell * 1000, -(-500 // slots_per_cell))
    assert sum(cell.waiting for cell in row) == sum(slot.count for slot in slots)


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=50))
def test_heights_are_on_a_log_scale_that_keeps_a_single_message_visible(counts):
    scale = Scale.of(counts)
    drawn = [BARS.index(bar) for bar, _ in bars([Cell(0, 1000, count) for count in counts], scale)]
    assert [height for _, height in sorted(zip(counts, drawn, strict=True))] == sorted(drawn)
    assert BARS.index(bars([Cell(0, 1000, max(counts))], scale)[0][0]) == len(BARS) - 1 or max(counts) < 10


def test_what_another_level_holds_is_hatched_and_what_it_does_not_hold_is_empty():
    row = [Cell(at * 10, at * 10 + 10, 0) for at in range(5)]
    drawn = "".join(bar for bar, _ in bars(row, Scale.of([]), Held(15, 30)))
    assert drawn == HATCH + EMPTY + EMPTY + HATCH + HATCH


def test_a_cell_is_red_above_the_rate_and_not_at_it():
    scale = Scale.of([1000], red_above_per_s=10)
    colours = [bars([Cell(0, 2000, count)], scale)[0][1] for count in (20, 21)]
    assert ["red" in colour for colour in colours] == [False, True]


@pytest.mark.parametrize(
    ("text", "shown"), [("100/s", "100/s"), ("30/m", "30/m"), ("500", "500/s"), ("6/h", "6/h")]
)
def test_rates_are_read_and_written_in_their_unit(text, shown):
    assert format_rate(parse_rate(text)) == shown
