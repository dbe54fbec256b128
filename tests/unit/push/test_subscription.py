import msgspec
import pytest

from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import Exponential, GroupConfig
from timerwheel.push.signing import new_secret
from timerwheel.push.subscription import (
    HEADERS_MAX,
    Changes,
    Draft,
    Subscription,
    SubscriptionError,
    checked,
    from_value,
    to_value,
    view_of,
)

SECRET = new_secret(b"s" * 32)


def subscription(**fields: object) -> Subscription:
    values = {
        "id": "s",
        "topic": "orders",
        "url": "https://example.com/hook",
        "group": "g",
        "secrets": [SECRET],
    }
    return Subscription(**(values | fields))


def test_a_subscription_comes_back_from_its_stored_value():
    full = subscription(
        backoff=Exponential(5, 3.0, 50),
        headers={"X-Key": "v"},
        paused=True,
        disabled="HTTP 410",
        cloudevents=True,
    )
    stored = msgspec.json.decode(msgspec.json.encode(to_value(full)))
    assert from_value(stored) == full


def test_a_value_that_is_no_subscription_is_refused():
    with pytest.raises(SubscriptionError):
        from_value({"id": "s"})


def test_a_draft_leaves_the_group_to_be_named_after_the_id():
    made = Draft(topic="t", url="https://example.com/").subscription("abc", SECRET)
    assert made == Subscription(
        id="abc", topic="t", url="https://example.com/", secrets=[SECRET], group="push-abc", start="tail"
    )
    assert made.owns_group
    assert not subscription().owns_group


def test_the_group_holds_a_message_longer_than_an_attempt_can_last():
    made = subscription(timeout_ms=300_000, max_attempts=3, tags="a || b", start="tail")
    assert made.lease_ms > made.timeout_ms
    assert made.group_config == GroupConfig(start="tail", tags="a || b", max_attempts=3, invisible_ms=315_000)


def test_a_view_shows_neither_secrets_nor_the_values_of_headers():
    shown = msgspec.json.encode(view_of(subscription(headers={"Authorization": "Bearer hidden"})))
    assert b"Authorization" in shown
    assert b"hidden" not in shown
    assert SECRET.encode() not in shown


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, "active"),
        ({"paused": True}, "paused"),
        ({"disabled": "HTTP 410"}, "disabled"),
        ({"disabled": "HTTP 410", "paused": True}, "disabled"),
    ],
)
def test_the_status_says_who_stopped_it(fields, status):
    assert subscription(**fields).status == status


def test_changes_leave_alone_what_they_do_not_name():
    before = subscription(headers={"A": "b"}, timeout_ms=500)
    assert Changes().apply(before) == before
    after = Changes(timeout_ms=700, headers={}).apply(before)
    assert after == subscription(headers={}, timeout_ms=700)


@pytest.mark.parametrize("field", ["id", "topic", "group", "start", "secrets", "disabled"])
def test_what_never_changes_cannot_be_patched(field):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode({field: "x"}), type=Changes)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("id", {"id": ""}),
        ("id", {"id": "a/b"}),
        ("id", {"id": "a" * 65}),
        ("concurrency", {"concurrency": 0}),
        ("concurrency", {"concurrency": 257}),
        ("rate_limit", {"rate_limit": 0}),
        ("rate_limit", {"rate_limit": 10_001}),
        ("timeout_ms", {"timeout_ms": 99}),
        ("timeout_ms", {"timeout_ms": 300_001}),
        ("url", {"url": "http://127.0.0.1/"}),
        ("url", {"url": "ftp://example.com/"}),
        ("secret", {"secrets": []}),
        ("secret", {"secrets": [SECRET] * 3}),
        ("secret", {"secrets": ["whsec_short"]}),
        *(
            ("headers", {"headers": headers})
            for headers in (
                {"Host": "a"},
                {"content-length": "1"},
                {"Transfer-Encoding": "chunked"},
                {"Connection": "close"},
                {"Proxy-Authorization": "a"},
                {"Webhook-Id": "a"},
                {"CE-Type": "a"},
                {"": "a"},
                {"a b": "a"},
                {"a:": "a"},
                {"ü": "a"},
                {"A": "a\r\nB: c"},
                {"A": "a\0"},
                {"A": "ü"},
                {"A": " a"},
                {"A": "a\n"},
                {"A": "x" * 4_097},
                {"A" * 129: "x"},
                {"A": "1", "a": "2"},
                {f"A{number}": "x" for number in range(HEADERS_MAX + 1)},
            )
        ),
    ],
)
def test_the_wrong_field_is_named(field, fields):
    with pytest.raises(SubscriptionError) as raised:
        checked(subscription(**fields), allow_private=False)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("illegal_topic", {"topic": "a/b"}),
        ("system_topic", {"topic": "rmq_sys_wheel_timer"}),
        ("illegal_group", {"group": "a/b"}),
        ("illegal_group", {"group": "g" * 121}),
        ("illegal_filter", {"tags": "a ||"}),
        ("invalid_field", {"max_attempts": 0}),
        ("invalid_field", {"max_attempts": 1_001}),
        ("invalid_field", {"backoff": Exponential(factor=0.5)}),
        ("invalid_field", {"concurrency": 0}),
        ("illegal_subscription", {"url": "http://127.0.0.1/"}),
    ],
)
def test_a_fault_of_a_subscription_has_the_code_that_it_has_everywhere(code, fields):
    with pytest.raises(TimerwheelError) as raised:
        checked(subscription(**fields), allow_private=False)
    assert raised.value.code == code


def test_what_is_within_the_limits_is_accepted():
    headers = {f"A{number}": "x" for number in range(HEADERS_MAX - 1)} | {"Authorization": "Bearer a b~"}
    good = subscription(headers=headers | {"Empty": ""} if len(headers) < HEADERS_MAX else headers)
    assert checked(good, allow_private=False) == good
