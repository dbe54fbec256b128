import pytest

from tests.harness.remoting import Caller, Callers, Peer, bodies_in, messages_in, properties_of, remoting_of
from timerwheel.groups.config import GroupConfig
from timerwheel.model.messages import Outgoing
from timerwheel.rocketmq.codes import PULL_COMMIT, PULL_SUBSCRIPTION, Call, Result
from timerwheel.rocketmq.message_ids import offset_id
from timerwheel.store.record import Kind, encode
from timerwheel.tokens import Scope

RETRY, DEAD = "%RETRY%readers", "%DLQ%readers"
LEVEL_3_MS = 10_000


async def sent(peer, body=b"poison", **named):
    """A message as a consumer gets it."""
    await peer.send(body=body, properties={"UNIQ_KEY": "7F", "KEYS": "k"}, **named)
    return messages_in(await peer.pull())[-1]


async def send_back(peer, message, **fields):
    found = {"offset": message.log_offset, "group": "readers", "delayLevel": 0, "maxReconsumeTimes": 16}
    return await peer.ask(Call.SEND_BACK, found | fields)


async def test_a_message_comes_back_to_its_group_after_a_delay(world, peer):
    message = await sent(peer, h=9, g=5)
    assert (await send_back(peer, message)).code == Result.SUCCESS
    await world.advance(LEVEL_3_MS - 1)
    assert bodies_in(await peer.pull(RETRY)) == []
    await world.advance(1)
    [again] = messages_in(await peer.pull(RETRY))
    assert (again.body, again.consumed_before, again.flag, again.born_ms) == (b"poison", 1, 9, 5)
    properties = properties_of(again)
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["ORIGIN_MESSAGE_ID"] == offset_id(message.store_host, message.log_offset)
    assert (properties["UNIQ_KEY"], properties["KEYS"], properties["DELAY"]) == ("7F", "k", "3")


async def test_each_try_waits_longer_and_the_last_is_a_dead_letter(world, peer):
    message = await sent(peer)
    for tries, (level, delay_ms) in enumerate(((3, 10_000), (4, 30_000))):
        assert (await send_back(peer, message, maxReconsumeTimes=2)).code == Result.SUCCESS
        await world.advance(delay_ms)
        [message] = messages_in(await peer.pull(RETRY, tries))
        assert properties_of(message)["DELAY"] == str(level)
    assert message.consumed_before == 2
    assert (await send_back(peer, message, maxReconsumeTimes=2)).code == Result.SUCCESS
    [letter] = messages_in(await peer.pull(DEAD))
    assert (letter.body, properties_of(letter)["UNIQ_KEY"]) == (b"poison", "7F")
    [first] = (await world.engine.queues.read_queue("orders", 0, 0, 9)).messages
    [seen] = (await world.engine.groups.dead.page("readers")).letters
    assert (seen.origin_topic, seen.origin_id, seen.attempts) == ("orders", first.id, 3)
    assert seen.reason == "consumed 3 times without success"


@pytest.mark.parametrize(("level", "delay_ms"), [(1, 1_000), (99, 7_200_000), (2**31 - 1, 7_200_000)])
async def test_a_consumer_may_name_the_delay_level(world, peer, level, delay_ms):
    message = await sent(peer)
    await send_back(peer, message, delayLevel=level)
    await world.advance(delay_ms - 1)
    assert bodies_in(await peer.pull(RETRY)) == []
    await world.advance(1)
    assert bodies_in(await peer.pull(RETRY)) == [b"poison"]


async def test_a_negative_level_gives_a_message_up(peer):
    message = await sent(peer)
    await send_back(peer, message, delayLevel=-1)
    assert bodies_in(await peer.pull(DEAD)) == [b"poison"]


async def test_a_dead_letter_that_is_redriven_comes_back_with_all_its_tries(world, peer):
    message = await sent(peer)
    await send_back(peer, message, delayLevel=-1)
    await world.engine.groups.dead.redrive("readers")
    [again] = messages_in(await peer.pull(RETRY))
    assert (again.body, again.consumed_before) == (b"poison", 0)


async def test_a_group_that_leases_has_no_retries_over_remoting(world, peer):
    message = await sent(peer)
    await world.engine.groups.put("orders", "readers", GroupConfig())
    assert (await send_back(peer, message)).code == Result.NO_PERMISSION


