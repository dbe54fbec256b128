"""Positions as records, and what is to be sent again before them."""

import msgspec
import pytest

pytest.importorskip("confluent_kafka")

from timerwheel.kafka.positions import (
    Positions,
    Run,
    joined,
    latest,
    offsets_record,
    positions_of,
    run_record,
)


def read(*records: tuple[bytes, bytes]) -> Positions:
    """What a service finds in these records of its own."""
    newest = {key.partition(b" ")[2].decode(): msgspec.json.decode(value) for key, value in records}
    return positions_of(newest)


def test_what_is_to_be_sent_again_is_stored_with_the_positions() -> None:
    found = read(
        run_record("shop", Run("one", "journal")),
        offsets_record("shop", "a", {0: 7, 1: 9}, {0: [3, 5]}),
        offsets_record("shop", "b c", {2: 1}),
    )
    assert found == Positions(Run("one", "journal"), {"a": {0: 7, 1: 9}, "b c": {2: 1}}, {"a": {0: [3, 5]}})


def test_positions_without_a_run_are_of_no_process() -> None:
    assert read(offsets_record("shop", "a", {0: 7}, {})) == Positions(None, {"a": {0: 7}}, {})


def test_all_is_in_kafka_up_to_the_first_message_that_is_to_be_sent_again() -> None:
    offsets = {"a": {0: 7, 1: 9}, "b": {0: 4}}
    assert Positions(None, offsets, {"a": {0: [5, 3]}}).whole == {"a": {0: 3, 1: 9}, "b": {0: 4}}
    assert Positions(None, offsets, {}).whole == offsets


def test_of_two_copies_of_positions_the_later_ones_count() -> None:
    assert latest({"a": {0: 7, 1: 9}}, {"a": {0: 8, 1: 2}, "b": {0: 1}}) == {"a": {0: 8, 1: 9}, "b": {0: 1}}


def test_what_several_partitions_have_lost_is_sent_again_once_and_in_order() -> None:
    found = joined([{"a": {0: [5, 3]}}, {"a": {0: [3, 4], 1: [0]}}, {}], {"a": {0: 9, 1: 1}})
    assert found == {"a": {0: [3, 4, 5], 1: [0]}}


def test_what_is_behind_a_position_is_not_sent_again_besides() -> None:
    each = [{"a": {0: [3, 5], 1: [2]}, "gone": {0: [1]}}]
    assert joined(each, {"a": {0: 5}}) == {"a": {0: [3]}}
