"""The words of `explain`: one for everything that can happen to a message."""

import pytest

from timerwheel.cli.explain import STANDINGS, WORDS
from timerwheel.cli.output import Output
from timerwheel.history.history import Event, Standing, What


@pytest.mark.parametrize("what", What)
def test_every_event_has_words(what):
    event = Event(1_800_000_000_000, what, due_ms=1_800_000_001_000, attempt=2, lateness_ms=3)
    assert WORDS[what](event, Output(utc=True))


@pytest.mark.parametrize("standing", Standing)
def test_every_standing_has_words(standing):
    assert STANDINGS[standing]