@pytest.mark.parametrize("origin", ["bills", "no topic", "%RETRY%others"])
async def test_where_a_message_comes_back_to_is_not_for_its_sender_to_say(world, origin):
    callers = Callers(sender=Caller(Scope.SEND), reader=Caller(Scope.RECEIVE, topics=("orders",)))
    remoting = remoting_of(await world.open(), callers)
    await Peer(remoting, "sender").send(properties={"RETRY_TOPIC": origin, "ORIGIN_MESSAGE_ID": "00"})
    reader = Peer(remoting, "reader")
    [message] = messages_in(await reader.pull())
    assert (await send_back(reader, message, delayLevel=1)).code == Result.SUCCESS
    await world.advance(1_000)
    [again] = messages_in(await reader.pull(RETRY))
    properties = properties_of(again)
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["ORIGIN_MESSAGE_ID"] == offset_id(message.store_host, message.log_offset)
    assert (await send_back(reader, again, delayLevel=1)).code == Result.SUCCESS
    await world.advance(1_000)
    [once_more] = messages_in(await reader.pull(RETRY, 1))
    assert (
        properties_of(once_more).items()
        >= {name: properties[name] for name in ("RETRY_TOPIC", "ORIGIN_MESSAGE_ID")}.items()
    )


@pytest.mark.parametrize("tries_max", [-1, -7])
async def test_a_negative_number_of_tries_means_the_usual_one(world, peer, tries_max):
    message = await sent(peer, j=15)
    assert (await send_back(peer, message, maxReconsumeTimes=tries_max)).code == Result.SUCCESS
    await world.advance(7_200_000)
    [again] = messages_in(await peer.pull(RETRY))
    assert (await send_back(peer, again, maxReconsumeTimes=tries_max)).code == Result.SUCCESS
    assert bodies_in(await peer.pull(DEAD)) == [b"poison"]


# ---------------------------------------------------------------------- what a consumer sends itself


def retry_properties(**more):
    return {"RETRY_TOPIC": "orders", "UNIQ_KEY": "7F"} | more


async def test_a_consumer_may_send_to_its_retry_topic_itself(world, peer):
    answer = await peer.send(RETRY, b"again", retry_properties(DELAY="4"), j=2, l=16)
    assert answer.code == Result.SUCCESS
    await world.advance(30_000)
    [again] = messages_in(await peer.pull(RETRY))
    assert (again.body, again.consumed_before) == (b"again", 2)


@pytest.mark.parametrize("properties", [{}, {"DELAY": "2003"}])
async def test_a_consumer_may_try_as_often_as_it_likes(world, peer, properties):
    answer = await peer.send(RETRY, b"again", retry_properties(**properties), j=2_000, l=3_000)
    assert answer.code == Result.SUCCESS
    await world.advance(7_200_000)
    assert [one.consumed_before for one in messages_in(await peer.pull(RETRY))] == [2_000]


async def test_after_the_last_try_such_a_message_is_a_dead_letter(peer):
    await peer.send(RETRY, b"again", retry_properties(), j=3, l=2)
    [dead] = messages_in(await peer.pull(DEAD))
    assert dead.body == b"again"
    assert properties_of(dead)["DLQ_ATTEMPTS"] == "3"  # what the client says counts the last one


async def test_an_orderly_group_gives_up_what_it_sends_back(world, peer):
    queue = b'{"topic":"orders","brokerName":"b","queueId":0}'
    body = b'{"consumerGroup":"readers","clientId":"one","mqSet":[%s]}' % queue
    await peer.ask(Call.LOCK_QUEUES, body=body)
    await peer.send(RETRY, b"again", retry_properties(), j=1, l=16)
    assert bodies_in(await peer.pull(DEAD)) == [b"again"]
    await world.advance(60_000)
    await peer.send(RETRY, b"later", retry_properties(DELAY="1"), j=1, l=16)
    await world.advance(1_000)
    assert bodies_in(await peer.pull(RETRY)) == [b"later"]


async def test_a_message_without_an_origin_is_no_retry(peer):
    assert (await peer.send(RETRY, b"free")).code == Result.NO_PERMISSION


# ---------------------------------------------------------------------- offsets that clients name


async def view(peer, offset):
    return await peer.ask(Call.VIEW_MESSAGE, {"offset": offset})


async def test_a_message_is_found_by_its_offset(peer):
    message = await sent(peer)
    assert messages_in(await view(peer, message.log_offset)) == [message]


async def test_the_offset_of_a_timer_leads_to_the_message_that_it_became(world, peer):
    answer = await peer.send(body=b"later", properties={"TIMER_DELAY_MS": "1000", "UNIQ_KEY": "7F"})
    offset = int(answer.fields["msgId"][-16:], 16)
    assert bodies_in(await view(peer, offset)) == [b"later"]
    await world.advance(1_000)
    [message] = messages_in(await view(peer, offset))
    assert message == messages_in(await peer.pull())[0]
    assert message.log_offset != offset


