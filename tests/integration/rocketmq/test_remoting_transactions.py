"""Transactions over the wire: half messages, ends that are honest or not, and checks."""

import asyncio

import orjson
import pytest

from tests.harness.remoting import Caller, Callers, Peer, bodies_in, messages_in, properties_of, remoting_of
from timerwheel.model.ids import root_of
from timerwheel.model.messages import Outgoing, State
from timerwheel.rocketmq.codes import FLAG_ONE_WAY, SYS_COMMIT, SYS_PREPARED, SYS_ROLLBACK, Call, Result
from timerwheel.rocketmq.message_ids import offset_id
from timerwheel.rocketmq.repeats import ANSWER_LATE_MS
from timerwheel.rocketmq.stored_message import Host
from timerwheel.rocketmq.translation import OF_THE_BROKER
from timerwheel.store.record import Kind, encode
from timerwheel.tokens import Scope

TIMEOUT_MS, INTERVAL_MS = 6_000, 30_000
UNDECIDED = 0


@pytest.fixture
def limits():
    return {"transaction_checks_max": 2}


async def half(peer, key="7F", topic="orders", group="payers", body=b"half", **properties):
    named = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": key} | properties
    return await peer.send(topic, body, named, f=SYS_PREPARED)


def offset_in(answer):
    """What a client takes from an offset message id."""
    return int(answer.fields["msgId"][-16:], 16)


def end_frame(peer, log_offset, how=SYS_COMMIT, *, one_way=False, **fields):
    found = {
        "producerGroup": "payers",
        "tranStateTableOffset": 0,
        "commitLogOffset": log_offset,
        "commitOrRollback": how,
        "fromTransactionCheck": "false",
        "msgId": "7F",
        "transactionId": "7F",
    }
    return peer.frame(Call.END_TRANSACTION, found | fields, flag=FLAG_ONE_WAY if one_way else 0)


async def end(peer, log_offset, how=SYS_COMMIT, **fields):
    frame = end_frame(peer, log_offset, how, **fields)
    peer.put(frame)
    return await peer.answer_to(frame)


async def beat(peer, *groups, client="client"):
    body = {"clientID": client, "producerDataSet": [{"groupName": group} for group in groups]}
    assert (await peer.ask(Call.HEARTBEAT, body=orjson.dumps(body))).code == Result.SUCCESS


async def checks(peer):
    """The checks that arrived since the last look."""
    await asyncio.sleep(0)
    peer.answer_now(peer.frame(0, {}))
    found = [frame for frame in peer.told if frame.code == Call.CHECK_TRANSACTION]
    peer.told.clear()
    return found


def opened(world):
    return [root_of(one.id) for one in world.engine.transactions.page().transactions]


async def test_a_half_message_is_consumed_once_it_is_committed(world, peer):
    answer = await half(peer, KEYS="k")
    assert answer.code == Result.SUCCESS
    assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("0", "0")
    assert answer.fields["transactionId"] == "7F"
    assert "recallHandle" not in answer.fields
    assert bodies_in(await peer.pull()) == []
    assert (await end(peer, offset_in(answer))).code == Result.SUCCESS
    [message] = messages_in(await peer.pull())
    assert message.body == b"half"
    assert (message.sys_flag, message.half_offset) == (SYS_COMMIT, offset_in(answer))
    assert message.born_host == Host("10.0.0.7", 40_001)
    shown = {"KEYS": "k", "UNIQ_KEY": "7F", "PGROUP": "payers", "TRAN_MSG": "true", **OF_THE_BROKER}
    assert properties_of(message) == shown  # a message that was not delayed shows no time of its own
    [seen] = (await world.engine.queues.read_queue("orders", 0, 0, 9)).messages
    assert "TRAN_MSG" not in seen.properties


async def test_a_half_message_that_is_rolled_back_is_never_consumed(world, peer):
    answer = await half(peer)
    assert (await end(peer, offset_in(answer), SYS_ROLLBACK)).code == Result.SUCCESS
    assert opened(world) == []
    assert (await end(peer, offset_in(answer))).code == Result.SYSTEM_ERROR
    await world.advance(INTERVAL_MS)
    assert bodies_in(await peer.pull()) == []


