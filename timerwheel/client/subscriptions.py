"""Push subscriptions: topics whose messages the service posts to a URL."""

from typing import TypedDict, Unpack

from timerwheel.client.connection import Connection, given, part
from timerwheel.groups.config import Exponential, Ladder, Start
from timerwheel.push.outcome import Outcome
from timerwheel.push.stats import StatsView
from timerwheel.push.subscription import SubscriptionView, SubscriptionWithSecret
from timerwheel.wire import subscriptions as wire


class PushOptions(TypedDict, total=False):
    """How to post messages; the service chooses what is left out."""

    tags: str
    max_attempts: int
    backoff: Ladder | Exponential
    concurrency: int
    rate_limit: float | None
    timeout_ms: int
    headers: dict[str, str]
    cloudevents: bool


class SubscriptionChanges(PushOptions, total=False):
    """The fields of a subscription to change."""

    url: str


class SubscriptionOptions(PushOptions, total=False):
    """The fields of a new subscription besides topic and URL."""

    id: str
    group: str
    secret: str
    start: Start
    paused: bool


class Subscriptions:
    """The subscriptions of a service, by id."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def all(self) -> list[SubscriptionView]:
        """Return all subscriptions, oldest first."""
        return (await self._connection.call("GET", "/v1/subscriptions", wire.Subscriptions)).subscriptions

    async def get(self, subscription_id: str) -> SubscriptionView:
        """Return one subscription."""
        return await self._connection.call("GET", _path(subscription_id), SubscriptionView)

    async def add(
        self, topic: str, url: str, **options: Unpack[SubscriptionOptions]
    ) -> SubscriptionWithSecret:
        """Post the messages of a topic to a URL. Keep the secret: no other call shows it."""
        content = {"topic": topic, "url": url, **options}
        return await self._connection.call(
            "POST", "/v1/subscriptions", SubscriptionWithSecret, content=content
        )

    async def update(self, subscription_id: str, **changes: Unpack[SubscriptionChanges]) -> SubscriptionView:
        """Change the given fields, from the next request on."""
        return await self._connection.call("PATCH", _path(subscription_id), SubscriptionView, content=changes)

    async def delete(self, subscription_id: str) -> SubscriptionView:
        """Delete it, with its group if that was created for it. Returns its last state."""
        return await self._connection.call("DELETE", _path(subscription_id), SubscriptionView)

    async def pause(self, subscription_id: str) -> SubscriptionView:
        """Pause until `resume`."""
        return await self._connection.call("POST", f"{_path(subscription_id)}/pause", SubscriptionView)

    async def resume(self, subscription_id: str) -> SubscriptionView:
        """Resume at once, even if the service had disabled it."""
        return await self._connection.call("POST", f"{_path(subscription_id)}/resume", SubscriptionView)

    async def test(self, subscription_id: str) -> Outcome:
        """Post a test message now, and return the outcome."""
        return await self._connection.call("POST", f"{_path(subscription_id)}/test", Outcome)

    async def rotate_secret(self, subscription_id: str, secret: str | None = None) -> SubscriptionWithSecret:
        """Sign with a new secret, given or generated, and the old one, until `finish_rotation`."""
        path = f"{_path(subscription_id)}/rotate-secret"
        return await self._connection.call("POST", path, SubscriptionWithSecret, content=given(secret=secret))

    async def finish_rotation(self, subscription_id: str) -> SubscriptionView:
        """Sign with the newest secret only."""
        path = f"{_path(subscription_id)}/finish-rotation"
        return await self._connection.call("POST", path, SubscriptionView)

    async def stats(self, subscription_id: str) -> StatsView:
        """Return the counts of a subscription since the service started."""
        return await self._connection.call("GET", f"{_path(subscription_id)}/stats", StatsView)


def _path(subscription_id: str) -> str:
    return f"/v1/subscriptions/{part(subscription_id)}"
