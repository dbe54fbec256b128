"""The film of the console: a short one, with a real service and browser, and that of the README."""

import pytest
from PIL import Image

from bench import pictures
from tests.harness.browser import chromium
from tests.harness.processes import python

SHORT = (
    pictures.Stage(2 * pictures.HOUR_MS, 0),
    pictures.Stage(pictures.MINUTE_MS, 2),
    pictures.Stage(-pictures.SECOND_MS, 2),
)
FILM = """
import asyncio, pathlib, sys
from bench import pictures
stages = [pictures.Stage(*map(int, text.split("/"))) for text in sys.argv[2:]]
asyncio.run(pictures.film(pathlib.Path(sys.argv[1]), stages))
"""


@pytest.mark.torture
def test_a_short_film_has_a_frame_for_each_second(tmp_path):
    chromium()
    done = python("-c", FILM, tmp_path / "film.webp", *(f"{stage[0]}/{stage[1]}" for stage in SHORT))
    assert done.code == 0, done.err
    with Image.open(tmp_path / "film.webp") as film:
        assert film.size == (pictures.WIDTH, pictures.HEIGHT)
        assert 2 <= film.n_frames <= pictures.frame_count(SHORT) == 4  # frames that are alike are one


def test_the_picture_of_the_readme_is_a_film_of_all_stages_and_small():
    assert pictures.PATH.stat().st_size < pictures.BYTES_MAX
    with Image.open(pictures.PATH) as film:
        assert film.size == (pictures.WIDTH, pictures.HEIGHT)
        assert 30 < film.n_frames <= pictures.frame_count(pictures.STAGES)
        assert film.info["loop"] == 0


def test_the_stages_come_nearer_to_the_rush_and_go_past_it():
    before_ms = [stage.before_ms for stage in pictures.STAGES]
    assert before_ms == sorted(before_ms, reverse=True)
    assert before_ms[0] > 2 * 24 * pictures.HOUR_MS
    assert before_ms[-1] < 0
