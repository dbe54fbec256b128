"""A subscription: where and how the messages of a topic are pushed. Pure.

It is stored in the control table `push` under its id, as the JSON value that `to_value` returns. Secrets and
the values of headers, which may be secrets too, never leave through a `SubscriptionView`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import (
    Expired,
    Exponential,
    GroupConfig,
    GroupDiffersError,
    Ladder,
    Start,
    check_group,
)
from timerwheel.model.admission import check_topic
from timerwheel.model.tags import TagFilter
from timerwheel.push.addresses import TargetError, check_url
from timerwheel.push.signing import SecretError, key_of
from timerwheel.push.stats import Health

GROUP_PREFIX = "push-"
NEW_GROUP_START: Start = "tail"
HEALTHY = Health()
GROUP_FIELDS = ("start", "tags", "max_attempts", "backoff", "max_age_ms", "expired")

SUBSCRIPTIONS_MAX = 10_000
CONCURRENCY_MAX = 256
RATE_LIMIT_MIN, RATE_LIMIT_MAX = 0.001, 10_000
"""Requests per second."""
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 100, 300_000
LEASE_MARGIN_MS = 15_000
HEADERS_MAX = 32
HEADER_NAME_CHARACTERS_MAX = 128
HEADER_VALUE_CHARACTERS_MAX = 4_096
SECRETS_MAX = 2

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[!-~](?:[ !-~]*[!-~])?|")
_OWN_PREFIXES = ("webhook-", "ce-", "proxy-", "timerwheel-")
# They belong to one connection or to the framing of the request; a wrong one would make it ambiguous.
_OWN_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

Status = Literal["active", "paused", "disabled"]
GivenSecret = Annotated[str, Meta(description="whsec_ and base64")]


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one subscription; call `checked` before using it.

    `secrets` are one, or two during a rotation, the newest first. `start`, `tags`, `max_attempts`, `backoff`,
    `max_age_ms` and `expired` are the group's, as of when this was stored. `disabled` says why the service
    itself stopped delivering. `heir` says that a subscription created the group, so deleting this one may
    delete the group too.
    """

    id: str
    topic: str
    url: str
    secrets: list[str]
    group: str = ""
    start: Start = "head"
    tags: str = "*"
    max_attempts: int = 16
    backoff: Ladder | Exponential = Ladder()
    max_age_ms: int | None = None
    expired: Expired = "drop"
    concurrency: int = 8
    rate_limit: float | None = None
    timeout_ms: int = 15_000
    headers: dict[str, str] = {}
    cloudevents: bool = False
    paused: bool = False
    disabled: str | None = None
    heir: bool = False

    @property
    def status(self) -> Status:
        """Tell whether messages are delivered, and if not, who stopped it."""
        if self.disabled is not None:
            return "disabled"
        return "paused" if self.paused else "active"

    @property
    def lease_ms(self) -> int:
        """How long a message is leased for an attempt: longer than the attempt can last."""
        return self.timeout_ms + LEASE_MARGIN_MS

    @property
    def group_config(self) -> GroupConfig:
        """Return the configuration that the group must have."""
        return GroupConfig(
            start=self.start,
            tags=self.tags,
            max_attempts=self.max_attempts,
            invisible_ms=self.lease_ms,
            backoff=self.backoff,
            max_age_ms=self.max_age_ms,
            expired=self.expired,
        )

    @property
    def owns_group(self) -> bool:
        """Tell whether the group was created for subscriptions, and is deleted with the last of them."""
        return self.heir or self.group == GROUP_PREFIX + self.id

    def with_headers(self, more: Mapping[str, str]) -> "Subscription":
        """Return it with headers for one attempt besides its own."""
        return msgspec.structs.replace(self, headers={**self.headers, **more}) if more else self

    def with_group(self, config: GroupConfig | None) -> "Subscription":
        """Return it with the current configuration of its group; None is a group that does not exist."""
        if config is None:
            return self
        return msgspec.structs.replace(self, **{name: getattr(config, name) for name in GROUP_FIELDS})


