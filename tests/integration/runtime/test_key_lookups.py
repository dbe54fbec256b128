"""Look-ups of deduplication keys share reads, and each caller gets what it asked for."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from timerwheel.index import dedup
from timerwheel.runtime.key_lookups import SHARED_MAX, KeyLookups
from timerwheel.runtime.threads import Threads
from timerwheel.state.dedup_key import KeyEntry, digest_of
from timerwheel.state.key_columns import NewKeys
from timerwheel.store.errors import IndexDamagedError
from timerwheel.store.index import TABLES, Index

KNOWN = 2 * SHARED_MAX
MAP_BYTES = 1 << 26


class CountedThreads(Threads):
    """Counts the reads."""

    reads = 0

    async def read(self, call, *args):
        self.reads += 1
        return await super().read(call, *args)


def digest(number: int) -> bytes:
    return digest_of("orders", str(number))


def entry(number: int) -> KeyEntry:
    return KeyEntry(number, number % 97, bytes(16), number * 3)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """Has the keys 0 to KNOWN - 1."""
    index = Index(tmp_path / "index", MAP_BYTES)
    keys = NewKeys()
    keys.put({digest(number): entry(number) for number in range(KNOWN)})
    with index.write() as txn:
        dedup.put(txn, keys, 1)
    yield index
    index.close()


@pytest.fixture
def threads() -> Iterator[CountedThreads]:
    threads = CountedThreads()
    yield threads
    threads.close()


async def test_callers_of_a_moment_share_reads_and_get_their_own_keys(index, threads):
    lookups = KeyLookups(index, threads)
    wanted = [[number, number + 1, KNOWN + number] for number in range(KNOWN - 1)]
    found = await asyncio.gather(*(lookups.find([digest(one) for one in numbers]) for numbers in wanted))
    assert found == [{digest(one): entry(one) for one in numbers[:2]} for numbers in wanted]
    assert threads.reads == 2  # the first caller's, and one of all who came meanwhile


async def test_many_keys_are_read_by_themselves(index, threads):
    lookups = KeyLookups(index, threads)
    many = [digest(number) for number in range(SHARED_MAX + 1)]
    found, few = await asyncio.gather(lookups.find(many), lookups.find(many[:1]))
    assert found == {digest(number): entry(number) for number in range(SHARED_MAX + 1)}
    assert few == {many[0]: entry(0)}
    assert threads.reads == 2


async def test_a_caller_that_leaves_takes_no_answer_from_others(index, threads):
    lookups = KeyLookups(index, threads)
    callers = [asyncio.ensure_future(lookups.find([digest(number)])) for number in range(6)]
    await asyncio.sleep(0)
    callers[0].cancel()
    callers[3].cancel()
    found = await asyncio.gather(*callers, return_exceptions=True)
    gone = {number for number, one in enumerate(found) if isinstance(one, asyncio.CancelledError)}
    assert gone == {0, 3}
    assert all(found[number] == {digest(number): entry(number)} for number in (1, 2, 4, 5))
    assert await lookups.find([digest(0)]) == {digest(0): entry(0)}


async def test_a_read_that_fails_is_told_to_all_who_share_it_and_the_next_one_works(index, threads, tmp_path):
    index.close()
    with lmdb.open(str(tmp_path / "index"), max_dbs=len(TABLES)) as env:
        table = env.open_db(dedup.TABLE.encode())
        with env.begin(write=True, db=table) as txn:
            txn.put(digest(1), bytes(len(txn.get(digest(1)))))
    opened = Index(tmp_path / "index", MAP_BYTES)
    lookups = KeyLookups(opened, threads)
    found = await asyncio.gather(
        *(lookups.find([digest(number)]) for number in range(3)), return_exceptions=True
    )
    assert found[0] == {digest(0): entry(0)}
    assert [type(one) for one in found[1:]] == [IndexDamagedError] * 2
    assert await lookups.find([digest(2)]) == {digest(2): entry(2)}
    opened.close()