async def test_the_delay_counts_from_the_commit(world, peer):
    answer = await half(peer, TIMER_DELAY_MS="5000")
    await world.advance(5_500)
    await end(peer, offset_in(answer))
    await world.advance(4_999)
    assert bodies_in(await peer.pull()) == []
    await world.advance(1)
    [message] = messages_in(await peer.pull())
    assert (message.sys_flag, message.half_offset) == (SYS_COMMIT, offset_in(answer))
    assert properties_of(message)["TIMER_OUT_MS"] == str(world.clock.now_ms())


async def test_a_second_end_changes_nothing(peer):
    answer = await half(peer)
    frames = [end_frame(peer, offset_in(answer), how) for how in (SYS_COMMIT, SYS_COMMIT, SYS_ROLLBACK)]
    peer.put(*frames)
    codes = [(await peer.answer_to(frame)).code for frame in frames]
    assert codes[0] == Result.SUCCESS
    assert Result.SUCCESS not in codes[1:]
    assert (await end(peer, offset_in(answer), SYS_ROLLBACK)).code == Result.SYSTEM_ERROR
    assert bodies_in(await peer.pull()) == [b"half"]


async def test_an_end_without_an_answer_counts(world, peer):
    answer = await half(peer)
    frame = end_frame(peer, offset_in(answer), one_way=True)
    peer.put(frame)
    await world.advance(1)
    assert bodies_in(await peer.pull()) == [b"half"]
    assert peer.answer_now(frame) is None


async def test_who_does_not_know_yet_leaves_it_open(world, peer):
    answer = await half(peer)
    assert (await end(peer, offset_in(answer), UNDECIDED)).code == Result.SUCCESS
    assert opened(world) == [offset_in(answer)]


async def test_a_repeated_half_message_is_stored_once(world, remoting):
    lost, again = Peer(remoting), Peer(remoting)
    first = await half(lost)
    lost.wire.close()
    await world.advance(ANSWER_LATE_MS)
    second = await half(again)
    assert second.fields == first.fields
    assert opened(world) == [offset_in(first)]


@pytest.mark.parametrize(
    "fields",
    [
        {"producerGroup": "others"},
        {"producerGroup": ""},
        {"transactionId": "80"},
        {"commitOrRollback": 4},
        {"commitOrRollback": -8},
        {"commitLogOffset": -1},
        {"commitLogOffset": 1 << 62},
        {"commitLogOffset": 1 << 64},
        {"commitLogOffset": "first"},
        {"commitLogOffset": ""},
    ],
)
async def test_an_end_that_names_something_else_is_refused(world, peer, fields):
    answer = await half(peer)
    refused = await end(peer, offset_in(answer), **fields)
    assert refused.code == Result.SYSTEM_ERROR
    assert refused.remark
    assert opened(world) == [offset_in(answer)]


async def test_no_offset_but_that_of_a_half_message_ends_anything(world, peer):
    answer = await half(peer)
    forged = encode(
        Kind.TIMER, b"orders", b'{"TRAN_MSG":"true","PGROUP":"payers"}', b"x", 1, 253_370_764_800_000, 1
    )
    plain = await peer.send(body=bytes(-len(forged) % 8) + forged)
    waiting = await peer.send(properties={"TIMER_DELAY_MS": "5000", "PGROUP": "payers"})
    tail = world.engine.core.log.tail
    for log_offset in range(tail + 16):
        if log_offset != offset_in(answer):
            assert (await end(peer, log_offset, transactionId="")).code == Result.SYSTEM_ERROR
    assert world.engine.core.log.tail == tail
    assert opened(world) == [offset_in(answer)]
    assert offset_in(plain) != offset_in(waiting)


async def test_a_transaction_of_http_is_not_ended_by_a_producer(world, peer):
    begun = await world.engine.transactions.begin(Outgoing("orders", b"http"))
    for group in ("", "payers"):
        refused = await end(peer, root_of(begun.id), producerGroup=group, transactionId="")
        assert refused.code == Result.SYSTEM_ERROR
    assert opened(world) == [root_of(begun.id)]


