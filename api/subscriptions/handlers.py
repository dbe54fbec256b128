"""The calls on push subscriptions."""

from aiohttp import web
from msgspec import UNSET

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, query, responses
from timerwheel.api.security import access
from timerwheel.push.subscription import Changes
from timerwheel.wire.fields import NoQuery
from timerwheel.wire.subscriptions import (
    NewSecret,
    NewSubscription,
    SubscriptionPath,
    Subscriptions,
    SubscriptionWithSecret,
)


class SubscriptionCalls:
    """Handlers under `/v1/subscriptions`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    async def create(self, request: web.Request) -> web.Response:
        """POST /v1/subscriptions: 201 with the secret, which is shown this once."""
        query.read(request, NoQuery)
        new = await bodies.read(request, NewSubscription)
        access.of(request).check([new.topic])
        created = await self._handle.push.create(new.draft())
        return responses.created(
            SubscriptionWithSecret.of(created), f"/v1/subscriptions/{created.subscription.id}"
        )

    async def all(self, request: web.Request) -> web.Response:
        """GET /v1/subscriptions: every subscription of the caller's topics."""
        query.read(request, NoQuery)
        may = access.of(request).may
        return responses.json(Subscriptions([one for one in self._handle.push.all() if may(one.topic)]))

    async def one(self, request: web.Request) -> web.Response:
        """GET /v1/subscriptions/{id}: one subscription."""
        return responses.json(self._handle.push.get(_id(request)))

    async def change(self, request: web.Request) -> web.Response:
        """PATCH /v1/subscriptions/{id}: what is given, from the next request on."""
        subscription_id = _id(request)
        changes = await bodies.read(request, Changes)
        return responses.json(await self._handle.push.update(subscription_id, changes))

    async def delete(self, request: web.Request) -> web.Response:
        """DELETE /v1/subscriptions/{id}: answers with it as it was."""
        subscription_id = _id(request)
        view = self._handle.push.get(subscription_id)
        await self._handle.push.delete(subscription_id)
        return responses.json(view)

    async def pause(self, request: web.Request) -> web.Response:
        """POST .../pause: no more messages are taken."""
        return responses.json(await self._handle.push.pause(_id(request)))

    async def resume(self, request: web.Request) -> web.Response:
        """POST .../resume: deliver, also after the service itself stopped to."""
        return responses.json(await self._handle.push.resume(_id(request)))

    async def test(self, request: web.Request) -> web.Response:
        """POST .../test: one made-up message is delivered now; the answer says what came of it."""
        return responses.json(await self._handle.push.test_fire(_id(request)))

    async def rotate(self, request: web.Request) -> web.Response:
        """POST .../rotate-secret: sign with a new secret beside the old one."""
        subscription_id = _id(request)
        new = await bodies.read(request, NewSecret, may_be_empty=True)
        secret = None if new.secret is UNSET else new.secret
        created = await self._handle.push.rotate_secret(subscription_id, secret)
        return responses.json(SubscriptionWithSecret.of(created))

    async def finish_rotation(self, request: web.Request) -> web.Response:
        """POST .../finish-rotation: sign with the newest secret alone."""
        return responses.json(await self._handle.push.finish_rotation(_id(request)))

    async def stats(self, request: web.Request) -> web.Response:
        """GET .../stats: what became of its attempts."""
        return responses.json(self._handle.push.stats(_id(request)))


def _id(request: web.Request) -> str:
    query.read(request, NoQuery)
    return query.path(request, SubscriptionPath).id
