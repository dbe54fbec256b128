"""The calls on push subscriptions."""

from functools import partial

from aiohttp import web
from msgspec import UNSET

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, etags, query, responses
from timerwheel.api.http.route import STORE, Need, call
from timerwheel.api.security import access
from timerwheel.push.attempts import Attempt
from timerwheel.push.outcome import Outcome
from timerwheel.push.stats import StatsView
from timerwheel.push.subscription import Changes, SubscriptionView, SubscriptionWithSecret
from timerwheel.wire.subscriptions import (
    Attempts,
    NewSecret,
    NewSubscription,
    SendAgain,
    SubscriptionPath,
    Subscriptions,
)

SUBSCRIPTION = "/v1/subscriptions/{id}"
KNOWN = ("unknown_subscription",)
# What a subscription says of its group is the group's to refuse.
FIELDS = (
    *("illegal_subscription", "illegal_topic", "illegal_group", "illegal_filter"),
    *("system_topic", "topic_ending", "too_many_groups", "too_many_subscriptions", "setting_too_large"),
)

_reads = partial(
    call, needs=Need.RECEIVE, path_type=SubscriptionPath, answer=SubscriptionView, problems=KNOWN
)
_changes = partial(_reads, audited=True, problems=(*KNOWN, "topic_ending", *STORE))


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
        body=NewSubscription,
        problems=(*FIELDS, "subscription_exists", "group_differs", "group_in_use", "name_in_use", *STORE),
    )
    async def create(self, request: web.Request) -> web.Response:
        """Create a subscription that pushes a topic's messages to a URL; shows the secret only once."""
        new = await bodies.read(request, NewSubscription)
        access.of(request).check([new.topic])
        self._handle.check_topic(new.topic)
        made = await self._handle.push.create(new)
        return responses.created(made, f"/v1/subscriptions/{made.id}")

    @call("GET", "/v1/subscriptions", "listSubscriptions", needs=Need.RECEIVE, answer=Subscriptions)
    async def all(self, request: web.Request) -> web.Response:
        """List all subscriptions."""
        may = access.of(request).may
        return responses.json(Subscriptions([one for one in self._handle.push.all() if may(one.topic)]))

    @_reads("GET", SUBSCRIPTION, "getSubscription", etag=True)
    async def one(self, request: web.Request) -> web.Response:
        """Get a subscription."""
        subscription_id = _id(request)
        response = responses.json(self._handle.push.get(subscription_id))
        return etags.tagged(response, self._handle.push.tag(subscription_id))

    @_changes(
        "PATCH",
        SUBSCRIPTION,
        "changeSubscription",
        etag=True,
        body=Changes,
        problems=(*KNOWN, *FIELDS, "group_differs", *STORE),
    )
    async def change(self, request: web.Request) -> web.Response:
        """Change a subscription; takes effect with the next request."""
        subscription_id = _id(request)
        changes = await bodies.read(request, Changes)
        when = etags.precondition(request)
        response = responses.json(await self._handle.push.update(subscription_id, changes, when))
        return etags.tagged(response, self._handle.push.tag(subscription_id))

    @_changes("DELETE", SUBSCRIPTION, "deleteSubscription", etag=True)
    async def delete(self, request: web.Request) -> web.Response:
        """Delete a subscription, with its group if the group was created for it."""
        subscription_id = _id(request)
        view = self._handle.push.get(subscription_id)
        await self._handle.push.delete(subscription_id, etags.precondition(request))
        return responses.json(view)

    @_changes("POST", f"{SUBSCRIPTION}/pause", "pauseSubscription")
    async def pause(self, request: web.Request) -> web.Response:
        """Pause a subscription."""
        return responses.json(await self._handle.push.pause(_id(request)))

    @_changes("POST", f"{SUBSCRIPTION}/resume", "resumeSubscription")
    async def resume(self, request: web.Request) -> web.Response:
        """Resume a paused or disabled subscription."""
        return responses.json(await self._handle.push.resume(_id(request)))

    @_reads("POST", f"{SUBSCRIPTION}/test", "testSubscription", audited=True, answer=Outcome)
    async def test(self, request: web.Request) -> web.Response:
        """Push a test message now and report the outcome."""
        return responses.json(await self._handle.push.test_fire(_id(request)))

    @_changes(
        "POST",
        f"{SUBSCRIPTION}/rotate-secret",
        "rotateSecret",
        answer=SubscriptionWithSecret,
        body=NewSecret,
        body_required=False,
        problems=(*KNOWN, "secret_rotation", *STORE),
    )
    async def rotate(self, request: web.Request) -> web.Response:
        """Start a rotation: sign with a new secret as well; shows it only once."""
        subscription_id = _id(request)
        new = await bodies.read(request, NewSecret, may_be_empty=True)
        secret = None if new.secret is UNSET else new.secret
        return responses.json(await self._handle.push.rotate_secret(subscription_id, secret))

    @_changes(
        "POST",
        f"{SUBSCRIPTION}/finish-rotation",
        "finishRotation",
        problems=(*KNOWN, "secret_rotation", *STORE),
    )
    async def finish_rotation(self, request: web.Request) -> web.Response:
        """Finish a rotation: sign with the newest secret only."""
        return responses.json(await self._handle.push.finish_rotation(_id(request)))

    @_reads("GET", f"{SUBSCRIPTION}/attempts", "listAttempts", answer=Attempts)
    async def attempts(self, request: web.Request) -> web.Response:
        """List its last attempts since the service started.

        The newest comes first.
        """
        return responses.json(Attempts(self._handle.push.attempts(_id(request))))

    @_reads(
        "POST",
        f"{SUBSCRIPTION}/attempts",
        "sendAgain",
        audited=True,
        answer=Attempt,
        body=SendAgain,
        problems=(*KNOWN, "unknown_message", "message_deleted", "corruption"),
    )
    async def send_again(self, request: web.Request) -> web.Response:
        """Deliver a message of its topic once more now, and report the outcome."""
        subscription_id = _id(request)
        wanted = await bodies.read(request, SendAgain)
        return responses.json(await self._handle.push.send_again(subscription_id, wanted.message_id))

    @_reads("GET", f"{SUBSCRIPTION}/stats", "getSubscriptionStats", answer=StatsView)
    async def stats(self, request: web.Request) -> web.Response:
        """Get the counts of its attempts since the service started."""
        return responses.json(self._handle.push.stats(_id(request)))


def _id(request: web.Request) -> str:
    return query.path(request, SubscriptionPath).id
