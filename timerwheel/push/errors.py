"""Errors of calls about push subscriptions; `timerwheel.api.problems` maps their codes to HTTP."""

from timerwheel.errors import TimerwheelError


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
    """The service has as many subscriptions as it may have."""

    code = "too_many_subscriptions"

    def __init__(self, limit: int) -> None:
        super().__init__(f"there are {limit} subscriptions already, which is the most; delete some first")


class UnknownSubscriptionError(TimerwheelError):
    """No subscription has this id."""

    code = "unknown_subscription"

    def __init__(self, subscription_id: str) -> None:
        super().__init__(f"there is no subscription {subscription_id!r}")


class SubscriptionExistsError(TimerwheelError):
    """The id is taken; update the subscription or choose another id."""

    code = "subscription_exists"

    def __init__(self, subscription_id: str) -> None:
        super().__init__(f"there is a subscription {subscription_id!r} already")


class GroupInUseError(TimerwheelError):
    """A subscription consumes as this group; delete the subscription first."""

    code = "group_in_use"

    def __init__(self, topic: str, group: str, subscription_id: str) -> None:
        super().__init__(
            f"group {group!r} of topic {topic!r} is that of subscription {subscription_id!r}; "
            "delete the subscription first"
        )
        self.subscription_id = subscription_id


class RotationError(TimerwheelError):
    """A secret is being rotated already, or none is; the message says which."""

    code = "secret_rotation"
