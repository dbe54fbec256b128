import base64
import datetime as dt
import json

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from timerwheel.push.signing import SecretError, key_of, new_secret, signature

ONE, TWO = new_secret(bytes(range(32))), new_secret(b"k" * 24)


def headers(secrets: list[str], body: bytes) -> dict[str, str]:
    """Made now: the verifier of the peer reads the machine's clock, and refuses what is five minutes old."""
    timestamp_s = int(dt.datetime.now(dt.UTC).timestamp())
    return {
        "webhook-id": "m1",
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": signature(secrets, "m1", timestamp_s, body),
    }


@pytest.mark.parametrize("body", [b'{"a":1}', '{"ü":"☃"}'.encode(), b"[]"])
def test_the_reference_library_accepts_our_signature(body):
    assert Webhook(ONE).verify(body, headers([ONE], body)) == json.loads(body)


def test_both_secrets_verify_while_they_are_rotated():
    both = headers([TWO, ONE], b"{}")
    assert Webhook(ONE).verify(b"{}", both) == {}
    assert Webhook(TWO).verify(b"{}", both) == {}
    assert both["webhook-signature"].count(" ") == 1


def test_a_changed_body_id_or_time_is_refused_by_the_reference_library():
    good = headers([ONE], b"{}")
    for body, changed in [
        (b"{ }", {}),
        (b"{}", {"webhook-id": "m2"}),
        (b"{}", {"webhook-timestamp": str(int(good["webhook-timestamp"]) + 1)}),
    ]:
        with pytest.raises(WebhookVerificationError):
            Webhook(ONE).verify(body, good | changed)


def test_the_example_of_the_specification_comes_out():
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    text = '{"test": 2432232314}'
    made = signature([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, text.encode())
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("size", [24, 32, 64])
def test_a_new_secret_holds_the_bytes_that_it_was_given(size):
    assert key_of(new_secret(b"r" * size)) == b"r" * size


@pytest.mark.parametrize("size", [0, 23, 65])
def test_a_secret_of_another_size_is_refused(size):
    with pytest.raises(SecretError, match="24 to 64 bytes"):
        new_secret(b"r" * size)
    with pytest.raises(SecretError, match="24 to 64 bytes"):
        key_of("whsec_" + base64.b64encode(b"r" * size).decode())


@pytest.mark.parametrize(
    "text", ["", "abc", "WHSEC_" + "A" * 44, "whsec_!!!!", "whsec_ü", "whsec_AAA", "whsec_A A="]
)
def test_what_is_no_secret_is_refused_without_repeating_it(text):
    with pytest.raises(SecretError) as raised:
        key_of(text)
    assert not text or text not in str(raised.value)
