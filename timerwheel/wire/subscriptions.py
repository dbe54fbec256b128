"""Push subscriptions on the wire; see `timerwheel.wire`."""

import msgspec
from msgspec import UNSET, UnsetType

from timerwheel.push.attempts import Attempt
from timerwheel.push.subscription import Draft, GivenSecret, SubscriptionView
from timerwheel.wire.paging import PagedCursor


class NewSubscription(Draft, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where and how to push the messages of a topic; the service chooses what is left out."""


class NewSecret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A secret to use; without it, one is generated."""

    secret: GivenSecret | UnsetType = UNSET


class Subscriptions(msgspec.Struct, frozen=True):
    """Subscriptions by id."""

    subscriptions: list[SubscriptionView]
    cursor: PagedCursor = UNSET


class Attempts(msgspec.Struct, frozen=True):
    """The last attempts of a subscription since the service started, newest first."""

    attempts: list[Attempt]
    cursor: PagedCursor = UNSET


class SendAgain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which message to deliver once more."""

    message_id: str


class SubscriptionPath(msgspec.Struct, frozen=True):
    """One subscription."""

    id: str
