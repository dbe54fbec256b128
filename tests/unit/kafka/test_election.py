"""The parts of an election that need no broker."""

import struct

import pytest

pytest.importorskip("confluent_kafka")

from timerwheel.kafka.election import has_partitions


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