async def test_offsets_of_anything_else_are_refused(world, peer):
    message = await sent(peer)
    await peer.ask(
        Call.UPDATE_OFFSET, {"consumerGroup": "r", "topic": "orders", "queueId": 0, "commitOffset": 1}
    )
    await world.engine.groups.offsets.flush()
    forged = encode(Kind.MESSAGE, b"orders", b"", b"forged", 1, 1, 1)
    timer = encode(Kind.TIMER, b"unheard", b"", b"forged", 1, 2**60, 1)
    for inner in (forged, timer):
        for shift in range(8):
            await peer.send(body=bytes(shift) + inner)
    assert bodies_in(await view(peer, message.log_offset)) == [b"poison"]
    found = set()
    for offset in range(world.engine.core.log.tail + 16):
        for answer in (await view(peer, offset), await send_back(peer, message, offset=offset, group="g")):
            assert answer.code in (Result.SUCCESS, Result.SYSTEM_ERROR)
        seen = await view(peer, offset)
        found |= set(bodies_in(seen)) if seen.code == Result.SUCCESS else set()
    assert b"forged" not in found
    for offset in (-1, 2**63 - 1, "x", 2**64):
        assert (await view(peer, offset)).code == Result.SYSTEM_ERROR


async def test_retries_and_look_ups_need_the_right_to_read_the_topic(world):
    callers = Callers(
        all=Caller(*Scope),
        reader=Caller(Scope.RECEIVE, topics=("orders",)),
        other=Caller(Scope.RECEIVE, topics=("bills",)),
        sender=Caller(Scope.SEND),
    )
    remoting = remoting_of(await world.open(), callers)
    message = await sent(Peer(remoting, "all"))
    for token in ("other", "sender"):
        stranger = Peer(remoting, token)
        assert (await send_back(stranger, message)).code == Result.NO_PERMISSION
        assert (await view(stranger, message.log_offset)).code == Result.NO_PERMISSION
        assert (await stranger.send(RETRY, b"x", retry_properties())).code == Result.NO_PERMISSION
    reader = Peer(remoting, "reader")
    assert (await send_back(reader, message, delayLevel=1)).code == Result.SUCCESS
    await world.advance(1_000)
    assert bodies_in(await reader.pull(RETRY)) == [b"poison"]
    hidden = await Peer(remoting, "other").pull(RETRY)
    assert (hidden.code, hidden.body) == (Result.PULL_RETRY_NOW, b"")


async def test_a_message_of_http_can_be_sent_back(world, peer):
    [receipt] = await world.engine.sender.send([Outgoing("orders", b"http", {"TAGS": "a"})])
    [message] = messages_in(await peer.pull())
    await send_back(peer, message, delayLevel=1)
    await world.advance(1_000)
    [again] = messages_in(await peer.pull(RETRY))
    assert properties_of(again)["UNIQ_KEY"] == receipt.id
    assert properties_of(again)["TAGS"] == "a"


async def test_nobody_moves_a_group_beyond_retries_that_it_may_not_see(world):
    callers = Callers(
        all=Caller(*Scope),
        orders=Caller(Scope.RECEIVE, topics=("orders",)),
        bills=Caller(Scope.RECEIVE, topics=("bills", RETRY)),  # as a pattern may match
    )
    remoting = remoting_of(await world.open(), callers)
    every, of_orders, of_bills = (Peer(remoting, token) for token in ("all", "orders", "bills"))
    for topic in ("orders", "orders", "bills", "orders"):
        await every.send(topic)
        await every.send(RETRY, b"again", {"RETRY_TOPIC": topic, "DELAY": "1"})
    await world.advance(1_000)

    async def committed(peer, offset, *, with_pull):
        place = {"consumerGroup": "readers", "topic": RETRY, "queueId": 0}
        if with_pull:
            await peer.pull(RETRY, 0, sysFlag=PULL_COMMIT | PULL_SUBSCRIPTION, commitOffset=offset)
        else:
            await peer.ask(Call.UPDATE_OFFSET, place | {"commitOffset": offset})
        return int((await every.ask(Call.QUERY_OFFSET, place)).fields["offset"])

    bill = await of_bills.pull(RETRY)
    assert [properties_of(one)["RETRY_TOPIC"] for one in messages_in(bill)] == ["bills"]
    for with_pull in (False, True):
        assert await committed(every, 0, with_pull=False) == 0
        assert await committed(of_bills, 4, with_pull=with_pull) == 0
        assert await committed(of_orders, 4, with_pull=with_pull) == 2
        assert await committed(of_orders, 1, with_pull=with_pull) == 2
        assert await committed(of_bills, 4, with_pull=with_pull) == 3
        assert await committed(of_orders, 4, with_pull=with_pull) == 4
