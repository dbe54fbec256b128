"""Options and offset documents of `timerwheel.delivered`: what is refused, and with which words."""

import json
import sys

import pytest
from pyspark.sql.types import StructType

from timerwheel.spark_jobs.delivered.options import BATCH, STREAM, read_options
from timerwheel.spark_jobs.delivered.position import (
    added,
    digest_of,
    document,
    nodes_of,
    position,
)
from timerwheel.spark_jobs.delivered.source import DeliveredSource
from timerwheel.spark_jobs.errors import JobError

AT = position(8192, (8072, 17), digest_of(b"i" * 16), {("orders", 0): 3, ("orders", 11): 1, ("idle", 0): 0})

PLACE = '{"format": 1, "nodes": {"n": {"at": %s, "last": %s, "log": "x", "queues": {}}}}'


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r'give a data directory, load\("/path/to/data/directory"\), or option\("archive", url\)'),
        (
            {"path": "x", "topics": "a"},
            "no such option of a batch: topics; choose from path, paths, archive,",
        ),
        ({"path": "x", "maxRowsPerTrigger": "5"}, "no such option of a batch: maxRowsPerTrigger"),
        ({"path": "x", "topic": " , "}, "option topic names no topic; leave it out to read all topics"),
        ({"path": "x", "columns": "id,colour"}, "no such columns: colour; choose from node, topic, queue"),
        ({"path": "x", "failOnDataLoss": "no"}, "option failOnDataLoss must be true or false, not no"),
        ({"path": "x", "sealed": "1"}, "option sealed must be true or false, not 1"),
        (
            {"path": "x", "startingOffsets": "first"},
            "startingOffsets must be earliest, latest, or an offset doc",
        ),
        ({"path": "x", "startingOffsets": "[]"}, "option startingOffsets is not an offset document"),
        ({"path": "x", "startingOffsets": PLACE % (-1, "null")}, "no record before -1 can begin at None"),
        ({"path": "x", "startingOffsets": PLACE % (80, "[80, 1]")}, "no record before 80 can begin at 80"),
        ({"path": "x", "endingOffsets": '{"format": 1}'}, "missing required field `nodes`"),
        ({"path": "x", "endingOffsets": '{"format": 2, "nodes": {}}'}, "has format 2; this program reads 1"),
        ({"path": "x", "from": "-1"}, "option from must be a queue offset, such as 17"),
        ({"path": "x", "to": '{"orders": {"a": 1}}'}, "option to must be a queue offset"),
        ({"path": "x", "to": '{"orders": true}'}, "option to must be a queue offset"),
        ({"path": "x", "to": "orders"}, "option to must be a queue offset"),
    ],
)
def test_a_wrong_option_of_a_batch_is_refused_with_what_is_right(options, words):
    with pytest.raises(JobError, match=words):
        read_options(options, stream=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "x", "from": "1"}, "no such option of a stream: from; choose from path, paths, archive,"),
        (
            {"path": "x", "maxRowsPerTrigger": "0"},
            "maxRowsPerTrigger must be a whole number of at least 1, not 0",
        ),
        (
            {"path": "x", "maxBytesPerTrigger": "1e6"},
            "maxBytesPerTrigger must be a whole number of at least 1",
        ),
        (
            {"path": "x", "maxRowsPerTrigger": "1", "maxbytespertrigger": "1"},
            "give maxRowsPerTrigger or maxBytesPerTrigger, not both",
        ),
    ],
)
def test_a_wrong_option_of_a_stream_is_refused_with_what_is_right(options, words):
    with pytest.raises(JobError, match=words):
        read_options(options, stream=True)


def test_names_of_options_are_read_in_any_case_and_lists_without_their_spaces():
    found = read_options({"PATH": "x", "Paths": "a, b", "TOPIC": "orders, tickets"}, stream=True)
    assert found.paths == ("a", "b", "x")
    assert found.topics == {"orders", "tickets"}
    assert not found.skip
    assert set(BATCH) - set(STREAM) == {"endingOffsets", "from", "to"}


@pytest.mark.parametrize(
    ("text", "orders_0", "orders_1", "tickets_0"),
    [
        ("5", 5, 5, 5),
        ('{"orders": 5}', 5, 5, 0),
        ('{"orders": {"1": 5}}', 0, 5, 0),
        ('{"orders": {"1": 5}, "tickets": 2}', 0, 5, 2),
    ],
)
def test_queue_offsets_are_of_all_queues_of_a_topic_or_of_one_queue(text, orders_0, orders_1, tickets_0):
    ranges = read_options({"path": "x", "from": text, "to": "9"}, stream=False).ranges
    queues = [("orders", 0), ("orders", 1), ("tickets", 0)]
    assert [ranges.of(*queue) for queue in queues] == [(orders_0, 9), (orders_1, 9), (tickets_0, 9)]


def test_an_offset_document_is_read_back_and_equal_positions_have_equal_text():
    nodes = {"node-2": AT, "node-1": AT}
    text = json.dumps(document(nodes))
    assert nodes_of(json.loads(text), "the checkpoint") == nodes
    assert json.dumps(document(dict(reversed(nodes.items())))) == text
    turned = position(8192, (8072, 17), AT.log, dict(reversed(AT.numbers.items())))
    assert json.dumps(document({"node-1": turned})) == json.dumps(document({"node-1": AT}))
    assert AT.numbers == {("orders", 0): 3, ("orders", 11): 1}


def test_an_offset_document_does_not_give_the_log_id_away():
    assert b"i" * 16 not in json.dumps(document({"node-1": AT})).encode()
    assert (b"i" * 16).hex() not in json.dumps(document({"node-1": AT}))
    assert digest_of(b"i" * 16) != digest_of(b"j" * 16)


def test_counts_are_added_to_queue_offsets():
    assert added({("a", 0): 2}, [("a", 0, 3), ("b", 1, 1)]) == {("a", 0): 5, ("b", 1): 1}


def test_a_stream_with_an_older_pyspark_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delitem(sys.modules, "timerwheel.spark_jobs.delivered.stream", raising=False)
    with pytest.raises(JobError, match=r"a stream of timerwheel.delivered needs PySpark 4.2 or later"):
        DeliveredSource({"path": "x"}).streamReader(StructType())
