"""The file of the figures: what was written is read, and anything else is taken as empty."""

import itertools
import os

import pytest

from timerwheel.api.service import figure_file
from timerwheel.model.figures import MINUTES_MAX, SECONDS_MAX, Point
from timerwheel.store.sealed_json import seal

START_MS = 1_800_000_000_000


def points(count, every_ms):
    return [
        Point(START_MS + n * every_ms, every_ms, n, n, 0, 5, 1.25 if n % 2 else None, 9.0 if n % 2 else None)
        for n in range(count)
    ]


def test_what_was_written_is_read(tmp_path):
    for seconds, minutes in (
        ([], []),
        (points(3, 1_000), points(1, 60_000)),
        (points(SECONDS_MAX, 1_000), points(MINUTES_MAX, 60_000)),
    ):
        figure_file.write(tmp_path, seconds, minutes)
        assert figure_file.read(tmp_path) == (seconds, minutes)
    assert [path.name for path in tmp_path.iterdir()] == [figure_file.NAME]
    assert (tmp_path / figure_file.NAME).stat().st_size < figure_file.SIZE_BYTES_MAX


def test_a_missing_file_is_empty_and_not_worth_a_word(tmp_path, caplog):
    assert figure_file.read(tmp_path) == ([], [])
    assert not caplog.records


def test_a_file_that_is_cut_off_or_has_a_flipped_byte_is_empty_and_reported(tmp_path, caplog):
    figure_file.write(tmp_path, points(2, 1_000), points(2, 60_000))
    path = tmp_path / figure_file.NAME
    whole = path.read_bytes()
    cut = (whole[:size] for size in range(0, len(whole), 7))
    flipped = (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole)))
    for harmed in itertools.chain(cut, flipped):
        path.write_bytes(harmed)
        caplog.clear()
        assert figure_file.read(tmp_path) == ([], []), harmed
        assert "charts begin empty" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b'{"version":2,"seconds":[],"minutes":[]}',
        b'{"version":1,"seconds":[[1,2,3]],"minutes":[]}',
        b'{"version":1,"seconds":[[-1,0,0,0,0,0,null,null]],"minutes":[]}',
        b'{"version":1,"seconds":[%b],"minutes":[]}'
        % b",".join([b"[1,0,0,0,0,0,null,null]"] * (SECONDS_MAX + 1)),
        b'{"version":1}',
        b"[1]",
    ],
)
def test_a_whole_file_with_something_else_in_it_is_empty(tmp_path, content):
    (tmp_path / figure_file.NAME).write_bytes(seal(content))
    assert figure_file.read(tmp_path) == ([], [])


def test_a_link_or_a_pipe_in_its_place_is_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    figure_file.write(elsewhere, points(2, 1_000), [])
    path = tmp_path / figure_file.NAME
    path.symlink_to(elsewhere / figure_file.NAME)
    assert figure_file.read(tmp_path) == ([], [])
    path.unlink()
    os.mkfifo(path)
    assert figure_file.read(tmp_path) == ([], [])


def test_what_a_killed_process_left_half_written_is_replaced(tmp_path):
    (tmp_path / f"{figure_file.NAME}.new").write_bytes(b"half")
    figure_file.write(tmp_path, points(1, 1_000), [])
    assert figure_file.read(tmp_path) == (points(1, 1_000), [])
    assert [path.name for path in tmp_path.iterdir()] == [figure_file.NAME]