async def test_an_end_needs_the_right_to_send_to_the_topic(world):
    callers = Callers(
        all=Caller(*Scope),
        reader=Caller(Scope.RECEIVE),
        other=Caller(Scope.SEND, topics=("invoices",)),
        sender=Caller(Scope.SEND, topics=("orders",)),
    )
    remoting = remoting_of(await world.open(), callers)
    begun = await half(Peer(remoting, "all"))
    for token, code in (("reader", Result.NO_PERMISSION), ("other", Result.SYSTEM_ERROR)):
        assert (await end(Peer(remoting, token), offset_in(begun))).code == code
        assert opened(world) == [offset_in(begun)]
    assert (await half(Peer(remoting, "other"), "80")).code == Result.NO_PERMISSION
    assert (await end(Peer(remoting, "sender"), offset_in(begun))).code == Result.SUCCESS


async def test_a_producer_of_the_group_is_asked_with_the_message(world, peer):
    await beat(peer, "payers")
    answer = await half(peer, KEYS="k")
    await world.advance(TIMEOUT_MS)
    [check] = await checks(peer)
    log_offset = offset_in(answer)
    assert check.flag == FLAG_ONE_WAY
    assert check.fields == {
        "topic": "orders",
        "tranStateTableOffset": "0",
        "commitLogOffset": str(log_offset),
        "msgId": "7F",
        "transactionId": "7F",
        "offsetMsgId": offset_id(Host("127.0.0.1", 9876), log_offset),
    }
    [message] = messages_in(check)
    assert (message.body, message.log_offset, message.sys_flag) == (b"half", log_offset, SYS_PREPARED)
    properties = properties_of(message)
    assert (properties["PGROUP"], properties["UNIQ_KEY"], properties["KEYS"]) == ("payers", "7F", "k")
    assert properties["TRANSACTION_CHECK_TIMES"] == "1"
    named = {name: check.fields[name] for name in ("transactionId", "msgId", "tranStateTableOffset")}
    assert (await end(peer, check.fields["commitLogOffset"], **named)).code == Result.SUCCESS
    await world.advance(INTERVAL_MS)
    assert await checks(peer) == []


async def test_the_producers_of_a_group_are_asked_in_turn(world, remoting):
    peers = [Peer(remoting) for _ in range(3)]
    for number, peer in enumerate(peers[:2]):
        await beat(peer, "payers", "refunders", client=f"client-{number}")
    await beat(peers[2], "refunders", client="client-2")
    for number in range(4):
        await half(peers[2], f"{number}")
    await world.advance(TIMEOUT_MS)
    assert [len(await checks(peer)) for peer in peers] == [2, 2, 0]


async def test_a_check_does_not_count_until_a_producer_is_there(world, remoting):
    gone, back = Peer(remoting), Peer(remoting)
    await beat(gone, "payers")
    answer = await half(gone)
    gone.wire.close()
    await world.advance(TIMEOUT_MS)
    for _ in range(5):
        await world.advance(INTERVAL_MS)
    assert opened(world) == [offset_in(answer)]
    await beat(back, "payers")
    for _ in range(2):
        await world.advance(INTERVAL_MS)
        assert len(await checks(back)) == 1
    await world.advance(INTERVAL_MS)  # asked twice without an answer, which is the limit here
    assert opened(world) == []


async def test_who_left_the_group_is_not_asked(world, peer):
    await beat(peer, "payers", client="one")
    answer = await half(peer)
    left = await peer.ask(Call.UNREGISTER, {"clientID": "one", "producerGroup": "payers"})
    assert left.code == Result.SUCCESS
    await world.advance(TIMEOUT_MS)
    assert await checks(peer) == []
    assert opened(world) == [offset_in(answer)]


async def test_a_client_that_reconnects_is_asked_over_its_new_connection(world, remoting):
    old, new = Peer(remoting), Peer(remoting)
    await beat(old, "payers")
    await beat(new, "payers")
    old.wire.close()
    await half(new)
    await world.advance(TIMEOUT_MS)
    assert (len(await checks(old)), len(await checks(new))) == (0, 1)


