"""Subscriptions with real receivers and groups in memory."""

import asyncio
import datetime as dt
import json

import msgspec
import pytest
from standardwebhooks import Webhook

from tests.harness.groups import MemoryEngine
from tests.harness.receiver import Receiver, grouped
from timerwheel.errors import NotReadyError
from timerwheel.groups.config import Exponential, GroupConfig, GroupDiffersError, UnknownGroupError
from timerwheel.push.dispatcher import SHARED_SLOTS
from timerwheel.push.push import Push
from timerwheel.push.stats import FAILURES_IN_ROW
from timerwheel.push.subscription import (
    Changes,
    Draft,
    GroupInUseError,
    RotationError,
    Subscription,
    SubscriptionError,
    SubscriptionExistsError,
    UnknownSubscriptionError,
)


class Site:
    """A service with push subscriptions, and a receiver."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.engine = MemoryEngine()
        self.push: Push

    async def start(self, *, allow_private: bool = True) -> Push:
        self.push = Push(self.engine, allow_private=allow_private)
        await self.push.start()
        return self.push

    async def restart(self, **options: bool) -> Push:
        await self.push.close()
        return await self.start(**options)

    async def subscribe(self, subscription_id: str = "s", path: str = "hook", **fields: object) -> str:
        """Make a subscription; returns its secret."""
        draft = Draft(**({"id": subscription_id, "topic": "orders", "url": self.receiver.url(path)} | fields))
        return (await self.push.create(draft)).secret

    def send(self, *bodies: bytes, subscription_id: str = "s") -> list[str]:
        return self.engine.groups.add("orders", f"push-{subscription_id}", *bodies)

    async def settle(self) -> None:
        for _ in range(300):
            await asyncio.sleep(0)

    async def advance(self, duration_ms: int) -> None:
        await self.settle()
        self.engine.clock.advance(duration_ms)
        await self.settle()

    async def until(self, true) -> None:
        async with asyncio.timeout(60):
            while not true():
                await asyncio.sleep(0)


@pytest.fixture
async def site():
    async with Receiver() as receiver:
        site = Site(receiver)
        await site.start()
        yield site
        receiver.release()
        await site.push.close()


async def test_messages_of_the_topic_arrive_and_are_acknowledged(site):
    secret = await site.subscribe()
    site.engine.clock.wall_ms = int(dt.datetime.now(dt.UTC).timestamp() * 1000)
    ids = site.send(b'{"n":1}', b'{"n":2}')
    await site.receiver.arrived(2)
    await site.until(lambda: len(site.engine.groups.told) == 2)
    assert sorted(site.engine.groups.told) == sorted(("ack", message_id) for message_id in ids)
    for got in site.receiver.got:
        assert Webhook(secret).verify(got.body, dict(got.headers))["n"] in {1, 2}


async def test_creating_makes_the_group_as_the_subscription_wants_it(site):
    await site.subscribe(max_attempts=3, timeout_ms=1_000, backoff=Exponential(5), tags="a", start="tail")
    assert site.engine.groups.configs == {
        ("orders", "push-s"): GroupConfig(
            start="tail", tags="a", max_attempts=3, invisible_ms=16_000, backoff=Exponential(5)
        )
    }


async def test_an_id_and_a_secret_are_made_where_none_is_given(site):
    made = [await site.push.create(Draft(topic="t", url=site.receiver.url())) for _ in range(2)]
    assert len({one.id for one in made}) == 2
    assert len({one.secret for one in made}) == 2
    assert made[0].group == f"push-{made[0].id}"


async def test_an_id_is_given_once(site):
    await site.subscribe()
    with pytest.raises(SubscriptionExistsError):
        await site.subscribe()


async def test_nothing_is_made_of_a_wrong_draft(site):
    with pytest.raises(SubscriptionError):
        await site.subscribe(timeout_ms=1)
    assert site.push.all() == []
    assert site.engine.groups.configs == {}
    assert site.engine.control.items("push") == {}


async def test_private_targets_are_refused_unless_the_operator_allows_them(site):
    await site.restart(allow_private=False)
    with pytest.raises(SubscriptionError, match="not a public address"):
        await site.subscribe()
    with pytest.raises(SubscriptionError, match="not a public address"):
        await site.subscribe(url="http://[::ffff:169.254.169.254]/")


async def test_a_target_that_was_allowed_once_is_not_called_after_the_operator_forbade_it(site):
    await site.subscribe()
    await site.restart(allow_private=False)
    site.send(b"1")
    await site.until(lambda: site.push.stats("s").failed == 1)
    assert "not a public address" in site.push.stats("s").last_error
    assert site.receiver.got == []


async def test_secrets_are_shown_by_the_calls_that_make_them_and_nowhere_else(site):
    first = await site.subscribe(headers={"Authorization": "Bearer hidden"})
    second = (await site.push.rotate_secret("s")).secret
    shown = [
        site.push.get("s"),
        site.push.all(),
        await site.push.update("s", Changes(timeout_ms=500)),
        await site.push.pause("s"),
        await site.push.resume("s"),
        site.push.stats("s"),
        await site.push.test_fire("s"),
        await site.push.finish_rotation("s"),
    ]
    text = msgspec.json.encode(shown).decode()
    assert first not in text
    assert second not in text
    assert "hidden" not in text


async def test_both_secrets_sign_until_the_rotation_is_finished(site):
    old = await site.subscribe()
    site.engine.clock.wall_ms = int(dt.datetime.now(dt.UTC).timestamp() * 1000)
    new = (await site.push.rotate_secret("s")).secret
    with pytest.raises(RotationError):
        await site.push.rotate_secret("s")
    await site.push.test_fire("s")
    await site.push.finish_rotation("s")
    with pytest.raises(RotationError):
        await site.push.finish_rotation("s")
    await site.push.test_fire("s")
    both, only = site.receiver.got
    for secret in (old, new):
        Webhook(secret).verify(both.body, dict(both.headers))
    Webhook(new).verify(only.body, dict(only.headers))
    assert " " not in only.headers["webhook-signature"]


async def test_paused_delivers_nothing_and_resumed_delivers_what_waited(site):
    await site.subscribe()
    await site.push.pause("s")
    site.send(b"1", b"2")
    await site.advance(60_000)
    assert site.receiver.got == []
    assert site.push.get("s").status == "paused"
    await site.push.resume("s")
    await site.receiver.arrived(2)


async def test_a_receiver_that_is_gone_is_called_once_until_it_is_resumed(site):
    await site.subscribe()
    site.receiver.behave["hook"] = 410
    site.send(b"1", b"2", b"3")
    await site.until(lambda: site.push.get("s").status == "disabled")
    await site.advance(100_000)
    assert site.push.get("s").disabled == "HTTP 410"
    assert len(site.receiver.got) == 1
    await site.restart()
    await site.advance(100_000)
    assert len(site.receiver.got) == 1
    site.receiver.behave.clear()
    await site.push.resume("s")
    await site.receiver.arrived(4)
    assert site.push.get("s").disabled is None


async def test_an_old_410_does_not_disable_the_new_url(site):
    await site.subscribe()
    site.receiver.behave["hook"] = "hang"
    site.send(b"1")
    await site.receiver.arrived(1)
    await site.push.update("s", Changes(url=site.receiver.url("new")))
    called = Subscription(id="s", topic="orders", url=site.receiver.url(), secrets=[])
    await site.push.disable(called, "HTTP 410")
    assert site.push.get("s").status == "active"


async def test_an_update_holds_for_the_next_request_and_reaches_the_group(site):
    await site.subscribe()
    await site.push.update("s", Changes(url=site.receiver.url("new"), max_attempts=2, cloudevents=True))
    site.send(b"1")
    await site.receiver.arrived(1, "new")
    assert site.receiver.got[0].headers["ce-specversion"] == "1.0"
    assert site.engine.groups.configs["orders", "push-s"].max_attempts == 2
    assert site.push.get("s").url == site.receiver.url("new")


async def test_a_wrong_update_changes_nothing(site):
    await site.subscribe()
    before = site.push.get("s")
    with pytest.raises(SubscriptionError):
        await site.push.update("s", Changes(concurrency=0))
    assert site.push.get("s") == before


async def test_a_change_that_cannot_be_stored_does_not_take_effect(site):
    await site.subscribe()
    site.engine.control.fail = NotReadyError("the disk is full")
    for change in (
        site.push.pause("s"),
        site.push.update("s", Changes(timeout_ms=100)),
        site.push.delete("s"),
    ):
        with pytest.raises(NotReadyError):
            await change
    with pytest.raises(NotReadyError):
        await site.subscribe("t")
    assert [one.status for one in site.push.all()] == ["active"]
    assert site.push.get("s").timeout_ms == 15_000
    site.send(b"1")
    await site.receiver.arrived(1)


async def test_deleted_is_forgotten_with_its_own_group_only(site):
    await site.subscribe("own")
    await site.subscribe("shared", group="billing")
    await site.push.delete("own")
    await site.push.delete("shared")
    assert list(site.engine.groups.configs) == [("orders", "billing")]
    with pytest.raises(UnknownSubscriptionError):
        site.push.get("own")
    with pytest.raises(UnknownSubscriptionError):
        await site.push.delete("own")
    await site.restart()
    assert site.push.all() == []


BILLING = GroupConfig(start="tail", tags="a || b", max_attempts=3, backoff=Exponential(5))


async def test_a_group_that_exists_stays_as_it_is_and_is_shown(site):
    await site.engine.groups.put("orders", "billing", BILLING)
    await site.subscribe(group="billing", timeout_ms=500)
    view = site.push.get("s")
    assert (view.start, view.tags, view.max_attempts, view.backoff) == (
        *("tail", "a || b", 3, Exponential(5)),
    )
    await site.subscribe("t", group="billing", tags="b||a", max_attempts=3)
    await site.push.update("s", Changes(tags="b||a", timeout_ms=700, max_attempts=3))
    assert site.engine.groups.configs == {("orders", "billing"): BILLING}
    assert (site.push.get("s").tags, site.push.get("s").timeout_ms) == ("a || b", 700)


@pytest.mark.parametrize(
    ("field", "value"),
    [("tags", "*"), ("tags", "a"), ("max_attempts", 16), ("backoff", Exponential(6)), ("start", "head")],
)
async def test_what_differs_from_a_group_that_is_not_its_own_is_refused_by_name(site, field, value):
    await site.engine.groups.put("orders", "billing", BILLING)
    with pytest.raises(GroupDiffersError, match=f"^{field}: "):
        await site.subscribe(group="billing", **{field: value})
    assert site.push.all() == []
    await site.subscribe(group="billing")
    before = site.push.get("s")
    if field != "start":
        with pytest.raises(GroupDiffersError, match=f"^{field}: "):
            await site.push.update("s", Changes(timeout_ms=700, **{field: value}))
    assert site.push.get("s") == before
    assert site.engine.groups.configs == {("orders", "billing"): BILLING}


async def test_an_update_keeps_what_others_changed_in_its_own_group(site):
    await site.subscribe()
    changed = GroupConfig(tags="a", max_attempts=5)
    await site.engine.groups.put("orders", "push-s", changed)
    assert site.push.get("s").tags == "a"
    await site.push.update("s", Changes(max_attempts=2))
    assert (site.push.get("s").tags, site.push.get("s").max_attempts) == ("a", 2)
    assert site.engine.groups.configs["orders", "push-s"].tags == "a"


async def test_a_group_that_another_subscription_uses_is_nobodys_to_change(site):
    await site.subscribe("a", group="push-b")
    with pytest.raises(GroupDiffersError, match=r"^tags: "):
        await site.subscribe("b", tags="x")
    await site.subscribe("b")
    with pytest.raises(GroupDiffersError, match=r"^tags: "):
        await site.push.update("b", Changes(tags="x"))
    await site.push.delete("a")
    assert (await site.push.update("b", Changes(tags="x"))).tags == "x"
    assert site.engine.groups.configs["orders", "push-b"].tags == "x"


@pytest.mark.parametrize("order", [["s", "t", "u"], ["u", "s", "t"], ["t", "u", "s"]])
async def test_a_group_made_for_a_subscription_goes_with_the_last_that_uses_it(site, order):
    await site.subscribe()
    await site.subscribe("t", group="push-s")
    await site.subscribe("u", group="push-s")
    for subscription_id in order:
        assert list(site.engine.groups.configs) == [("orders", "push-s")]
        await site.push.delete(subscription_id)
        await site.restart()
    assert site.engine.groups.configs == {}


async def test_a_group_that_was_there_before_stays_whatever_its_name(site):
    await site.engine.groups.put("orders", "push-mine", BILLING)
    await site.subscribe(group="push-mine")
    await site.push.delete("s")
    assert list(site.engine.groups.configs) == [("orders", "push-mine")]


async def test_a_group_that_a_subscription_uses_is_not_deleted(site):
    await site.subscribe(group="billing")
    assert site.push.user_of("orders", "billing") == "s"
    assert site.push.user_of("other", "billing") is None
    with pytest.raises(GroupInUseError, match="subscription 's'"):
        await site.push.delete_group("orders", "billing")
    assert list(site.engine.groups.configs) == [("orders", "billing")]
    await site.push.delete("s")
    await site.push.delete_group("orders", "billing")
    assert site.engine.groups.configs == {}
    with pytest.raises(UnknownGroupError):
        await site.push.delete_group("orders", "billing")


async def test_subscriptions_and_who_stopped_them_are_there_after_a_restart(site):
    await site.subscribe("a", headers={"X-Key": "1"})
    await site.subscribe("b", paused=True)
    before = site.push.all()
    await site.restart()
    assert site.push.all() == before
    site.send(b"1", subscription_id="a")
    site.send(b"1", subscription_id="b")
    await site.receiver.arrived(1)
    await site.advance(60_000)
    assert [got.headers["X-Key"] for got in site.receiver.got] == ["1"]


async def test_a_test_message_touches_neither_group_nor_statistics(site):
    await site.subscribe(paused=True, cloudevents=True)
    outcome = await site.push.test_fire("s")
    assert outcome.kind == "delivered"
    (got,) = site.receiver.got
    assert json.loads(got.body)["type"] == "timerwheel.test"
    assert got.headers["ce-type"] == "timerwheel.test"
    assert site.engine.groups.told == []
    assert site.push.stats("s").last_attempt_ms is None
    site.receiver.behave["hook"] = 500
    assert (await site.push.test_fire("s")).reason == "HTTP 500"


async def test_statistics_tell_what_became_of_the_attempts(site):
    await site.subscribe()
    site.send(b"1")
    await site.until(lambda: site.push.stats("s").delivered == 1)
    site.receiver.behave["hook"] = 503
    site.send(b"2")
    await site.until(lambda: site.push.stats("s").failed == 1)
    stats = site.push.stats("s")
    assert (stats.last_status, stats.last_error, stats.failures_in_row) == (503, "HTTP 503", 1)
    assert stats.last_attempt_ms == site.engine.clock.now_ms()


@pytest.mark.parametrize("told", ["reset", "garbage", 500, 302, (429, {"Retry-After": "10"})])
async def test_a_message_comes_again_until_its_receiver_takes_it(site, told):
    await site.subscribe()
    site.receiver.behave["hook"] = [told, told, 200]
    (message_id,) = site.send(b"1")
    for count in (1, 2):
        await site.until(lambda count=count: len(site.engine.groups.told) == count)
        await site.advance(10_000)
    await site.until(lambda: len(site.engine.groups.told) == 3)
    assert [told[:2] for told in site.engine.groups.told] == [
        ("nack", message_id),
        ("nack", message_id),
        ("ack", message_id),
    ]
    assert {got.headers["webhook-id"] for got in site.receiver.got} == {message_id}
    assert len({got.headers["webhook-timestamp"] for got in site.receiver.got}) == 3


async def test_a_message_that_is_never_taken_uses_up_its_attempts(site):
    await site.subscribe(max_attempts=2)
    site.receiver.behave["hook"] = 500
    (message_id,) = site.send(b"1")
    await site.until(lambda: len(site.engine.groups.told) == 1)
    await site.advance(10_000)
    await site.until(lambda: site.engine.groups.dead == [message_id])


async def test_closing_cuts_off_what_hangs_after_the_grace(site):
    await site.subscribe()
    site.receiver.behave["hook"] = "hang"
    site.send(b"1")
    await site.receiver.arrived(1)
    closing = asyncio.ensure_future(site.push.close())
    await site.advance(2_000)
    await closing
    assert site.engine.groups.told == []
    await site.start()


async def test_nine_hundred_receive_everything_while_a_hundred_are_dead_or_hang(site):
    count, dead, each = 1_000, 100, 3
    broken = ["hang", "trickle", "reset", 500]
    for number in range(count):
        if number < dead:
            site.receiver.behave[f"p{number}"] = broken[number % len(broken)]
        await site.subscribe(f"p{number}", f"p{number}")
    bodies = [str(number).encode() for number in range(each)]
    for number in range(count):
        site.send(*bodies * (10 if number < dead else 1), subscription_id=f"p{number}")
    healthy = {f"p{number}" for number in range(dead, count)}
    await site.receiver.until(
        lambda: sum(got.path in healthy for got in site.receiver.got) >= (count - dead) * each
    )
    # The clock has not moved: whatever hung in the beginning hangs now, and held nobody up.
    received = grouped(site.receiver.got)
    assert all(sorted(received[path]) == bodies for path in healthy)
    for number in range(dead):
        told = broken[number % len(broken)]
        assert site.receiver.under_way[f"p{number}"] == (told in ("hang", "trickle"))
        assert site.receiver.most_under_way[f"p{number}"] == 1
        assert len(received[f"p{number}"]) <= 5
    assert (
        sum(one.in_flight for one in map(site.push.stats, (f"p{number}" for number in range(count))))
        <= count + SHARED_SLOTS
    )


async def test_an_endpoint_that_fails_each_time_is_failing_until_it_succeeds(site):
    await site.subscribe()
    site.receiver.behave["hook"] = 503
    since_ms = site.engine.clock.now_ms()
    for failed, status in ((FAILURES_IN_ROW - 1, "active"), (FAILURES_IN_ROW, "failing")):
        site.send(*[b"x"] * (failed - site.push.stats("s").failed))
        await site.until(lambda failed=failed: site.push.stats("s").failed == failed)
        await site.until(lambda: site.push.stats("s").in_flight == 0)
        view = site.push.get("s")
        assert view.status == status
    assert (view.failing_since_ms, view.last_status, view.last_error) == (since_ms, 503, "HTTP 503")
    assert view.next_attempt_ms == since_ms + 10_000  # the backoff of the first that failed
    [counts] = site.push.counts()
    assert (counts.topic, counts.id, counts.failed, counts.is_failing) == (
        "orders",
        "s",
        FAILURES_IN_ROW,
        True,
    )
    await site.push.pause("s")
    assert site.push.get("s").status == "paused"
    assert not site.push.counts()[0].is_failing
    site.receiver.behave["hook"] = 200
    await site.push.resume("s")
    site.engine.clock.advance(10_000)
    await site.until(lambda: site.push.stats("s").delivered)
    view = site.push.get("s")
    assert (view.status, view.failing_since_ms, view.next_attempt_ms) == ("active", None, None)
    assert view.last_status == 200
