"""What `subscriptions show` says of an endpoint that fails."""

from timerwheel.cli import subscriptions
from timerwheel.cli.output import Output
from timerwheel.groups.config import Ladder
from timerwheel.push.subscription import SubscriptionView


def view(**fields):
    values = {
        "id": "s",
        "topic": "orders",
        "group": "push-s",
        "url": "https://shop.example/",
        "status": "active",
        "disabled": None,
        "start": "tail",
        "tags": "*",
        "max_attempts": 16,
        "backoff": Ladder(),
        "concurrency": 8,
        "rate_limit": None,
        "timeout_ms": 15_000,
        "header_names": [],
        "cloudevents": False,
        "secrets_valid": 1,
    }
    return SubscriptionView(**(values | fields))


def test_an_endpoint_that_fails_is_shown_with_since_when_the_last_answer_and_the_next_attempt(capsys):
    subscriptions.show_subscription(view(), Output())
    assert "failing" not in capsys.readouterr().out
    health = {"failing_since_ms": 1_000, "failures_in_row": 1_234, "last_attempt_ms": 2_000}
    told = view(status="failing", **health, last_status=503, last_error="HTTP 503", next_attempt_ms=3_000)
    subscriptions.show_subscription(told, Output())
    shown = capsys.readouterr().out
    for text in ("1 Jan 1970", "1,234 in a row", "status 503: HTTP 503", "next attempt"):
        assert text in shown
    subscriptions.show_subscription(
        view(status="failing", **health, last_error="no \x1b connection"), Output()
    )
    shown = capsys.readouterr().out
    assert r"no response: no \x1b connection" in shown
    assert "next attempt" not in shown


def test_the_rate_limit_is_shown_beside_the_concurrency(capsys):
    subscriptions.show_subscription(view(), Output())
    assert "a second" not in capsys.readouterr().out
    subscriptions.show_subscription(view(rate_limit=2.5), Output())
    assert "at most 2.5 a second" in capsys.readouterr().out
