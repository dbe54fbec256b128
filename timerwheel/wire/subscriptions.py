"""Push subscriptions on the wire; see `timerwheel.wire`."""

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.groups.config import Exponential, Ladder, Start
from timerwheel.push.subscription import Draft, SubscriptionView

if TYPE_CHECKING:
    from timerwheel.push.push import Created  # the client imports this module, and needs no engine


class NewSubscription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the messages of a topic go, and how; what is left out is chosen."""

    topic: str
    url: Annotated[str, Meta(description="http or https")]
    id: str | UnsetType = UNSET
    secret: Annotated[str, Meta(description="whsec_ and base64")] | UnsetType = UNSET
    group: str | UnsetType = UNSET
    start: Start | UnsetType = UNSET
    tags: str | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    backoff: Ladder | Exponential | UnsetType = UNSET
    concurrency: int | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    cloudevents: bool | UnsetType = UNSET
    paused: bool | UnsetType = UNSET

    def draft(self) -> Draft:
        """In the engine's terms."""
        values = msgspec.structs.asdict(self)
        return Draft(**{name: value for name, value in values.items() if value is not UNSET})


class NewSecret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A secret of one's own; else one is made."""

    secret: Annotated[str, Meta(description="whsec_ and base64")] | UnsetType = UNSET


class SubscriptionWithSecret(SubscriptionView, frozen=True, kw_only=True):
    """A subscription with its newest secret, which is shown this once."""

    secret: str

    @classmethod
    def of(cls, created: "Created") -> "SubscriptionWithSecret":
        """The wire's form of what the engine tells."""
        return cls(**msgspec.structs.asdict(created.subscription), secret=created.secret)


class Subscriptions(msgspec.Struct, frozen=True):
    """All subscriptions, in the order in which they were made."""

    subscriptions: list[SubscriptionView]


class SubscriptionPath(msgspec.Struct, frozen=True):
    """One subscription."""

    id: str
