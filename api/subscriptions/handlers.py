"""The calls on push subscriptions."""

from functools import partial

from aiohttp import web

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import etags, responses
from timerwheel.api.http.route import STORE, Need, call
from timerwheel.api.http.steps import made_of
from timerwheel.api.security import access
from timerwheel.model import list_cursor
from timerwheel.push.attempts import Attempt
from timerwheel.push.outcome import Outcome
from timerwheel.push.stats import StatsView
from timerwheel.push.subscription import Changes, SubscriptionView, SubscriptionWithSecret
from timerwheel.wire.fields import given
from timerwheel.wire.paging import PageQuery
from timerwheel.wire.subscriptions import (
    Attempts,
    NewSecret,
    NewSubscription,
    SendAgain,
    SubscriptionPath,
    Subscriptions,
)

SUBSCRIPTION = "/v1/subscriptions/{id}"
# What a subscription says of its group is the group's to refuse.
FIELDS = (
    *("illegal_subscription", "illegal_topic", "illegal_group", "illegal_filter"),
    *("system_topic", "topic_ending", "too_many_groups", "too_many_subscriptions", "setting_too_large"),
)

_reads = partial(call, needs=Need.RECEIVE, answer=SubscriptionView, known=("unknown_subscription",))
_changes = partial(_reads, audited=True, problems=("topic_ending", *STORE))


class SubscriptionCalls:
    """Handlers under `/v1/subscriptions`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    @call(
        "POST",
        "/v1/subscriptions",
        "createSubscription",
        needs=Need.RECEIVE,
        audited=True,
        status=201,
        located=True,
        answer=SubscriptionWithSecret,
        problems=(*FIELDS, "subscription_exists", "group_differs", "group_in_use", "name_in_use", *STORE),
    )
    async def create(self, request: web.Request, body: NewSubscription) -> web.Response:
        """Create a subscription that pushes a topic's messages to a URL; shows the secret only once."""
        access.of(request).check([body.topic])
        self._handle.check_topic(body.topic)
        made = await self._handle.push.create(body)
        return responses.created(made, f"/v1/subscriptions/{made.id}")

    @call(
        "GET",
        "/v1/subscriptions",
        "listSubscriptions",
        needs=Need.RECEIVE,
        answer=Subscriptions,
        problems=("illegal_cursor",),
    )
    async def all(self, request: web.Request, params: PageQuery) -> web.Response:
        """List subscriptions."""
        may, push = access.of(request).may, self._handle.push
        names = [name for name, topic in push.topics().items() if may(topic)]
        page, cursor = list_cursor.page(names, list_cursor.name_key, params.count_max, params.after)
        found = await made_of(self._handle.engine.clock, page, push.find)
        return responses.json(Subscriptions(found, params.answered(cursor)))

    @_reads("GET", SUBSCRIPTION, "getSubscription", etag=True)
    async def one(self, _: web.Request, path: SubscriptionPath) -> web.Response:
        """Get a subscription."""
        response = responses.json(self._handle.push.get(path.id))
        return etags.tagged(response, self._handle.push.tag(path.id))

    @_changes(
        "PATCH", SUBSCRIPTION, "changeSubscription", etag=True, problems=(*FIELDS, "group_differs", *STORE)
    )
    async def change(self, request: web.Request, path: SubscriptionPath, body: Changes) -> web.Response:
        """Change a subscription; takes effect with the next request."""
        when = etags.precondition(request)
        response = responses.json(await self._handle.push.update(path.id, body, when))
        return etags.tagged(response, self._handle.push.tag(path.id))

    @_changes("DELETE", SUBSCRIPTION, "deleteSubscription", etag=True)
    async def delete(self, request: web.Request, path: SubscriptionPath) -> web.Response:
        """Delete a subscription, with its group if the group was created for it."""
        view = self._handle.push.get(path.id)
        await self._handle.push.delete(path.id, etags.precondition(request))
        return responses.json(view)

    @_changes("POST", f"{SUBSCRIPTION}/pause", "pauseSubscription")
    async def pause(self, _: web.Request, path: SubscriptionPath) -> web.Response:
        """Pause a subscription."""
        return responses.json(await self._handle.push.pause(path.id))

    @_changes("POST", f"{SUBSCRIPTION}/resume", "resumeSubscription")
    async def resume(self, _: web.Request, path: SubscriptionPath) -> web.Response:
        """Resume a paused or disabled subscription."""
        return responses.json(await self._handle.push.resume(path.id))

    @_reads("POST", f"{SUBSCRIPTION}/test", "testSubscription", audited=True, answer=Outcome)
    async def test(self, _: web.Request, path: SubscriptionPath) -> web.Response:
        """Push a test message now and report the outcome."""
        return responses.json(await self._handle.push.test_fire(path.id))

    @_changes(
        "POST",
        f"{SUBSCRIPTION}/rotate-secret",
        "rotateSecret",
        answer=SubscriptionWithSecret,
        body_required=False,
        problems=("secret_rotation", *STORE),
    )
    async def rotate(self, _: web.Request, path: SubscriptionPath, body: NewSecret) -> web.Response:
        """Start a rotation: sign with a new secret as well; shows it only once."""
        return responses.json(await self._handle.push.rotate_secret(path.id, given(body.secret)))

    @_changes(
        "POST", f"{SUBSCRIPTION}/finish-rotation", "finishRotation", problems=("secret_rotation", *STORE)
    )
    async def finish_rotation(self, _: web.Request, path: SubscriptionPath) -> web.Response:
        """Finish a rotation: sign with the newest secret only."""
        return responses.json(await self._handle.push.finish_rotation(path.id))

    @_reads("GET", f"{SUBSCRIPTION}/attempts", "listAttempts", answer=Attempts, problems=("illegal_cursor",))
    async def attempts(self, _: web.Request, path: SubscriptionPath, params: PageQuery) -> web.Response:
        """List its last attempts since the service started.

        The newest comes first.
        """
        found, cursor = self._handle.push.attempts(path.id, params.count_max, params.after)
        return responses.json(Attempts(found, params.answered(cursor)))

    @_reads(
        "POST",
        f"{SUBSCRIPTION}/attempts",
        "sendAgain",
        audited=True,
        answer=Attempt,
        problems=("unknown_message", "message_deleted", "corruption"),
    )
    async def send_again(self, _: web.Request, path: SubscriptionPath, body: SendAgain) -> web.Response:
        """Deliver a message of its topic once more now, and report the outcome."""
        return responses.json(await self._handle.push.send_again(path.id, body.message_id))

    @_reads("GET", f"{SUBSCRIPTION}/stats", "getSubscriptionStats", answer=StatsView)
    async def stats(self, _: web.Request, path: SubscriptionPath) -> web.Response:
        """Get the counts of its attempts since the service started."""
        return responses.json(self._handle.push.stats(path.id))
