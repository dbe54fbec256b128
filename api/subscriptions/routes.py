"""The calls on push subscriptions."""

from functools import partial

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http.needs import Need
from timerwheel.api.http.route import ENGINE, JSON, JSON_BODY, STORE, Route
from timerwheel.api.subscriptions.handlers import SubscriptionCalls
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
KNOWN = (*ENGINE, "unknown_subscription")
# What a subscription says of its group is the group's to refuse.
FIELDS = (
    *("illegal_subscription", "illegal_topic", "illegal_group", "illegal_filter"),
    *("system_topic", "topic_ending", "too_many_groups", "too_many_subscriptions", "setting_too_large"),
)


def subscription_routes(handle: EngineHandle) -> list[Route]:
    """Calls under `/v1/subscriptions`."""
    calls = SubscriptionCalls(handle)
    one = partial(
        Route, needs=Need.RECEIVE, path_type=SubscriptionPath, answer=SubscriptionView, problems=KNOWN
    )
    change = partial(one, audited=True, problems=(*KNOWN, "topic_ending", *STORE))
    return [
        Route(
            method="POST",
            path="/v1/subscriptions",
            name="createSubscription",
            summary=(
                "Create a subscription that pushes a topic's messages to a URL; shows the secret only once"
            ),
            needs=Need.RECEIVE,
            audited=True,
            handler=calls.create,
            status=201,
            located=True,
            answer=SubscriptionWithSecret,
            bodies={JSON: NewSubscription},
            problems=(
                *ENGINE,
                *JSON_BODY,
                *FIELDS,
                "subscription_exists",
                "group_differs",
                "name_in_use",
                *STORE,
            ),
        ),
        Route(
            method="GET",
            path="/v1/subscriptions",
            name="listSubscriptions",
            summary="List all subscriptions",
            needs=Need.RECEIVE,
            handler=calls.all,
            answer=Subscriptions,
            problems=ENGINE,
        ),
        one(
            method="GET",
            path=SUBSCRIPTION,
            name="getSubscription",
            etag=True,
            summary="Get a subscription",
            handler=calls.one,
        ),
        change(
            method="PATCH",
            path=SUBSCRIPTION,
            name="changeSubscription",
            etag=True,
            summary="Change a subscription; takes effect with the next request",
            handler=calls.change,
            bodies={JSON: Changes},
            problems=(*KNOWN, *JSON_BODY, *FIELDS, "group_differs", *STORE),
        ),
        change(
            method="DELETE",
            path=SUBSCRIPTION,
            name="deleteSubscription",
            etag=True,
            summary="Delete a subscription, with its group if the group was created for it",
            handler=calls.delete,
        ),
        change(
            method="POST",
            path=f"{SUBSCRIPTION}/pause",
            name="pauseSubscription",
            summary="Pause a subscription",
            handler=calls.pause,
        ),
        change(
            method="POST",
            path=f"{SUBSCRIPTION}/resume",
            name="resumeSubscription",
            summary="Resume a paused or disabled subscription",
            handler=calls.resume,
        ),
        one(
            method="POST",
            path=f"{SUBSCRIPTION}/test",
            name="testSubscription",
            summary="Push a test message now and report the outcome",
            audited=True,
            handler=calls.test,
            answer=Outcome,
        ),
        change(
            method="POST",
            path=f"{SUBSCRIPTION}/rotate-secret",
            name="rotateSecret",
            summary="Start a rotation: sign with a new secret as well; shows it only once",
            handler=calls.rotate,
            answer=SubscriptionWithSecret,
            bodies={JSON: NewSecret},
            body_required=False,
            problems=(*KNOWN, *JSON_BODY, "secret_rotation", *STORE),
        ),
        change(
            method="POST",
            path=f"{SUBSCRIPTION}/finish-rotation",
            name="finishRotation",
            summary="Finish a rotation: sign with the newest secret only",
            handler=calls.finish_rotation,
            problems=(*KNOWN, "secret_rotation", *STORE),
        ),
        one(
            method="GET",
            path=f"{SUBSCRIPTION}/stats",
            name="getSubscriptionStats",
            summary="Get the counts of its attempts since the service started",
            handler=calls.stats,
            answer=StatsView,
        ),
        one(
            method="GET",
            path=f"{SUBSCRIPTION}/attempts",
            name="listAttempts",
            summary="List its last attempts since the service started",
            handler=calls.attempts,
            answer=Attempts,
        ),
        one(
            method="POST",
            path=f"{SUBSCRIPTION}/attempts",
            name="sendAgain",
            summary="Deliver a message of its topic once more now, and report the outcome",
            audited=True,
            handler=calls.send_again,
            answer=Attempt,
            bodies={JSON: SendAgain},
            problems=(*KNOWN, *JSON_BODY, "unknown_message", "message_deleted", "corruption"),
        ),
    ]