async def test_a_producer_that_does_not_read_is_not_asked(world, peer):
    await beat(peer, "payers")
    await half(peer)
    peer.connection.pause_writing()
    await world.advance(TIMEOUT_MS)
    assert await checks(peer) == []
    peer.connection.resume_writing()
    await world.advance(INTERVAL_MS)
    assert len(await checks(peer)) == 1


async def test_only_who_may_send_to_the_topic_is_shown_its_half_messages(world):
    callers = Callers(
        all=Caller(*Scope), reader=Caller(Scope.RECEIVE), other=Caller(Scope.SEND, topics=("invoices",))
    )
    for name, caller in callers.known.items():
        caller.name = name
    remoting = remoting_of(await world.open(), callers)
    curious = [Peer(remoting, token) for token in ("reader", "other")]
    sender = Peer(remoting, "all")
    for peer in curious:
        await beat(peer, "payers")
    await half(sender)
    await world.advance(TIMEOUT_MS)
    assert [len(await checks(peer)) for peer in curious] == [0, 0]
    for peer in (sender, *curious):  # under one client id, which takes nobody's place
        await beat(peer, "payers")
    await world.advance(INTERVAL_MS)
    assert [len(await checks(peer)) for peer in (sender, *curious)] == [1, 0, 0]


@pytest.mark.parametrize("how", ["restart", "crash", "lose_index"])
async def test_an_open_transaction_is_ended_after_a_start(world, peer, how):
    committed, asked = await half(peer, "1"), await half(peer, "2", TIMER_DELAY_MS="1000")
    peer = Peer(remoting_of(await getattr(world, how)()))
    await beat(peer, "payers")
    assert (await end(peer, offset_in(committed), transactionId="1")).code == Result.SUCCESS
    [message] = messages_in(await peer.pull())
    assert (properties_of(message)["UNIQ_KEY"], message.sys_flag) == ("1", SYS_COMMIT)
    await world.advance(TIMEOUT_MS)
    [check] = await checks(peer)
    assert check.fields["commitLogOffset"] == str(offset_in(asked))


async def test_a_committed_message_that_is_retried_stays_a_message(world, peer):
    await end(peer, offset_in(await half(peer)))
    [message] = messages_in(await peer.pull())
    back = {"offset": message.log_offset, "group": "readers", "delayLevel": 1}
    assert (await peer.ask(Call.SEND_BACK, back)).code == Result.SUCCESS
    shown = properties_of(message) | {"RETRY_TOPIC": "orders", "DELAY": "1"}
    assert (await peer.send("%RETRY%readers", b"half", shown, f=SYS_PREPARED, j=1)).code == Result.SUCCESS
    await world.advance(1_000)
    copies = messages_in(await peer.pull("%RETRY%readers"))
    assert [(copy.body, copy.sys_flag, copy.half_offset) for copy in copies] == [(b"half", SYS_COMMIT, 0)] * 2
    assert opened(world) == []


async def test_a_commit_that_the_disk_has_no_room_for_is_asked_for_again(world, peer):
    await beat(peer, "payers")
    answer = await half(peer)
    world.files.space_bytes = 0
    assert (await end(peer, offset_in(answer))).code == Result.NOT_AVAILABLE
    world.files.space_bytes = 1 << 40
    await world.advance(TIMEOUT_MS)
    assert len(await checks(peer)) == 1
    assert (await end(peer, offset_in(answer))).code == Result.SUCCESS


async def test_a_half_message_is_refused_like_a_send(world, peer):
    assert (await half(peer, DELAY="x")).code == Result.MESSAGE_ILLEGAL
    assert (await half(peer, topic="%DLQ%g")).code == Result.NO_PERMISSION
    assert opened(world) == []
    answer = await half(peer)  # a refused one is not taken for the first of a repeat
    assert (
        await world.engine.messages.get(world.engine.transactions.page().transactions[0].id)
    ).state is State.SCHEDULED
    assert opened(world) == [offset_in(answer)]
