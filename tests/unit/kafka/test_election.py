"""The parts of an election that need no broker."""

import struct

import pytest

pytest.importorskip("confluent_kafka")

from timerwheel.kafka.election import NO_ROOM, ROOM, aside_of, group_of, has_partitions, said_of_room
from timerwheel.settings import journal_of


def assignment(*topics: str) -> bytes:
    """As the consumer protocol encodes it: version, topics with their partitions, user data."""
    found = struct.pack(">hi", 1, len(topics))
    for topic in topics:
        name = topic.encode()
        found += struct.pack(f">h{len(name)}sii", len(name), name, 1, 0)
    return found + struct.pack(">i", -1)


def test_the_node_with_a_partition_leads() -> None:
    assert has_partitions(assignment("shop-log"))
    assert not has_partitions(assignment())


def test_a_member_that_has_no_assignment_yet_does_not_lead() -> None:
    assert not has_partitions(b"")


@pytest.mark.parametrize(
    ("said", "has_room"), [(ROOM, True), (NO_ROOM, False), ("", None), (None, None), ("x", None)]
)
def test_a_node_says_of_its_room_what_a_version_knows(said: str | None, has_room: bool | None) -> None:
    assert said_of_room(said) is has_room


def test_nodes_that_stand_aside_are_in_a_group_that_the_documented_rights_cover() -> None:
    address = journal_of("kafka://broker:9092/shop")
    assert (group_of(address), aside_of(address)) == ("shop-leader", "shop-log.aside")