class _Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client may choose when it creates a subscription, and change later."""

    tags: str | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    backoff: Ladder | Exponential | UnsetType = UNSET
    max_age_ms: int | UnsetType | None = UNSET
    expired: Expired | UnsetType = UNSET
    concurrency: int | UnsetType = UNSET
    rate_limit: Annotated[float | None, Meta(description="Requests per second")] | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    cloudevents: bool | UnsetType = UNSET

    def given(self) -> dict[str, Any]:
        """Return the fields that were given."""
        values = msgspec.structs.asdict(self)
        return {name: value for name, value in values.items() if value is not UNSET}


class Draft(_Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client gives to create a subscription; the service chooses the rest.

    Without a `secret` one is generated. The group is `push-` and the id, or one that the client names; fields
    that are not given keep the values of an existing group. A new group begins at the tail: otherwise the
    endpoint would be flooded by all kept messages.
    """

    topic: str
    url: Annotated[str, Meta(description="http or https")]
    id: str | UnsetType = UNSET
    secret: GivenSecret | UnsetType = UNSET
    group: str | UnsetType = UNSET
    start: Start | UnsetType = UNSET
    paused: bool | UnsetType = UNSET

    def subscription(self, subscription_id: str, secret: str) -> Subscription:
        """Return the subscription of this draft."""
        values = {"start": NEW_GROUP_START, "group": GROUP_PREFIX + subscription_id} | self.given()
        values.pop("secret", None)
        return Subscription(**values | {"id": subscription_id, "secrets": [secret]})


