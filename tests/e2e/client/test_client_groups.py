"""Consumer groups through `timerwheel.client` against the real service."""

import asyncio
import datetime as dt

import aiohttp
import pytest

from timerwheel.client import (
    Client,
    ClientError,
    ConflictError,
    Exponential,
    GroupConfig,
    LeaseEndedError,
    NotFoundError,
)

AT_ONCE = Exponential(initial_ms=0)
CALLS = ("/receive", "/ack")


@pytest.fixture
async def service(start_service):
    return await start_service(redelivery_delay_ms=0)


@pytest.fixture
async def client(service):
    async with Client(str(service.url)) as client:
        yield client


@pytest.fixture
async def group(client):
    """A group whose messages come again at once, at most three times."""
    group = client.group("t", "g")
    await group.put(GroupConfig(max_attempts=3, backoff=AT_ONCE))
    return group


async def _send(client, *texts, **options):
    await client.send_many([{"topic": "t", "body": text, **options} for text in texts])


async def _dead(client):
    return [letter async for letter in client.dead_letters("g").all()]


# ---------------------------------------------------------------------- one call each


async def test_a_message_is_received_with_a_receipt_and_after_its_ack_never_again(client, group):
    await _send(client, "one", "two")
    first, second = await group.receive(10)
    assert (first.text, first.attempt, second.text) == ("one", 1, "two")
    assert first.invisible_until_ms >= first.delivered_ms + 30_000
    assert [result.ok for result in await group.ack([first.receipt, second.receipt])] == [True, True]
    assert await group.receive(10) == []
    info = await group.info()
    assert (info.lag, info.in_flight) == (0, 0)


async def test_results_say_which_receipts_are_not_good(client, group):
    await _send(client, "one")
    [message] = await group.receive()
    results = await group.nack([message.receipt, "nonsense"])
    assert [(result.ok, result.code) for result in results] == [(True, None), (False, "illegal_receipt")]
    [again] = await group.receive(wait_ms=20_000)
    assert again.attempt == 2
    [ended] = await group.extend([message.receipt], 1000)
    assert (ended.ok, ended.code) == (False, "receipt_ended")


async def test_one_call_acknowledges_and_receives_what_is_next(client, group):
    await _send(client, "one", "two")
    [first] = await group.receive()
    answer = await group.ack_and_receive([first.receipt, "nonsense"], 10)
    assert [message.text for message in answer.messages] == ["two"]
    assert [(result.ok, result.code) for result in answer.results] == [
        (True, None),
        (False, "illegal_receipt"),
    ]
    assert (await group.info()).in_flight == 1


async def test_a_group_is_made_changed_listed_rewound_and_deleted(client, group):
    await _send(client, "one", "two", "three")
    assert len(await group.receive(10)) == 3
    assert [(info.topic, info.group) for info in await client.groups()] == [("t", "g")]
    assert await client.groups("other") == []
    assert (await group.rewind(offsets={0: 2})).lag == 1
    assert [message.text for message in await group.receive(10)] == ["three"]
    assert (await group.rewind(to="head")).lag == 3
    assert (await group.rewind(time_ms=0)).lag == 3
    assert (await group.rewind(time="2100-01-01T00:00:00Z")).lag == 0
    changed = await group.put(GroupConfig(tags="a || b"))
    assert changed.config["tags"] == "a || b"
    with pytest.raises(ConflictError) as caught:
        await group.receive(tags="c")
    assert caught.value.code == "group_differs"
    assert (await group.delete()).group == "g"
    with pytest.raises(NotFoundError) as caught:
        await group.info()
    assert caught.value.code == "unknown_group"


async def test_a_group_is_created_by_default_only_where_its_topic_exists_and_the_log_says_so(client, caplog):
    caplog.set_level("INFO", "timerwheel.client.group")
    typo = client.group("no-such-topic", "g")
    with pytest.raises(NotFoundError, match=r"'no-such-topic' does not exist.*create=True") as caught:
        await typo.receive()
    assert caught.value.code == "group_not_found"
    with pytest.raises(NotFoundError):
        await anext(typo.stream())
    with pytest.raises(NotFoundError):
        await typo.consume(lambda lease: lease.ack())
    assert await client.groups() == []
    assert not caplog.records
    await client.send("there", "x")
    for name, first in (("receiver", "receive"), ("streamer", "stream")):
        group = client.group("there", name)
        with pytest.raises(NotFoundError):
            await group.receive(create=False)
        if first == "receive":
            assert [message.text for message in await group.receive()] == ["x"]
        else:
            assert (await anext(group.stream())).text == "x"
        assert group.created
    assert [record.getMessage() for record in caplog.records] == [
        f"creating the missing group {name!r} of topic 'there'" for name in ("receiver", "streamer")
    ]
    assert await typo.receive(create=True) == []
    assert (await typo.info()).lag == 0


