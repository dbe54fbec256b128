import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.kafka.names import DELAYS, KafkaTopics, is_kafka_topic, kafka_topic_of, topic_of
from timerwheel.model.admission import DELAY_PROPERTIES

NAMES = st.text("abcXYZ019._-", min_size=1, max_size=249)


@given(NAMES)
def test_a_kafka_topic_comes_back(name):
    assert kafka_topic_of(topic_of(name)) == name


@given(NAMES, NAMES)
def test_two_kafka_topics_stay_two(one, other):
    assert (topic_of(one) == topic_of(other)) == (one == other)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a%b", "x" * 250, "ä", "a\n"])
def test_what_kafka_refuses_is_no_name(name):
    assert not is_kafka_topic(name)


def test_every_delay_property_is_a_header_but_the_second_name_of_a_due_time():
    assert len(DELAYS) == len(set(DELAYS))
    assert DELAY_PROPERTIES - set(DELAYS) == {"__STARTDELIVERTIME"}


def test_the_topics_of_the_bridge_are_its_own():
    topics = KafkaTopics("timers")
    assert all(map(topics.is_own, ("timers", "timers.rejected", "timers.positions")))
    assert not topics.is_own("orders")
