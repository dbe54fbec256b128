"""The context of the sender on the engine: it is there at the delivery, whatever came in between."""

import random

import msgspec

from tests.harness.consumers import put, receive
from tests.harness.receiver import Receiver
from tests.harness.spans import PARENT, STATE, Kept, place
from tests.harness.tasking import Tasking
from timerwheel.groups.config import Exponential
from timerwheel.model.messages import Outgoing
from timerwheel.push.push import Push
from timerwheel.push.tasks.task import Task

CONTEXT = {"traceparent": PARENT, "tracestate": STATE}
HOUR_MS = 3_600_000


async def send_later(world, body: bytes = b"x", **properties: str) -> str:
    given = {**CONTEXT, "TIMER_DELAY_MS": str(HOUR_MS), **properties}
    [receipt] = await world.engine.sender.send([Outgoing("orders", body, given)])
    return receipt.id


async def test_a_context_outlives_crashes_a_lost_index_and_a_reschedule(world):
    await world.open()
    message_id = await send_later(world, KEYS="order-17")
    await world.crash(random.Random(17))
    await world.engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": str(2 * HOUR_MS)})
    await world.lose_index()
    await world.crash(random.Random(18))
    waiting = await world.engine.messages.get(message_id)
    assert waiting.properties.items() >= CONTEXT.items()
    await world.advance(2 * HOUR_MS)
    await world.crash(random.Random(19))
    [delivered] = await world.delivered()
    assert delivered.id == message_id
    assert delivered.properties.items() >= {"KEYS": "order-17", **CONTEXT}.items()


async def test_a_context_goes_with_a_message_to_the_dead_letters_and_back(world):
    await world.open()
    await put(world, max_attempts=1)
    await send_later(world)
    await world.advance(HOUR_MS)
    [got] = await receive(world)
    assert got.message.properties.items() >= CONTEXT.items()
    await world.engine.groups.nack("orders", "g", [got.receipt], reason="no")
    await world.advance(1_000)
    page = await world.engine.groups.dead.page("g")
    assert page.letters[0].message.properties.items() >= CONTEXT.items()
    await world.engine.groups.dead.redrive("g")
    await world.advance(0)
    [again] = await receive(world)
    assert again.message.properties.items() >= CONTEXT.items()


async def test_a_retry_in_another_span_is_a_duplicate_and_the_first_context_stays(world):
    await world.open()
    other = {**CONTEXT, "traceparent": PARENT.replace("00f0", "00f1")}
    for context in (CONTEXT, other, {}):
        [receipt] = await world.engine.sender.send(
            [Outgoing("orders", b"x", {"a": "1", **context}, "order-17")]
        )
        assert receipt.duplicate is (context is not CONTEXT)
    [delivered] = await world.delivered()
    assert delivered.properties["traceparent"] == PARENT


async def test_a_push_has_the_context_as_headers_at_every_attempt_and_a_span_for_each(world):
    await world.open()
    kept = Kept(world.clock)
    async with Receiver() as receiver:
        site = Tasking(world, receiver)
        site.push = Push(world.engine, allow_private=True, traces=kept.traces)
        await site.push.start()
        try:
            receiver.behave["hook"] = [500, 200]
            await site.subscribe()
            await world.engine.sender.send(
                [Outgoing("orders", b"plain"), Outgoing("orders", b"traced", dict(CONTEXT))]
            )
            await site.until(lambda: site.push.stats("s").delivered == 2, step_ms=200)
        finally:
            await site.push.close()
        headers = {got.body: got.headers for got in receiver.got}
        assert (headers[b"traced"]["traceparent"], headers[b"traced"]["tracestate"]) == (PARENT, STATE)
        assert not {"traceparent", "tracestate"} & {name.lower() for name in headers[b"plain"]}
        tried = [got for got in receiver.got if got.body == b"traced"]
    spans = kept.named("deliver orders")
    assert len(spans) == len(tried) == len(kept.all())
    assert {place(link.context) for span in spans for link in span.links} == {PARENT}
    assert spans[-1].attributes["http.response.status_code"] == 200


async def test_a_task_and_its_callback_have_spans_that_link_to_who_made_the_task(world):
    await world.open()
    kept = Kept(world.clock)
    async with Receiver() as receiver:
        site = Tasking(world, receiver)
        site.push = Push(world.engine, allow_private=True, traces=kept.traces)
        await site.push.start()
        try:
            receiver.behave["hook"] = [500, 200]
            task = Task(
                url=receiver.url(),
                callback=receiver.url("report"),
                backoff=Exponential(1_000, 1.0, 1_000),
            )

            def traced(message: Outgoing) -> Outgoing:
                return msgspec.structs.replace(message, properties=dict(CONTEXT))

            await site.tasks.create("mail", task, b"", more=traced)
            await site.tasks.create("mail", task, b"", more=lambda message: message)
            await site.until(lambda: len(receiver.bodies("report")) == 2, step_ms=200)
            calls = world.engine.counters.task_calls
            await site.until(lambda: calls["delivered"] == 4)
        finally:
            await site.push.close()
        seen = [got.path for got in receiver.got if got.headers.get("traceparent") == PARENT]
    [sent] = kept.named("send %TASK%mail")
    assert place(sent.parent) == PARENT
    delivered = kept.named("deliver %TASK%mail")
    assert {place(link.context) for span in delivered for link in span.links} == {PARENT}
    assert len(delivered) == len(seen) == len(kept.all()) - 1
    assert seen[-1] == "report"
    statuses = {span.attributes["http.response.status_code"] for span in delivered}
    assert 200 in statuses
    assert all(span.attributes["timerwheel.attempt"] >= 1 for span in delivered)