async def test_a_group_that_could_not_be_created_does_not_count_as_created(start_service):
    service = await start_service(groups_max=1)
    async with Client(str(service.url)) as client:
        await _send(client, "x")
        await client.group("t", "other").put(GroupConfig())
        group = client.group("t", "g")
        with pytest.raises(ClientError, match="groups_max"):
            await group.receive()
        with pytest.raises(ClientError, match="groups_max"):
            await anext(group.stream())
        assert not group.created


async def test_a_group_that_is_deleted_under_its_worker_is_not_created_again(client):
    await client.send("there", "x")
    group = client.group("there", "g")

    async def handle(_lease):
        await group.delete()

    with pytest.raises(NotFoundError) as caught:
        await group.consume(handle)
    assert caught.value.code == "group_not_found"
    assert await client.groups("there") == []


async def test_dead_letters_are_listed_redriven_and_dropped(client, group):
    await _send(client, "bad", "worse")
    async for lease in group.messages(batch=2):
        await lease.nack(reason="no good")
        if len(await _dead(client)) == 2:
            break
    letters = client.dead_letters("g", "t")
    page = await letters.page(limit=1)
    [letter] = page.letters
    assert (letter.reason, letter.attempts, letter.origin_topic) == ("no good", 3, "t")
    assert letter.message.text in ("bad", "worse")
    assert page.next_offset is not None
    done = await letters.redrive([letter.offset])
    assert (done.redriven, done.left) == (1, 0)
    [again] = await group.receive(wait_ms=20_000)
    assert (again.text, again.attempt) == (letter.message.text, 1)
    assert await letters.drop() == 1
    assert await _dead(client) == []


async def test_an_ordered_topic_gives_one_message_of_a_key_at_a_time(client, group):
    assert (await client.set_ordered("t", ordered=True)).ordered
    assert (await client.topic("t")).ordered
    await _send(client, "1", "2", properties={"__SHARDINGKEY": "k"})
    [first] = await group.receive(10)
    assert await group.receive(10) == []
    await group.ack([first.receipt])
    assert [message.text for message in await group.receive(10, wait_ms=20_000)] == ["2"]
    assert not (await client.set_ordered("t", ordered=False)).ordered


async def test_a_paused_topic_gives_no_message_until_it_is_resumed(client, group):
    assert (await client.pause_topic("t")).paused
    await _send(client, "1")
    assert await group.receive(10) == []
    assert not (await client.resume_topic("t")).paused
    assert [message.text for message in await group.receive(10, wait_ms=20_000)] == ["1"]


async def test_a_message_can_be_sent_with_limits(client):
    sent = await client.send("t", "x", ttl=dt.timedelta(minutes=1), max_attempts=1)
    limits = {"TIMER_TTL_MS": "60000", "TIMER_MAX_ATTEMPTS": "1"}
    assert (await client.get(sent.id)).properties.items() >= limits.items()
    [other] = await client.send_many([{"topic": "t", "ttl": "2m"}])
    assert (await client.get(other.id)).properties["TIMER_TTL_MS"] == "120000"


async def test_a_purge_takes_what_was_sent_before(client, group):
    await _send(client, "1", "2")
    counted = await client.purge_topic("t", delivered=True, dry_run=True)
    assert (counted.delivered, counted.dry_run) == (2, True)
    assert (await client.purge_topic("t", scheduled=True, delivered=True)).delivered == 2
    await _send(client, "3")
    assert [message.text for message in await group.receive(10, wait_ms=20_000)] == ["3"]


# ---------------------------------------------------------------------- leases


async def test_messages_come_one_after_the_other_and_end_without_follow(client, group):
    await _send(client, *"abcde")
    seen = []
    async for lease in group.messages(follow=False):
        seen.append(lease.text)
        await lease.ack()
    assert seen == list("abcde")


async def test_messages_waits_for_what_comes(client, group):
    waiting = asyncio.create_task(anext(group.messages()))
    await client.send("t", "here", delay="20ms")
    lease = await waiting
    assert (lease.text, lease.body, lease.attempt) == ("here", b"here", 1)


async def test_a_block_that_ends_well_acknowledges_and_one_that_fails_gives_back(client, group):
    await _send(client, "x")
    with pytest.raises(ValueError, match="broken"):
        async with await anext(group.messages()):
            raise ValueError("broken")
    async with await anext(group.messages()) as lease:
        assert lease.attempt == 2
    assert lease.settled
    assert (await group.info()).lag == 0
    assert await group.receive() == []


async def test_what_a_block_finished_itself_is_left_so(client, group):
    await _send(client, "x")
    async with await anext(group.messages()) as lease:
        await lease.nack(delay_ms=0)
    [again] = await group.receive(wait_ms=20_000)
    assert again.attempt == 2