class Changes(_Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a subscription to change. Id, topic, group and start never change."""

    url: str | UnsetType = UNSET

    def apply(self, subscription: Subscription) -> Subscription:
        """Return the subscription with these changes."""
        return msgspec.structs.replace(subscription, **self.given())


class SubscriptionView(Health, frozen=True, kw_only=True):
    """The public form of a subscription. It is `failing` if it is active and its endpoint is failing."""

    id: str
    topic: str
    group: str
    url: str
    status: Status | Literal["failing"]
    disabled: str | None
    start: str
    tags: str
    max_attempts: int
    backoff: Ladder | Exponential
    max_age_ms: int | None = None
    expired: Expired = "drop"
    concurrency: int
    rate_limit: float | None
    timeout_ms: int
    header_names: list[str]
    cloudevents: bool
    secrets_valid: int


class SubscriptionWithSecret(SubscriptionView, frozen=True, kw_only=True):
    """A subscription with its newest secret, which is shown this once."""

    secret: str


def view_of(subscription: Subscription, health: Health = HEALTHY) -> SubscriptionView:
    """Return the public form."""
    failing = subscription.status == "active" and health.failing_since_ms is not None
    values = msgspec.structs.asdict(subscription)
    del values["paused"], values["heir"]
    return SubscriptionView(
        status="failing" if failing else subscription.status,
        **msgspec.structs.asdict(health),
        header_names=list(values.pop("headers")),
        secrets_valid=len(values.pop("secrets")),
        **values,
    )


def check_agrees(given: Draft | Changes, subscription: Subscription, config: GroupConfig) -> None:
    """Raise GroupDiffersError that names the first given field that differs from the group."""
    for field, value in given.given().items():
        if field not in GROUP_FIELDS or value == (has := getattr(config, field)):
            continue
        if field == "tags" and TagFilter.parse(value) == TagFilter.parse(has):
            continue
        raise GroupDiffersError(
            f"{field}: group {subscription.group!r} of topic {subscription.topic!r} has "
            f"{msgspec.json.encode(has).decode()}, and other consumers may use it; leave {field} "
            "out or change the group"
        )


def to_value(subscription: Subscription) -> dict[str, Any]:
    """Return the JSON value that the control table stores."""
    return dict(msgspec.to_builtins(subscription))


def from_value(value: Any) -> Subscription:  # noqa: ANN401 - a JSON value
    """Decode a value of the control table; SubscriptionError if it is not a subscription.

    Empty tags, which older versions stored, are `*`.
    """
    try:
        found = msgspec.convert(value, Subscription)
    except msgspec.ValidationError as error:
        raise SubscriptionError("value", str(error)) from None
    return found if found.tags.strip() else msgspec.structs.replace(found, tags="*")


def checked(subscription: Subscription, *, allow_private: bool) -> Subscription:
    """Return the subscription with its URL in the form that is called.

    SubscriptionError names the first wrong field; AdmissionError, IllegalGroupError and IllegalFilterError
    are about topic, group and tags, as in any other call.
    """
    if _ID.fullmatch(subscription.id) is None:
        raise SubscriptionError("id", f"{subscription.id[:80]!r} does not match {_ID.pattern}")
    check_topic(subscription.topic, is_known=True)  # its group is created first, which may refuse the topic
    check_group(subscription.group)
    subscription.group_config.check()
    check_range("concurrency", subscription.concurrency, 1, CONCURRENCY_MAX)
    if subscription.rate_limit is not None:
        check_range("rate_limit", subscription.rate_limit, RATE_LIMIT_MIN, RATE_LIMIT_MAX)
    check_range("timeout_ms", subscription.timeout_ms, TIMEOUT_MS_MIN, TIMEOUT_MS_MAX)
    check_headers(subscription.headers)
    check_secrets(subscription.secrets)
    try:
        url = check_url(subscription.url, allow_private=allow_private)
    except TargetError as error:
        raise IllegalUrlError(str(error)) from None
    return msgspec.structs.replace(subscription, url=url)


def check_range(field: str, value: float, low: float, high: float) -> None:
    """Raise SubscriptionError that names the field unless its value is from low to high."""
    if not low <= value <= high:
        raise SubscriptionError(field, f"{value} is not from {low} to {high}")


def check_secrets(secrets: Sequence[str]) -> None:
    """Raise SubscriptionError unless these are one or two secrets of Standard Webhooks."""
    if not 1 <= len(secrets) <= SECRETS_MAX:
        raise SubscriptionError("secret", f"{len(secrets)} given; must be from 1 to {SECRETS_MAX}")
    for secret in secrets:
        try:
            key_of(secret)
        except SecretError as error:
            raise SubscriptionError("secret", str(error)) from None


def rotated(whose: str, secrets: Sequence[str], new: str) -> list[str]:
    """Return the secrets that are valid once a rotation to a new one begins; RotationError."""
    if len(secrets) > 1:
        raise RotationError(f"two secrets of {whose} are already valid; finish that rotation first")
    return [new, *secrets]


def rotation_ended(whose: str, secrets: Sequence[str]) -> list[str]:
    """Return the secret that is still valid when a rotation ends; RotationError."""
    if len(secrets) == 1:
        raise RotationError(f"only one secret of {whose} is valid; rotate it first")
    return [secrets[0]]


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise SubscriptionError for a header that the service sets, or that cannot be sent."""
    if len(headers) > HEADERS_MAX:
        raise SubscriptionError("headers", f"{len(headers)} given; at most {HEADERS_MAX} are allowed")
    if len({name.lower() for name in headers}) < len(headers):
        raise SubscriptionError("headers", "two names differ only in case")
    for name, value in headers.items():
        if len(name) > HEADER_NAME_CHARACTERS_MAX or not _HEADER_NAME.fullmatch(name):
            raise SubscriptionError("headers", f"{name[:80]!r} is not a valid header name")
        if name.lower() in _OWN_HEADERS or name.lower().startswith(_OWN_PREFIXES):
            raise SubscriptionError("headers", f"{name}: only the service may set this")
        if len(value) > HEADER_VALUE_CHARACTERS_MAX or not _HEADER_VALUE.fullmatch(value):
            raise SubscriptionError(
                "headers",
                (
                    f"{name}: the value must be at most {HEADER_VALUE_CHARACTERS_MAX} printable ASCII "
                    "characters"
                ),
            )


class SubscriptionError(TimerwheelError):
    """A field of a subscription is wrong; `field` names it, the message says what is allowed."""

    code = "invalid_field"

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field


class IllegalUrlError(SubscriptionError):
    """The URL is not one that messages may be posted to."""

    code = "illegal_subscription"

    def __init__(self, detail: str) -> None:
        super().__init__("url", detail)


class TooManySubscriptionsError(TimerwheelError):
    """The service has reached its limit of subscriptions."""

    code = "too_many_subscriptions"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the limit of {limit} subscriptions is reached; delete some first")


class UnknownSubscriptionError(TimerwheelError):
    """No subscription has this id."""

    code = "unknown_subscription"

    def __init__(self, subscription_id: str) -> None:
        super().__init__(f"there is no subscription {subscription_id!r}")


class SubscriptionExistsError(TimerwheelError):
    """The id is taken; update the subscription or choose another id."""

    code = "subscription_exists"

    def __init__(self, subscription_id: str) -> None:
        super().__init__(f"subscription {subscription_id!r} already exists")


class GroupInUseError(TimerwheelError):
    """A subscription consumes as this group; delete the subscription first."""

    code = "group_in_use"

    def __init__(self, topic: str, group: str, subscription_id: str) -> None:
        super().__init__(
            f"group {group!r} of topic {topic!r} is used by subscription {subscription_id!r}; "
            "delete the subscription first"
        )
        self.subscription_id = subscription_id


class RotationError(TimerwheelError):
    """A rotation of the secret is in progress already, or none is; the message says which."""

    code = "secret_rotation"
