import re
from urllib.parse import unquote

import msgspec
import pytest

from timerwheel.model.messages import MessageView, State
from timerwheel.push.request import PROPERTY_HEADERS_BYTES_MAX, content_type, headers_of
from timerwheel.push.signing import new_secret, signature
from timerwheel.push.subscription import Subscription

SECRET = new_secret(b"s" * 32)
NOW_MS = 1_800_000_000_999


def message(body: bytes = b"{}", **properties: str) -> MessageView:
    return MessageView(
        "m-1", "orders%", 0, State.DELIVERED, 1_800_000_000_000, 0, 0, properties, body, 1_800_000_000_007
    )


def subscription(**fields: object) -> Subscription:
    return Subscription(**({"id": "s", "topic": "orders%", "url": "http://a/", "secrets": [SECRET]} | fields))


@pytest.mark.parametrize(
    ("body", "given", "told"),
    [
        (b"{}", None, "application/json"),
        (b' [1, "x"] ', None, "application/json"),
        (b"17", None, "application/json"),
        (b"", None, "application/octet-stream"),
        (b"{", None, "application/octet-stream"),
        (b"{} {}", None, "application/octet-stream"),
        (b"hello", None, "application/octet-stream"),
        (b'"\xff"', None, "application/octet-stream"),
        (b"{}", "text/plain", "text/plain"),
        (b"{}", "text/plain; charset=utf-8", "text/plain; charset=utf-8"),
        (b"{}", "text/plain\r\nX-Evil: 1", "application/json"),
        (b"{}", "text/plain\n", "application/json"),
        (b"{}", "nonsense", "application/json"),
        (b"{}", "text/" + "x" * 300, "application/json"),
        (b"{}", "text/ü", "application/json"),
    ],
)
def test_content_type_is_the_property_or_follows_from_the_body(body, given, told):
    properties = {} if given is None else {"CONTENT_TYPE": given}
    assert content_type(message(body, **properties)) == told


def test_the_signature_covers_id_time_and_body():
    headers = headers_of(subscription(), message(), NOW_MS)
    assert headers["webhook-id"] == "m-1"
    assert headers["webhook-timestamp"] == "1800000000"
    assert headers["webhook-signature"] == signature([SECRET], "m-1", 1_800_000_000, b"{}")
    assert not any(name.startswith("ce-") for name in headers)


def test_headers_of_the_subscription_are_added_and_win_over_defaults_in_any_case():
    given = {"X-Key": "1", "content-type": "text/x", "USER-AGENT": "me"}
    headers = headers_of(subscription(headers=given), message(), NOW_MS)
    lower = [name.lower() for name in headers]
    assert len(lower) == len(set(lower))
    assert headers["X-Key"] == "1"
    assert headers["content-type"] == "text/x"
    assert headers["USER-AGENT"] == "me"


def test_cloud_events_come_in_binary_mode():
    headers = headers_of(
        subscription(cloudevents=True), message(KEYS="order 17", CE_TYPE="shop.order.due"), NOW_MS
    )
    assert {name: value for name, value in headers.items() if name.startswith("ce-")} == {
        "ce-specversion": "1.0",
        "ce-id": "m-1",
        "ce-source": "/topics/orders%2525",
        "ce-type": "shop.order.due",
        "ce-time": "2027-01-15T08:00:00.007Z",
        "ce-subject": "order%2017",
    }


def test_a_cloud_event_without_type_or_keys_has_the_default_type_and_no_subject():
    headers = headers_of(subscription(cloudevents=True), message(), NOW_MS)
    assert headers["ce-type"] == "timerwheel.message"
    assert "ce-subject" not in headers


@pytest.mark.parametrize("text", ["a\r\nX-Evil: 1", "ü☃", '"', "%41", "\0", "x" * 10_000])
def test_no_property_breaks_out_of_a_cloud_event_header(text):
    headers = headers_of(subscription(cloudevents=True), message(KEYS=text, CE_TYPE=text), NOW_MS)
    for value in headers.values():
        assert value.isascii()
        assert value.isprintable()
        assert len(value) <= 2_048


def test_a_message_that_was_not_delivered_yet_gives_its_due_time():
    waiting = msgspec.structs.replace(message(), delivered_ms=None)
    assert (
        headers_of(subscription(cloudevents=True), waiting, NOW_MS)["ce-time"] == "2027-01-15T08:00:00.000Z"
    )


def test_what_is_known_of_the_message_comes_as_headers():
    sent = message(TAGS="late", KEYS="17 18", orderId="A 17%", CONTENT_TYPE="text/plain")
    headers = headers_of(subscription(), sent, NOW_MS, 3)
    assert {name: value for name, value in headers.items() if name.startswith("timerwheel-")} == {
        "timerwheel-topic": "orders%25",
        "timerwheel-attempt": "3",
        "timerwheel-due": "2027-01-15T08:00:00.000Z",
        "timerwheel-delivered": "2027-01-15T08:00:00.007Z",
        "timerwheel-tags": "late",
        "timerwheel-keys": "17%2018",
        "timerwheel-property-orderid": "A%2017%25",
    }


@pytest.mark.parametrize("text", ["a\r\nX-Evil: 1", "ü☃", '"', "%41", "\0", "a b", "a:b"])
def test_no_property_breaks_out_of_its_header(text):
    headers = headers_of(subscription(), message(**{text: text, "TAGS": text, "KEYS": text}), NOW_MS)
    names = [name for name in headers if name.startswith("timerwheel-property-")]
    assert [unquote(name) for name in names] == [f"timerwheel-property-{text.lower()}"]
    assert unquote(headers[names[0]]) == text
    for name, value in headers.items():
        assert re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name)
        assert value.isascii()
        assert value.isprintable()


def test_properties_that_do_not_fit_or_share_a_name_are_counted():
    sent = message(a="x" * 3_000, b="y" * 3_000, c="z", C="other")
    headers = headers_of(subscription(), sent, NOW_MS)
    assert headers["timerwheel-properties-left-out"] == "2"
    assert headers["timerwheel-property-c"] == "z"
    assert "timerwheel-property-b" not in headers
    own = [name + value for name, value in headers.items() if name.startswith("timerwheel-property-")]
    assert sum(map(len, own)) <= PROPERTY_HEADERS_BYTES_MAX
