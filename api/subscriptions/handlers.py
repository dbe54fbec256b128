"""The calls on push subscriptions."""

from aiohttp import web
from msgspec import UNSET

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, etags, query, responses
from timerwheel.api.security import access
from timerwheel.push.subscription import Changes
from timerwheel.wire.fields import NoQuery
from timerwheel.wire.subscriptions import (
    Attempts,
    NewSecret,
    NewSubscription,
    SendAgain,
    SubscriptionPath,
    Subscriptions,
)


class SubscriptionCalls:
    """Handlers under `/v1/subscriptions`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    async def create(self, request: web.Request) -> web.Response:
        """POST /v1/subscriptions: 201 with the secret, which is shown only here."""
        query.read(request, NoQuery)
        new = await bodies.read(request, NewSubscription)
        access.of(request).check([new.topic])
        self._handle.check_topic(new.topic)
        made = await self._handle.push.create(new)
        return responses.created(made, f"/v1/subscriptions/{made.id}")

    async def all(self, request: web.Request) -> web.Response:
        """GET /v1/subscriptions: every subscription of the caller's topics."""
        query.read(request, NoQuery)
        may = access.of(request).may
        return responses.json(Subscriptions([one for one in self._handle.push.all() if may(one.topic)]))

    async def one(self, request: web.Request) -> web.Response:
        """GET /v1/subscriptions/{id}: one subscription."""
        subscription_id = _id(request)
        response = responses.json(self._handle.push.get(subscription_id))
        return etags.tagged(response, self._handle.push.tag(subscription_id))

    async def change(self, request: web.Request) -> web.Response:
        """PATCH /v1/subscriptions/{id}: changes the given fields, from the next request on."""
        subscription_id = _id(request)
        changes = await bodies.read(request, Changes)
        when = etags.precondition(request)
        response = responses.json(await self._handle.push.update(subscription_id, changes, when))
        return etags.tagged(response, self._handle.push.tag(subscription_id))

    async def delete(self, request: web.Request) -> web.Response:
        """DELETE /v1/subscriptions/{id}: returns its last state."""
        subscription_id = _id(request)
        view = self._handle.push.get(subscription_id)
        await self._handle.push.delete(subscription_id, etags.precondition(request))
        return responses.json(view)

    async def pause(self, request: web.Request) -> web.Response:
        """POST .../pause: takes no more messages."""
        return responses.json(await self._handle.push.pause(_id(request)))

    async def resume(self, request: web.Request) -> web.Response:
        """POST .../resume: delivers again, even if the service had disabled it."""
        return responses.json(await self._handle.push.resume(_id(request)))

    async def test(self, request: web.Request) -> web.Response:
        """POST .../test: pushes a test message now and returns the outcome."""
        return responses.json(await self._handle.push.test_fire(_id(request)))

    async def rotate(self, request: web.Request) -> web.Response:
        """POST .../rotate-secret: signs with a new secret as well as the old one."""
        subscription_id = _id(request)
        new = await bodies.read(request, NewSecret, may_be_empty=True)
        secret = None if new.secret is UNSET else new.secret
        return responses.json(await self._handle.push.rotate_secret(subscription_id, secret))

    async def finish_rotation(self, request: web.Request) -> web.Response:
        """POST .../finish-rotation: signs with the newest secret only."""
        return responses.json(await self._handle.push.finish_rotation(_id(request)))

    async def attempts(self, request: web.Request) -> web.Response:
        """GET .../attempts: its last attempts, newest first."""
        return responses.json(Attempts(self._handle.push.attempts(_id(request))))

    async def send_again(self, request: web.Request) -> web.Response:
        """POST .../attempts: delivers a message once more now and returns the attempt."""
        subscription_id = _id(request)
        wanted = await bodies.read(request, SendAgain)
        return responses.json(await self._handle.push.send_again(subscription_id, wanted.message_id))

    async def stats(self, request: web.Request) -> web.Response:
        """GET .../stats: the counts of its attempts."""
        return responses.json(self._handle.push.stats(_id(request)))


def _id(request: web.Request) -> str:
    query.read(request, NoQuery)
    return query.path(request, SubscriptionPath).id
