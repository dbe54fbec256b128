"""What the end of a topic means to the state of the log."""

import msgspec
import pytest

from timerwheel.state.config_table import ConfigTable, Put, TopicEnd
from timerwheel.state.state import LogState

END = TopicEnd(at_ms=5, until=1_000, queues={0: 7, 3: 2})


@pytest.fixture
def log_state():
    """A topic with messages in two queues, which has ended."""
    found = LogState(lambda: (0,))
    topic = found.topic("orders")
    for number, next_offset in END.queues.items():
        found.queue(topic, number).next_offset = next_offset
    found.put(ended("orders", END))
    return found


def ended(name, end):
    """The change as it is read from a record."""
    return Put(ConfigTable.TOPIC_END, name, msgspec.json.decode(msgspec.json.encode(end)))


def test_the_queues_of_a_deleted_topic_are_empty_and_go_on_where_they_ended(log_state):
    queues = log_state.topics["orders"].queues
    assert {n: (q.min_offset, q.next_offset) for n, q in queues.items()} == {0: (7, 7), 3: (2, 2)}
    assert not log_state.exists("orders")
    assert log_state.client_topics == 0


def test_a_topic_exists_again_with_its_next_message_or_timer(log_state):
    topic = log_state.topics["orders"]
    topic.pending = 1
    assert log_state.exists("orders")
    topic.pending, topic.queues[3].next_offset = 0, 3
    assert log_state.exists("orders")
    assert (log_state.is_used(topic, 0), log_state.is_used(topic, 3)) == (False, True)


def test_messages_before_the_end_are_deleted_and_later_ones_are_not(log_state):
    assert log_state.end_of("orders", 999) == END
    assert log_state.end_of("orders", 1_000) is None
    assert log_state.end_of("tickets", 0) is None


def test_an_end_never_lowers_what_retention_has_raised(log_state):
    log_state.topics["orders"].queues[0].min_offset = 9
    log_state.put(ended("orders", END))
    assert log_state.topics["orders"].queues[0].min_offset == 9


def test_the_settings_of_a_log_keep_its_ends(log_state):
    other = LogState(lambda: (0,))
    other.load_settings(log_state.dump_settings(), 1_000)
    assert other.control.topic_ends == {"orders": END}
    assert not other.exists("orders")
