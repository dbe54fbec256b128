"""Queries of messages by key: what clients and mqadmin ask for, found in the log without an index."""

import pytest

from tests.harness.remoting import Caller, Callers, Peer, bodies_in, messages_in, remoting_of
from timerwheel.model.ids import root_of
from timerwheel.model.messages import Outgoing
from timerwheel.rocketmq import lookups, search
from timerwheel.rocketmq.codes import Call, Result
from timerwheel.rocketmq.lookups import MESSAGES_MAX
from timerwheel.rocketmq.search import born_ms
from timerwheel.tokens import Scope

FOREVER_MS = (1 << 63) - 1


async def store(world, *bodies, topic="orders", **properties):
    return await world.engine.sender.send([Outgoing(topic, body, dict(properties)) for body in bodies])


async def query(peer, key, topic="orders", *, unique=False, **fields):
    found = {"topic": topic, "key": key, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": FOREVER_MS}
    if unique:
        found["_UNIQUE_KEY_QUERY"] = "true"
    return await peer.ask(Call.QUERY_MESSAGE, found | fields)


async def test_messages_are_found_by_one_of_their_keys(world, peer):
    await store(world, b"a", KEYS="red blue")
    await store(world, b"b", KEYS="blue")
    await store(world, b"c", KEYS="bluebird")
    await store(world, b"d", KEYS="blue", topic="others")
    await store(world, b"blue in its body", KEYS="x", note="blue")
    answer = await query(peer, "blue")
    assert (answer.code, bodies_in(answer)) == (Result.SUCCESS, [b"a", b"b"])
    assert int(answer.fields["indexLastUpdatePhyoffset"]) == world.engine.core.log.tail
    assert int(answer.fields["indexLastUpdateTimestamp"]) == world.clock.now_ms()
    assert [one.queue_offset for one in messages_in(answer)] == [0, 1]
    assert bodies_in(await query(peer, "red")) == [b"a"]


@pytest.mark.parametrize("key", ['say "hi"', "back\\slash", "schlüssel", "日"])
async def test_a_key_may_have_any_characters(world, peer, key):
    name = "UNIQ_KEY"
    await store(world, b"a", **{name: key})
    assert bodies_in(await query(peer, key, unique=True)) == [b"a"]


async def test_a_message_is_found_by_its_unique_key_wherever_it_is(world, peer):
    key = "7F0000011092776C7D8C94C4E0D80001"
    await peer.send(body=b"later", properties={"UNIQ_KEY": key, "TIMER_DELAY_MS": "5000"})
    [waiting] = messages_in(await query(peer, key, unique=True))
    assert waiting.body == b"later"
    await world.advance(5_000)
    [delivered] = messages_in(await query(peer, key, unique=True))
    [pulled] = messages_in(await peer.pull())
    assert delivered == pulled


async def test_a_message_that_is_never_delivered_is_not_found(world, peer):
    [receipt] = await store(world, b"recalled", KEYS="k", TIMER_DELAY_MS="5000")
    await world.engine.recalls.recall(receipt.id)
    half = await peer.send(body=b"half", properties={"KEYS": "k", "TRAN_MSG": "true", "UNIQ_KEY": "7F"})
    answer = await query(peer, "k")
    assert (answer.code, answer.remark) == (Result.QUERY_NOT_FOUND, "no message has this key")
    place = int(half.fields["msgId"][16:], 16)
    for offset in (root_of(receipt.id), place):  # nor by its place
        viewed = await peer.ask(Call.VIEW_MESSAGE, {"offset": offset})
        assert (viewed.code, viewed.body) == (Result.SYSTEM_ERROR, b"")
    fields = {"producerGroup": "producers", "tranStateTableOffset": 0, "commitLogOffset": place}
    await peer.ask(Call.END_TRANSACTION, fields | {"commitOrRollback": 8})
    assert bodies_in(await query(peer, "k")) == [b"half"]
    assert bodies_in(await peer.ask(Call.VIEW_MESSAGE, {"offset": place})) == [b"half"]


async def test_a_unique_key_finds_the_first_message_that_is_not_recalled(world, peer):
    [receipt] = await store(world, b"recalled", UNIQ_KEY="u", TIMER_DELAY_MS="5000")
    await world.engine.recalls.recall(receipt.id)
    await store(world, b"first", b"second", UNIQ_KEY="u")
    assert bodies_in(await query(peer, "u", unique=True)) == [b"first"]


async def test_only_what_was_stored_in_the_time_asked_for_is_found(world, peer):
    for body in (b"a", b"b", b"c"):
        await store(world, body, KEYS="k")
        await world.advance(1_000)
    end_ms = world.clock.now_ms()
    within = await query(peer, "k", beginTimestamp=end_ms - 2_000, endTimestamp=end_ms - 2_000)
    assert bodies_in(within) == [b"b"]
    assert (await query(peer, "k", beginTimestamp=end_ms)).code == Result.QUERY_NOT_FOUND


async def test_keys_are_searched_from_the_newest_segment_and_unique_keys_from_their_time(world, peer):
    await store(world, b"old", KEYS="k", UNIQ_KEY="u")
    await world.roll()
    await world.advance(60_000)
    await store(world, b"new", KEYS="k", UNIQ_KEY="u")
    await world.roll()
    assert bodies_in(await query(peer, "k", maxNum=1)) == [b"new"]
    assert bodies_in(await query(peer, "u", unique=True, maxNum=1)) == [b"old"]


async def test_a_unique_key_is_searched_first_in_the_segment_of_its_time(world, monkeypatch):
    peer = Peer(remoting_of(await world.open()))
    await store(world, b"old")
    await world.roll()
    await world.advance(60_000)
    now_ms = world.clock.now_ms()
    key = "0" * 20 + f"{now_ms - born_ms('0' * 32, now_ms):08X}" + "0001"
    assert born_ms(key, now_ms) == now_ms
    await store(world, b"wanted", UNIQ_KEY=key)
    await world.roll()
    monkeypatch.setattr(search, "RECORDS_MAX", 1)  # the first segment that is read, and no other
    assert bodies_in(await query(peer, key, unique=True)) == [b"wanted"]
    unknown = await query(peer, "0" * 32, unique=True)
    assert "not all was searched" in unknown.remark


async def test_a_query_returns_no_more_than_the_most_messages(world, peer):
    await store(world, *[b"%d" % n for n in range(MESSAGES_MAX + 5)], KEYS="k")
    assert len(messages_in(await query(peer, "k", maxNum=1_000))) == MESSAGES_MAX
    assert len(messages_in(await query(peer, "k", maxNum=3))) == 3


async def test_an_answer_ends_once_it_has_the_most_bytes(world, peer, monkeypatch):
    await store(world, *[bytes(600)] * 3, KEYS="k")
    monkeypatch.setattr(lookups, "QUERY_BYTES_MAX", 1_000)
    assert len(messages_in(await query(peer, "k"))) == 2


@pytest.mark.parametrize("limit", ["RECORDS_MAX", "BYTES_MAX"])
async def test_a_search_that_was_not_finished_says_so(world, peer, monkeypatch, limit):
    await store(world, b"wanted", KEYS="k")
    await world.roll()
    await store(world, b"newer", KEYS="other")
    monkeypatch.setattr(search, limit, 1)
    answer = await query(peer, "k")
    assert (answer.code, "not all was searched" in answer.remark) == (Result.QUERY_NOT_FOUND, True)


async def test_a_search_ends_when_its_client_leaves(world, peer):
    await store(world, b"a", KEYS="k")
    asked = []

    def wanted():
        asked.append(1)
        return len(asked) < 2

    async def take(_):
        raise AssertionError("nothing matches")

    query = search.Query("orders", "none", is_unique=False, begin_ms=0, end_ms=FOREVER_MS)
    assert not await search.Search(world.engine).find(query, wanted, take)
    assert len(asked) >= 2
    assert peer.connection.takes_more


async def test_a_damaged_message_is_left_out(world, peer):
    await store(world, b"a" * 100, KEYS="k")
    await store(world, b"b", KEYS="k")
    await world.roll()
    _, positions = await world.engine.queues.positions("orders", 0, 0, 1)
    log = world.engine.core.log
    place = int(positions["offset"][0]) - log.bases[0] + 150
    world.files.names_now[str(log.path(log.bases[0]))].data[place] ^= 1
    assert bodies_in(await query(peer, "k")) == [b"b"]


async def test_a_query_needs_the_scope_and_the_topic(world):
    callers = Callers(nobody=Caller(Scope.RECEIVE, topics=("others",)), sender=Caller(Scope.SEND))
    remoting = remoting_of(await world.open(), callers)
    await store(world, b"a", KEYS="k")
    for token in ("", "sender"):
        assert (await query(Peer(remoting, token), "k")).code == Result.NO_PERMISSION


async def test_a_message_that_waits_for_its_retry_is_of_its_own_topic(world):
    callers = Callers(nobody=Caller(Scope.RECEIVE, topics=("others",)), all=Caller(*Scope))
    remoting = remoting_of(await world.open(), callers)
    owner, stranger = Peer(remoting, "all"), Peer(remoting)
    await store(world, b"a", KEYS="k")
    [message] = messages_in(await owner.pull())
    fields = {"offset": message.log_offset, "group": "readers", "delayLevel": 1, "maxReconsumeTimes": 16}
    await owner.ask(Call.SEND_BACK, fields)
    await world.advance(1_000)
    retry = "%RETRY%readers"
    [found] = messages_in(await query(owner, "k", topic=retry))
    assert (await query(stranger, "k", topic=retry)).code == Result.QUERY_NOT_FOUND
    view = {"offset": found.log_offset}
    assert bodies_in(await owner.ask(Call.VIEW_MESSAGE, view)) == [b"a"]
    assert (await stranger.ask(Call.VIEW_MESSAGE, view)).code == Result.NO_PERMISSION


async def test_an_empty_key_is_refused(world, peer):
    await store(world, b"a")
    assert (await query(peer, "")).code == Result.SYSTEM_ERROR


async def test_a_topic_without_messages_is_not_searched(peer):
    answer = await query(peer, "k", topic="never")
    assert (answer.code, "does not exist" in answer.remark) == (Result.QUERY_NOT_FOUND, True)


@pytest.mark.parametrize("key", ["", "7F", "x" * 32, "z" * 56])
def test_a_unique_key_that_says_no_time_is_searched_from_the_beginning(key):
    assert born_ms(key, 1_700_000_000_000) is None


def test_a_unique_key_says_when_its_client_made_it():
    noon_ms = 1_700_049_600_000  # 15 November 2023, 12:00 UTC
    month_ms = 1_698_796_800_000
    assert born_ms("0" * 20 + f"{noon_ms - month_ms:08X}" + "0001", noon_ms) == noon_ms
    assert born_ms("0" * 44 + f"{noon_ms - month_ms:08X}" + "0001", noon_ms) == noon_ms
    late = f"{30 * 86_400_000:08X}"  # the 31st, so of the month before
    assert born_ms("0" * 20 + late + "0001", noon_ms) == 1_696_118_400_000 + 30 * 86_400_000
