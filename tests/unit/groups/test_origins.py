"""Which topic each dead letter came from, as it is kept in memory."""

from timerwheel.groups.dead_letters import Origins
from timerwheel.state.groups import DeadLetters


def origins_of(topics, first=0):
    origins = Origins()
    for offset, topic in enumerate(topics, first):
        origins.add(offset, topic)
    return origins


def test_letters_are_counted_by_topic_without_those_that_were_dealt_with():
    origins = origins_of("aabac", first=3)
    assert origins.counts(None) == {"a": 3, "b": 1, "c": 1}
    letters = DeadLetters(low=4, removed={5, 7, 99})
    assert origins.counts(letters) == {"a": 2}
    letters.remove(6)
    assert origins.counts(letters) == {"a": 1}
    origins.add(8, "b")
    assert origins.counts(letters) == {"a": 1, "b": 1}


def test_what_retention_removed_is_forgotten_also_all_of_it():
    origins = origins_of("aab")
    origins.forget_before(2)
    assert (origins.first, origins.next_offset, origins.counts(None)) == (2, 3, {"b": 1})
    origins.forget_before(10)
    assert (origins.next_offset, origins.counts(None)) == (10, {})
    origins.add(12, "c")
    assert (origins.first, origins.next_offset, origins.counts(None)) == (12, 13, {"c": 1})


def test_the_next_letter_of_some_topics_is_found_from_any_offset():
    origins = origins_of("aabac", first=3)
    assert [origins.find({"a", "c"}, at) for at in (0, 3, 4, 5, 6, 7, 8, 9)] == [3, 3, 4, 6, 6, 7, 8, 9]
    assert origins.find({"x"}, 0) == origins.next_offset == 8


def test_offsets_that_were_gone_when_they_were_read_belong_to_no_topic():
    origins = origins_of("a")
    origins.add(3, "b")
    assert (origins.next_offset, origins.find({"b"}, 0)) == (4, 3)
