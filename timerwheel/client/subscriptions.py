"""Push subscriptions: topics whose messages the service posts to a URL."""

from msgspec import UNSET, UnsetType

from timerwheel.client.connection import Connection, arguments, given, part
from timerwheel.groups.config import Expired, Exponential, Ladder, Start
from timerwheel.push.attempts import Attempt
from timerwheel.push.outcome import Outcome
from timerwheel.push.stats import StatsView
from timerwheel.push.subscription import SubscriptionView, SubscriptionWithSecret
from timerwheel.wire import subscriptions as wire

_LIMITS = ("rate_limit", "max_age_ms")  # None removes one


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
        self,
        topic: str,
        url: str,
        *,
        id: str | None = None,  # noqa: A002 - the API's name
        group: str | None = None,
        secret: str | None = None,
        start: Start | None = None,
        paused: bool | None = None,
        tags: str | None = None,
        max_attempts: int | None = None,
        max_age_ms: int | UnsetType | None = UNSET,
        expired: Expired | None = None,
        backoff: Ladder | Exponential | None = None,
        concurrency: int | None = None,
        rate_limit: float | UnsetType | None = UNSET,
        timeout_ms: int | None = None,
        headers: dict[str, str] | None = None,
        cloudevents: bool | None = None,
    ) -> SubscriptionWithSecret:
        """Post the messages of a topic to a URL. Keep the secret: no other call shows it.

        The service chooses what is left out. `rate_limit` is in requests per second, `timeout_ms` for each
        request. `ConflictError` if a subscription with this `id` exists, or the `group` is in use.
        """
        content = arguments(locals(), *_LIMITS)
        return await self._connection.call(
            "POST", "/v1/subscriptions", SubscriptionWithSecret, content=content
        )

    async def update(
        self,
        subscription_id: str,
        *,
        url: str | None = None,
        tags: str | None = None,
        max_attempts: int | None = None,
        max_age_ms: int | UnsetType | None = UNSET,
        expired: Expired | None = None,
        backoff: Ladder | Exponential | None = None,
        concurrency: int | None = None,
        rate_limit: float | UnsetType | None = UNSET,
        timeout_ms: int | None = None,
        headers: dict[str, str] | None = None,
        cloudevents: bool | None = None,
        if_match: str | None = None,
    ) -> SubscriptionView:
        """Change the given fields from the next request on; None removes `rate_limit` or `max_age_ms`."""
        changes = arguments(locals(), *_LIMITS)
        del changes["subscription_id"]
        changes.pop("if_match", None)
        path = _path(subscription_id)
        return await self._connection.call(
            "PATCH", path, SubscriptionView, content=changes, if_match=if_match
        )

    async def etag(self, subscription_id: str) -> str:
        """Return the tag of a subscription, for `if_match`; see `Client.etag`."""
        return await self._connection.etag(_path(subscription_id))

    async def delete(self, subscription_id: str, *, if_match: str | None = None) -> SubscriptionView:
        """Delete it, with its group if that was created for it. Returns its last state."""
        path = _path(subscription_id)
        return await self._connection.call("DELETE", path, SubscriptionView, if_match=if_match)

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

    async def attempts(self, subscription_id: str) -> list[Attempt]:
        """Return its last attempts since the service started, newest first."""
        return (
            await self._connection.call("GET", f"{_path(subscription_id)}/attempts", wire.Attempts)
        ).attempts

    async def send_again(self, subscription_id: str, message_id: str) -> Attempt:
        """Post a delivered message of its topic once more now, and return the attempt."""
        content = {"message_id": message_id}
        return await self._connection.call(
            "POST", f"{_path(subscription_id)}/attempts", Attempt, content=content
        )

    async def stats(self, subscription_id: str) -> StatsView:
        """Return the counts of a subscription since the service started."""
        return await self._connection.call("GET", f"{_path(subscription_id)}/stats", StatsView)


def _path(subscription_id: str) -> str:
    return f"/v1/subscriptions/{part(subscription_id)}"