async def test_settling_too_late_is_an_error_that_says_so(client, group):
    await _send(client, "x")
    lease = await anext(group.messages())
    await group.rewind(to="tail")
    for settle in (lease.extend, lease.nack, lease.ack):
        with pytest.raises(LeaseEndedError) as caught:
            await settle()
        assert caught.value.code == "receipt_ended"
    assert lease.lost
    assert not lease.settled


# ---------------------------------------------------------------------- consume


async def test_consume_finishes_every_message_once_and_stops_on_request(client, group):
    texts = [str(n) for n in range(50)]
    await _send(client, *texts)
    stop = asyncio.Event()
    seen, running, most = [], 0, 0

    async def handle(lease):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        seen.append(lease.text)
        running -= 1
        if len(seen) == len(texts):
            stop.set()

    await group.consume(handle, concurrency=8, stop=stop)
    assert sorted(seen) == sorted(texts)
    assert 1 < most <= 8
    info = await group.info()
    assert (info.lag, info.in_flight) == (0, 0)


async def test_a_worker_acknowledges_with_the_call_that_takes_its_next_message(service, client, group):
    await _send(client, *(str(n) for n in range(20)))
    stop, count = asyncio.Event(), 0

    async def handle(_lease):
        nonlocal count
        count += 1
        if count == 20:
            stop.set()

    await group.consume(handle, stop=stop)
    assert (await group.info()).in_flight == 0
    async with aiohttp.ClientSession() as session, session.get(service.url / "metrics") as answer:
        metrics = await answer.text()
    lines = [line for line in metrics.splitlines() if line.startswith("timerwheel_http_requests_total{")]
    calls = {name: sum(int(float(line.split()[-1])) for line in lines if name in line) for name in CALLS}
    assert calls == {"/receive": 20, "/ack": 1}, "only the last message has a call of its own"


async def test_a_handler_that_fails_gives_its_message_back_and_holds_up_no_other(client, group, caplog):
    await _send(client, "bad", "good")
    stop = asyncio.Event()
    seen = []

    async def handle(lease):
        seen.append((lease.text, lease.attempt))
        # What comes back at once may come before what is fresh: either may be the last.
        if {("bad", 3), ("good", 1)} <= set(seen):
            stop.set()
        if lease.text == "bad":
            raise RuntimeError("cannot do it")

    await group.consume(handle, stop=stop)
    assert sorted(seen) == [("bad", 1), ("bad", 2), ("bad", 3), ("good", 1)]
    [letter] = await _dead(client)
    assert letter.reason == "RuntimeError: cannot do it"
    assert "cannot do it" in caplog.text


async def test_a_consumer_that_is_cancelled_cancels_its_handlers_and_acknowledges_nothing(client, group):
    await _send(client, "x")
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(_lease):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    consuming = asyncio.create_task(group.consume(handle))
    await begun.wait()
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    assert consuming.cancelled()
    assert cancelled.is_set()
    assert (await group.info()).in_flight == 1


async def test_what_can_never_succeed_ends_a_consumer(client, group):
    async def handle(_lease):
        raise AssertionError

    with pytest.raises(ConflictError):
        await group.consume(handle, tags="other")
    with pytest.raises(ClientError) as caught:
        await client.group("t", "no group").consume(handle)
    assert caught.value.code == "illegal_group"


# ---------------------------------------------------------------------- stream


async def test_a_stream_sends_no_more_than_its_window_until_a_message_is_finished(client, group):
    await _send(client, *"abc")
    stream = group.stream(max_in_flight=2)
    first, second = await anext(stream), await anext(stream)
    assert (first.text, second.text) == ("a", "b")
    third = asyncio.ensure_future(anext(stream))
    assert (await group.info()).in_flight == 2
    await second.ack()
    assert (await third).text == "c"
    await first.ack()
    await stream.aclose()


async def test_a_stream_that_acknowledges_by_itself_leaves_nothing_to_acknowledge(client, group):
    await _send(client, *"ab")
    stream = group.stream(auto_ack=True)
    leases = [await anext(stream), await anext(stream)]
    assert [lease.text for lease in leases] == ["a", "b"]
    assert all(lease.settled for lease in leases)
    await stream.aclose()
    assert await group.receive(10) == []


async def test_a_stream_carries_bodies_larger_than_any_buffer(client, group):
    body = bytes(range(256)) * 4096
    await client.send("t", body)
    stream = group.stream()
    assert (await anext(stream)).body == body
    await stream.aclose()


async def test_a_stream_that_is_refused_or_ended_by_a_fault_says_why(client, group):
    with pytest.raises(ConflictError) as caught:
        await anext(group.stream(tags="other"))
    assert caught.value.code == "group_differs"
    stream = group.stream()
    waiting = asyncio.ensure_future(anext(stream))
    await client.send("t", "x")
    await waiting
    await group.delete()
    with pytest.raises(ClientError) as caught:
        await anext(stream)
    assert caught.value.code == "unknown_group"
