import json
import subprocess
import sys
import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.model import admission
from timerwheel.model.admission import Rules, admit
from timerwheel.model.ids import Ids, root_in, root_of, shard_in
from timerwheel.model.messages import Outgoing
from timerwheel.model.shards import (
    ALONE,
    ROOT_MASK,
    SHARED_PREFIXES,
    SHARED_TOPICS,
    TASK_PREFIXES,
    Shard,
    is_shared,
    log_id_of,
    shard_of_log,
    shard_of_topic,
)
from timerwheel.settings import SHARDS_MAX, Settings

TOPICS = st.from_regex(r"[A-Za-z0-9_%|-]{1,127}", fullmatch=True)
SHARDS = st.integers(2, SHARDS_MAX).flatmap(
    lambda count: st.integers(0, count - 1).map(lambda number: Shard(number, count))
)
RANDOM = st.binary(min_size=16, max_size=16)


@given(TOPICS, st.integers(1, SHARDS_MAX))
def test_a_topic_is_held_by_exactly_one_shard_or_by_all(topic, count):
    held = [number for number in range(count) if Shard(number, count).holds(topic)]
    if is_shared(topic):
        assert held == list(range(count))
    else:
        assert held == [shard_of_topic(topic, count)]


def test_the_shard_of_a_topic_is_the_same_in_every_process():
    topics = ["orders", "a", "b", "c", "invoices", "%RETRY%x", "%DLQ%g"]
    code = (
        "import sys, json; from timerwheel.model.shards import shard_of_topic as s; "
        "print(json.dumps([s(t, 3) for t in json.loads(sys.argv[1])]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(topics)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [shard_of_topic(topic, 3) for topic in topics]
    assert [shard_of_topic(topic, 3) for topic in topics] == [2, 0, 2, 0, 1, None, None]  # for ever


def test_topics_spread_over_the_shards():
    counts = np.bincount([shard_of_topic(f"tenant-{number}", 4) for number in range(4000)], minlength=4)
    assert counts.min() > 800


@given(SHARDS, RANDOM)
def test_a_log_knows_its_shard(shard, random):
    assert shard_of_log(log_id_of(shard, random)) == shard
    assert uuid.UUID(bytes=log_id_of(shard, random)).version == 8


@given(RANDOM)
def test_a_log_without_shards_is_alone_and_its_id_is_a_usual_one(random):
    log_id = log_id_of(ALONE, random)
    assert shard_of_log(log_id) == ALONE
    assert uuid.UUID(bytes=log_id).version == 4
    assert shard_of_log(uuid.uuid4().bytes) == ALONE
    assert log_id_of(ALONE, log_id) == log_id


@given(SHARDS, RANDOM, st.lists(st.tuples(st.integers(0, ROOT_MASK), st.integers(0, 2**32 - 1)), min_size=1))
def test_an_id_names_its_shard_and_comes_out_the_same_however_it_is_made(shard, random, pairs):
    ids = Ids(log_id_of(shard, random))
    roots, crcs = zip(*pairs, strict=True)
    singly = [ids.encode(root, crc) for root, crc in pairs]
    assert ids.encode_each(roots, crcs) == singly
    assert ids.encode_many(np.array(roots, np.uint64), np.array(crcs, np.uint32)) == "".join(singly)
    assert [shard_in(one) for one in singly] == [shard.number] * len(pairs)
    assert [root_of(one) for one in singly] == list(roots)


@pytest.mark.parametrize("text", ["", "0" * 23, "x" * 24, "A" * 24])
def test_text_that_is_no_id_has_no_shard_and_no_root(text):
    assert shard_in(text) is None
    assert root_in(text) is None


def test_the_topics_of_every_shard_are_those_that_clients_cannot_send_to():
    assert SHARED_TOPICS == admission.SYSTEM_TOPICS
    assert SHARED_PREFIXES == (admission.DEAD_PREFIX, admission.RETRY_PREFIX)
    assert TASK_PREFIXES == (admission.TASK_PREFIX, admission.TASK_LOG_PREFIX)
    assert {shard_of_topic(name, 7) for name in ("%TASK%q", "%TASKLOG%q", "q")} == {shard_of_topic("q", 7)}


@given(TOPICS, SHARDS)
def test_a_shard_admits_its_own_topics_alone(topic, shard):
    rules = Rules.of(Settings(data="x"))
    in_shard = Rules(**{name: getattr(rules, name) for name in rules.__struct_fields__} | {"shard": shard})
    message = Outgoing(topic, b"")
    if not admission.is_sendable(topic):
        with pytest.raises(admission.AdmissionError) as caught:
            admit(message, 1, in_shard)
        assert caught.value.code in ("illegal_topic", "system_topic")
        return
    if shard.holds(topic):
        assert admit(message, 1, in_shard) == admit(message, 1, rules)
        return
    with pytest.raises(admission.AdmissionError) as caught:
        admit(message, 1, in_shard)
    assert caught.value.code == "wrong_shard"
    assert f"shard {shard_of_topic(topic, shard.of)} of {shard.of}" in str(caught.value)
