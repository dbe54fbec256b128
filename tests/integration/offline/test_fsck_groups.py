"""What the check says of an index whose groups are not those of the log, and of one of an earlier version."""

import shutil

import msgspec
import pytest

from tests.harness.group_log import GroupLog
from tests.harness.index_dump import replay
from timerwheel.offline.fsck import fsck
from timerwheel.state import lease_records
from timerwheel.store.index import Index

NAME = b"orders/g"


@pytest.fixture
def data(tmp_path):
    """A directory with an index, of a group that has acknowledged two stretches and holds one message."""
    log = GroupLog(tmp_path / "data", 1 << 20)
    log.group(NAME.decode())
    log.send("orders", count=9)
    for first, end in ((0, 2), (4, 6)):
        log.store(lease_records.ack(NAME, 0, first, end, log.now_ms))
    log.store(lease_records.retry(NAME, (0, 7), 2, log.now_ms, log.now_ms + 10**6, ended=True))
    log.close()
    replay(log.data, log.now_ms)
    return log.data


def change_group(data, change) -> None:
    index = Index(data / "index", 1 << 28)
    with index.write() as txn:
        [(key, raw)] = txn.items("groups")
        txn.put("groups", key, msgspec.msgpack.encode(change(*msgspec.msgpack.decode(raw))))
    index.close()


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (lambda *row: row, []),
        (lambda name, passed, _since: (name, passed), []),
        (lambda name, passed, since: (name, passed, since + 8), ["groups_differ"]),
        (lambda name, passed, since: (name, {0: passed[0][:4]}, since), ["groups_differ"]),
        (lambda name, _passed, since: (name, {0: 8}, since), ["groups_differ"]),
    ],
    ids=["same", "of an earlier version", "begun elsewhere", "acknowledged less", "a cursor behind it all"],
)
def test_an_index_has_of_a_group_what_the_log_has(data, change, codes):
    change_group(data, change)
    assert [finding.code for finding in fsck(data).findings] == codes


@pytest.fixture
def retained(tmp_path):
    """A directory whose retention dropped segments after the last commit of the index."""
    log = GroupLog(tmp_path / "data", 1_000)
    log.group(NAME.decode())
    log.send("orders", count=30)
    log.store(lease_records.ack(NAME, 0, 0, 20, log.now_ms))
    log.log.sync()
    earlier = shutil.copytree(log.data, tmp_path / "earlier")
    replay(earlier, log.now_ms)
    log.store(lease_records.ack(NAME, 0, 20, 21, log.now_ms))
    log.put("group", NAME.decode(), {"invisible_ms": 7_000})
    log.drop_before(log.log.bases[2])
    log.store(lease_records.ack(NAME, 0, 21, 22, log.now_ms))
    log.close()
    shutil.move(earlier / "index", log.data / "index")
    return log.data


@pytest.mark.parametrize(
    ("end", "codes"), [(20, []), (19, ["groups_differ"]), (21, []), (22, ["groups_differ"])], ids=str
)
def test_an_index_older_than_the_beginning_of_the_log_is_compared_where_the_log_begins(retained, end, codes):
    change_group(retained, lambda name, _passed, since: (name, {0: end}, since))
    assert [finding.code for finding in fsck(retained).findings] == codes
