"""Reading server-sent events, which is pure, from parts of any size."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from timerwheel.client.events import Event, EventParser

TEXT = (
    b": here they come\n\n"
    b'event: message\nid: r1\ndata: {"a":1}\n\n'
    b": still here\n\n"
    b"data:two\ndata: lines\r\nid: r2\r\n\r\n"
    b"event: end\n\n"
    b"event: message\ndata: not ended\n"
)
EVENTS = [
    Event("message", "r1", b'{"a":1}'),
    Event("message", "r2", b"two\nlines"),
    Event("end", "r2", b""),
]


@given(st.lists(st.integers(0, len(TEXT))))
def test_events_are_the_same_however_the_bytes_are_parted(cuts):
    places = [0, *sorted(cuts), len(TEXT)]
    parser = EventParser()
    found = []
    for begin, end in itertools.pairwise(places):
        found += parser.feed(TEXT[begin:end])
    assert found == EVENTS
