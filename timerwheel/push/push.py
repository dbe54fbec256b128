"""Push subscriptions: created, changed and stopped here; each has its own `Dispatcher`.

1. The control table `push` determines what runs: a change is durable first and then takes effect, even if its
   caller disconnects.
2. A secret is shown once, in the answer of the call that created it.
3. The configuration of a group is changed only for a subscription that owns it and alone uses it: otherwise
   messages that another filter excludes would be lost to the others. The last subscription that uses a group
   takes the group with it, if subscriptions created it.

Belongs to the event loop. Changes are made one at a time.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import orjson
from msgspec import UNSET

from timerwheel.engine import Engine
from timerwheel.errors import UnknownMessageError
from timerwheel.groups.config import (
    LEASES,
    GroupConfig,
    TaskGroupError,
    UnknownGroupError,
    check_not_of_tasks,
    config_of,
    leases_nothing,
)
from timerwheel.model.authorization import permitted
from timerwheel.model.messages import MessageView, State
from timerwheel.model.precondition import ALWAYS, Precondition, tag_of
from timerwheel.push.ack_urls import AckUrls
from timerwheel.push.acks import Acks
from timerwheel.push.attempts import Attempt, AttemptLog
from timerwheel.push.dispatcher import SHARED_SLOTS, Calls, Counted, Dispatcher, DispatcherParts, Slots
from timerwheel.push.endpoint import CALLS_MAX, Caller
from timerwheel.push.outcome import Outcome
from timerwheel.push.signing import random_secret
from timerwheel.push.stats import Health, StatsView, SubscriptionCounts
from timerwheel.push.subscription import (
    GROUP_PREFIX,
    SUBSCRIPTIONS_MAX,
    Changes,
    Draft,
    GroupInUseError,
    Subscription,
    SubscriptionError,
    SubscriptionExistsError,
    SubscriptionView,
    SubscriptionWithSecret,
    TooManySubscriptionsError,
    UnknownSubscriptionError,
    check_agrees,
    checked,
    from_value,
    rotated,
    rotation_ended,
    to_value,
    view_of,
)
from timerwheel.push.tasks.task import GROUP
from timerwheel.push.tasks.tasks import Tasks
from timerwheel.push.traces import Traces
from timerwheel.runtime.shielded import shielded
from timerwheel.state.config_table import ConfigTable, Put

CLOSE_GRACE_MS = 2_000
ID_BYTES = 8

logger = logging.getLogger(__name__)


class Push:
    """All subscriptions. `start` when the engine is ready, `close` before it closes."""

    def __init__(
        self,
        engine: Engine,
        *,
        allow_private: bool = False,
        calls_max: int = CALLS_MAX,
        traces: Traces | None = None,
        ack_urls: AckUrls | None = None,
    ) -> None:
        """Without `ack_urls` receivers are given no URLs to acknowledge later."""
        self._engine = engine
        self._allow_private = allow_private
        self._traces = traces
        self._calls_max = calls_max
        self._slots = Slots(min(SHARED_SLOTS, calls_max // 2))
        self._dispatchers: dict[str, Dispatcher] = {}
        self._attempts = AttemptLog()
        self._changing = asyncio.Lock()
        self._closing = False
        self._opened: Caller | None = None
        self._ack_urls = ack_urls or AckUrls(secrets.token_bytes(), 0, "")
        self.tasks = Tasks(
            engine,
            allow_private=allow_private,
            calls_max=calls_max,
            ack_urls=self._ack_urls,
            traces=traces,
        )
        self.acks = Acks(engine, self._ack_urls, self.tasks, self._dispatchers)
        engine.topic_deletions.on_ending.append(self._end_topic)
        engine.groups.on_ended.append(self._look_over)

    async def start(self) -> None:
        """Start delivering for the stored subscriptions."""
        self._opened = Caller(
            self._engine.clock, allow_private=self._allow_private, calls_max=self._calls_max
        )
        for key, value in self._engine.control.items(ConfigTable.SUBSCRIPTION).items():
            try:
                subscription = from_value(value)
                if subscription.topic not in self._engine.topics.ending:
                    self._add(subscription, restarted=True)
            except SubscriptionError as error:
                logger.error("subscription %s cannot be read, so it does not deliver: %s", key, error)  # noqa: TRY400
        await self.tasks.start(self._opened)

    async def close(self, grace_ms: int = CLOSE_GRACE_MS) -> None:
        """Take no more messages, wait up to `grace_ms` for requests in progress, close every connection."""
        self._closing = True
        async with self._changing:
            dispatchers = list(self._dispatchers.values())
            closing = [dispatcher.close(grace_ms) for dispatcher in dispatchers]
            await asyncio.gather(*closing, self.tasks.close(grace_ms))
            self._dispatchers.clear()
            if self._opened is not None:
                await self._opened.close()
                self._opened = None

    @property
    def _caller(self) -> Caller:
        assert self._opened is not None, "start comes first"
        return self._opened

    # ------------------------------------------------------------------ asking

    def get(self, subscription_id: str) -> SubscriptionView:
        """Return one subscription; UnknownSubscriptionError."""
        return self._view(self._find(subscription_id).subscription)

    def tag(self, subscription_id: str) -> str:
        """Return the tag of what a change can change, but for the secrets; UnknownSubscriptionError."""
        subscription = self._find(subscription_id).subscription
        shown = msgspec.structs.replace(subscription, secrets=[], heir=False)
        return tag_of(shown.with_group(self._config(subscription)))

    def find(self, subscription_id: str) -> SubscriptionView | None:
        """Return one subscription; None if there is none of this id."""
        dispatcher = self._dispatchers.get(subscription_id)
        return None if dispatcher is None else self._view(dispatcher.subscription)

    def topics(self) -> dict[str, str]:
        """Return the topic of every subscription by its id, in the order of creation."""
        return {name: dispatcher.subscription.topic for name, dispatcher in self._dispatchers.items()}

    def all(self) -> list[SubscriptionView]:
        """Return every subscription, in the order of creation; all in one step of the event loop."""
        return [self._view(dispatcher.subscription) for dispatcher in self._dispatchers.values()]

    def user_of(self, topic: str, group: str) -> str | None:
        """Return the id of a subscription that consumes as this group, if there is one."""
        return next((one.id for one in self._users(topic, group)), None)

    def stats(self, subscription_id: str) -> StatsView:
        """Return the statistics of a subscription since the service started; UnknownSubscriptionError."""
        return self._find(subscription_id).stats()

    def counts(self) -> list[SubscriptionCounts]:
        """Return the outcomes of each subscription since the service started, failing ones first."""
        every = [dispatcher.counts() for dispatcher in self._dispatchers.values()]
        return sorted(every, key=lambda one: (one.failures_in_row, one.failed, one.delivered), reverse=True)

    def attempts(
        self, subscription_id: str, limit: int | None = None, cursor: str | None = None
    ) -> tuple[list[Attempt], str | None]:
        """Return a page of its last attempts since the service started, newest first, and the next cursor.

        Raises UnknownSubscriptionError, IllegalCursorError.
        """
        self._find(subscription_id)
        return self._attempts.page(subscription_id, limit, cursor)

    async def send_again(self, subscription_id: str, message_id: str) -> Attempt:
        """Deliver a message of its topic once more now, even while paused; its group does not notice.

        Raises UnknownSubscriptionError, and UnknownMessageError for a message that is not a delivered one of
        its topic.
        """
        subscription = self._find(subscription_id).subscription
        message = await self._engine.messages.get(message_id)
        if message.topic != subscription.topic or message.state is not State.DELIVERED:
            raise UnknownMessageError(message_id)
        outcome = await self._caller.attempt(subscription, message)
        attempt = Attempt.of(outcome, message.id, 0, self._engine.clock.now_ms())
        self._attempts.add(subscription_id, attempt)
        return attempt

    async def test_fire(self, subscription_id: str) -> Outcome:
        """Deliver one sample message now, even while paused; groups and statistics do not count it."""
        subscription = self._find(subscription_id).subscription
        outcome = await self._caller.attempt(subscription, self._test_message(subscription))
        return outcome.shown()

    # ------------------------------------------------------------------ changing

    @shielded
    async def create(self, draft: Draft) -> SubscriptionWithSecret:
        """Create the group, store the subscription, begin to deliver.

        Raises SubscriptionError, SubscriptionExistsError, and GroupDiffersError if the group exists, is not
        this subscription's alone and differs from the draft. A failure after the group was created leaves an
        empty group.
        """
        async with self._changing:
            subscription_id = draft.id
            if subscription_id is UNSET:
                subscription_id = f"sub_{secrets.token_hex(ID_BYTES)}"
            if subscription_id in self._dispatchers:
                raise SubscriptionExistsError(subscription_id)
            if len(self._dispatchers) >= SUBSCRIPTIONS_MAX:
                raise TooManySubscriptionsError(SUBSCRIPTIONS_MAX)
            secret = draft.secret
            if secret is UNSET:
                secret = random_secret()
            subscription = self._checked(draft.subscription(subscription_id, secret))
            heir = self._config(subscription) is None and subscription.group.startswith(GROUP_PREFIX)
            subscription = msgspec.structs.replace(subscription, heir=heir)
            await self._put_group(subscription, draft)
            subscription = subscription.with_group(self._config(subscription))
            await self._store(subscription)
            self._add(subscription)
            return _with_secret(self._view(subscription), secret)

    @shielded
    async def update(
        self, subscription_id: str, changes: Changes, when: Precondition = ALWAYS
    ) -> SubscriptionView:
        """Change what is given, from the next request on.

        Raises SubscriptionError, UnknownSubscriptionError, GroupDiffersError as `create` does;
        PreconditionFailedError if the subscription is not as `when` says.
        """
        async with self._changing:
            stored = self._find(subscription_id).subscription
            when.check(partial(self.tag, subscription_id))
            before = stored.with_group(self._config(stored))
            after = self._checked(changes.apply(before))
            if after.group_config != before.group_config:
                await self._put_group(after, changes)
            return await self._replace(after)

    async def pause(self, subscription_id: str) -> SubscriptionView:
        """Take no more messages; requests in progress finish. Raises UnknownSubscriptionError."""
        return await self._change(subscription_id, paused=True)

    async def resume(self, subscription_id: str) -> SubscriptionView:
        """Deliver at once, even if disabled or paused after failures. UnknownSubscriptionError."""
        return await self._change(subscription_id, paused=False, disabled=None)

    @shielded
    async def rotate_secret(self, subscription_id: str, secret: str | None = None) -> SubscriptionWithSecret:
        """Sign with a new secret and with the old one, until `finish_rotation`.

        Raises RotationError if two secrets are valid already, SubscriptionError, UnknownSubscriptionError.
        """
        async with self._changing:
            subscription = self._find(subscription_id).subscription
            both = rotated(
                subscription_id, subscription.secrets, random_secret() if secret is None else secret
            )
            after = self._checked(msgspec.structs.replace(subscription, secrets=both))
            return _with_secret(await self._replace(after), both[0])

    @shielded
    async def finish_rotation(self, subscription_id: str) -> SubscriptionView:
        """Sign with the newest secret alone. RotationError if none is rotated, UnknownSubscriptionError."""
        async with self._changing:
            subscription = self._find(subscription_id).subscription
            newest = rotation_ended(subscription_id, subscription.secrets)
            return await self._replace(msgspec.structs.replace(subscription, secrets=newest))

    @shielded
    async def delete(self, subscription_id: str, when: Precondition = ALWAYS) -> None:
        """Delete a subscription, and its group if that is its own; requests in progress are cut off.

        If other subscriptions use the group, the first of them inherits it. Raises UnknownSubscriptionError.
        A failure after the subscription was deleted leaves the group.
        """
        async with self._changing:
            dispatcher = self._find(subscription_id)
            when.check(partial(self.tag, subscription_id))
            subscription = dispatcher.subscription
            heirs = [msgspec.structs.replace(one, heir=True) for one in self._others(subscription)[:1]]
            if not subscription.owns_group:
                heirs = []
            puts = [Put(ConfigTable.SUBSCRIPTION, heir.id, to_value(heir)) for heir in heirs]
            await self._engine.control.put([Put(ConfigTable.SUBSCRIPTION, subscription_id, None), *puts])
            del self._dispatchers[subscription_id]
            self._attempts.forget(subscription_id)
            for heir in heirs:
                self._dispatchers[heir.id].replace(heir)
            await dispatcher.close(grace_ms=0)
            if subscription.owns_group and not heirs:
                with contextlib.suppress(UnknownGroupError):
                    await self._engine.groups.delete(subscription.topic, subscription.group)

    async def _end_topic(self, topic: str) -> None:
        """Delete the subscriptions of a topic that is being deleted."""
        every = [dispatcher.subscription for dispatcher in self._dispatchers.values()]
        for subscription in every:
            if subscription.topic == topic:
                with contextlib.suppress(UnknownSubscriptionError):
                    await self.delete(subscription.id)

    def _look_over(self, topic: str, group: str) -> None:
        """Let go of what a rewind or a purge has taken from the receivers of a group."""
        for subscription in self._users(topic, group):
            self._dispatchers[subscription.id].look_over()
        if group == GROUP:
            self.tasks.look_over(topic)

    @shielded
    async def delete_group(self, topic: str, group: str, when: Precondition = ALWAYS) -> None:
        """Delete a group that no subscription uses: GroupInUseError, UnknownGroupError."""
        async with self._changing:  # a subscription may be about to use it
            if self.tasks.uses(topic, group):
                raise TaskGroupError(topic, group)
            user = self.user_of(topic, group)
            if user is not None:
                raise GroupInUseError(topic, group, user)
            await self._engine.groups.delete(topic, group, when)

    async def disable(self, called: Subscription, reason: str) -> None:
        """Disable a subscription whose endpoint wants no more calls, unless its URL has changed since."""
        if self._closing:
            return  # closing waits for this delivery; the endpoint answers the same after the next start
        async with self._changing:
            dispatcher = self._dispatchers.get(called.id)
            if dispatcher is None or dispatcher.subscription.url != called.url:
                return
            subscription = dispatcher.subscription
            if subscription.disabled is None:
                logger.warning("subscription %s is disabled: %s", called.id, reason)
                await self._replace(msgspec.structs.replace(subscription, disabled=reason))

    # ------------------------------------------------------------------ within

    def _find(self, subscription_id: str) -> Dispatcher:
        dispatcher = self._dispatchers.get(subscription_id)
        if dispatcher is None or not permitted(dispatcher.subscription.topic):
            raise UnknownSubscriptionError(subscription_id)
        return dispatcher

    def _checked(self, subscription: Subscription) -> Subscription:
        return checked(subscription, allow_private=self._allow_private)

    def _users(self, topic: str, group: str) -> Iterator[Subscription]:
        """Return the subscriptions that consume as this group."""
        every = (dispatcher.subscription for dispatcher in self._dispatchers.values())
        return (one for one in every if (one.topic, one.group) == (topic, group))

    def _others(self, subscription: Subscription) -> list[Subscription]:
        """Return the subscriptions that share its group."""
        return [
            one for one in self._users(subscription.topic, subscription.group) if one.id != subscription.id
        ]

    def _config(self, subscription: Subscription) -> GroupConfig | None:
        """Return the current configuration of its group; None if there is no such group."""
        try:
            return config_of(self._engine.groups.info(subscription.topic, subscription.group).config)
        except UnknownGroupError:
            return None

    def _view(self, subscription: Subscription) -> SubscriptionView:
        dispatcher = self._dispatchers.get(subscription.id)
        health = Health() if dispatcher is None else self._health(dispatcher)
        return view_of(subscription.with_group(self._config(subscription)), health)

    def _health(self, dispatcher: Dispatcher) -> Health:
        subscription, groups = dispatcher.subscription, self._engine.groups
        return dispatcher.health(lambda: groups.next_due_ms(subscription.topic, subscription.group))

    async def _put_group(self, subscription: Subscription, given: Draft | Changes) -> None:
        """Configure the group as the subscription asks, or refuse if it may not be changed."""
        check_not_of_tasks(subscription.topic, subscription.group)
        config = self._config(subscription)
        if config is not None and config.kind != LEASES:
            raise leases_nothing(subscription.topic, subscription.group)
        if config is not None and (not subscription.owns_group or self._others(subscription)):
            check_agrees(given, subscription, config)
        else:
            await self._engine.groups.put(subscription.topic, subscription.group, subscription.group_config)

    async def _store(self, subscription: Subscription) -> None:
        self._engine.topics.check_open([subscription.topic])
        await self._engine.control.put(
            [Put(ConfigTable.SUBSCRIPTION, subscription.id, to_value(subscription))]
        )

    def _add(self, subscription: Subscription, *, restarted: bool = False) -> None:
        engine = self._engine
        caller: Calls = Counted(self._caller, engine.counters, self._attempts, engine.groups, engine.clock)
        if self._traces is not None:
            caller = self._traces.calls(caller)
        parts = DispatcherParts(
            engine.groups, caller, engine.clock, self._slots, self.disable, self._ack_urls
        )
        dispatcher = Dispatcher(subscription, parts, restarted=restarted)
        self._dispatchers[subscription.id] = dispatcher
        if subscription.status == "active":
            dispatcher.start()

    async def _replace(self, subscription: Subscription) -> SubscriptionView:
        """Store the subscription in place of the previous one, and apply it."""
        dispatcher = self._find(subscription.id)
        await self._store(subscription)
        dispatcher.replace(subscription)
        if subscription.status == "active":
            dispatcher.start()
        else:
            await dispatcher.halt()
        return self._view(subscription)

    @shielded
    async def _change(self, subscription_id: str, **fields: Any) -> SubscriptionView:  # noqa: ANN401
        async with self._changing:
            subscription = self._find(subscription_id).subscription
            return await self._replace(msgspec.structs.replace(subscription, **fields))

    def _test_message(self, subscription: Subscription) -> MessageView:
        now_ms = self._engine.clock.now_ms()
        body = orjson.dumps({"type": "timerwheel.test", "subscription": subscription.id, "sent_ms": now_ms})
        return MessageView(
            id=f"test_{secrets.token_hex(ID_BYTES)}",
            topic=subscription.topic,
            queue=0,
            state=State.DELIVERED,
            due_ms=now_ms,
            level=0,
            enqueue_ms=now_ms,
            properties={"CE_TYPE": "timerwheel.test"},
            body=body,
            delivered_ms=now_ms,
        )


def _with_secret(view: SubscriptionView, secret: str) -> SubscriptionWithSecret:
    return SubscriptionWithSecret(**msgspec.structs.asdict(view), secret=secret)
