import pytest

from timerwheel.push.outcome import (
    ACK_WITHIN_MS_MAX,
    ACK_WITHIN_MS_MIN,
    RETRY_AFTER_MS_MAX,
    RETRY_AFTER_MS_MIN,
    Taken,
    classify,
    retry_after_ms,
)

NOW_MS = 1_800_000_000_000  # Fri, 15 Jan 2027 08:00:00 GMT


@pytest.mark.parametrize(
    ("text", "wait_ms"),
    [
        (None, None),
        ("120", 120_000),
        (" 120 ", 120_000),
        ("0", RETRY_AFTER_MS_MIN),
        ("86400", RETRY_AFTER_MS_MAX),
        ("86401", RETRY_AFTER_MS_MAX),
        ("9" * 5000, RETRY_AFTER_MS_MAX),
        ("0" * 20 + "7", 7_000),
        ("Fri, 15 Jan 2027 08:02:00 GMT", 120_000),
        ("Friday, 15-Jan-27 08:02:00 GMT", 120_000),
        ("Fri Jan 15 08:02:00 2027", 120_000),
        ("Fri, 15 Jan 2027 07:00:00 GMT", RETRY_AFTER_MS_MIN),
        ("Fri, 15 Jan 2099 07:00:00 GMT", RETRY_AFTER_MS_MAX),
        ("Fri, 15 Jan 99999999 07:00:00 GMT", None),
        ("-5", None),
        ("1.5", None),
        ("", None),
        ("soon", None),
        ("٣", None),
    ],
)
def test_retry_after_is_read_in_every_form_and_bounded(text, wait_ms):
    assert retry_after_ms(text, NOW_MS) == wait_ms


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, "delivered") for status in (200, 204, 299)),
        *((status, "failed") for status in (301, 304, 307, 400, 404, 429, 500, 503)),
        (410, "gone"),
    ],
)
def test_the_status_alone_says_what_came_of_it(status, kind):
    outcome = classify(status, {}, NOW_MS)
    assert (outcome.kind, outcome.status, outcome.retry_after_ms) == (kind, status, None)
    assert outcome.reason.startswith(f"HTTP {status}")


def test_the_wish_of_a_failure_is_kept():
    assert classify(429, {"Retry-After": "7"}, NOW_MS).retry_after_ms == 7_000


@pytest.mark.parametrize(
    ("text", "within_ms"),
    [
        (None, None),
        ("90", 90_000),
        (" 90 ", 90_000),
        ("0", ACK_WITHIN_MS_MIN),
        ("43200", ACK_WITHIN_MS_MAX),
        ("43201", ACK_WITHIN_MS_MAX),
        ("9" * 5000, ACK_WITHIN_MS_MAX),
        ("-5", None),
        ("1.5", None),
        ("", None),
        ("٣", None),
        ("Fri, 15 Jan 2027 08:02:00 GMT", None),
    ],
)
def test_the_time_to_acknowledge_later_is_in_seconds_and_bounded(text, within_ms):
    headers = {"timerwheel-ack": "later"} | ({} if text is None else {"timerwheel-ack-within": text})
    outcome = classify(202, headers, NOW_MS)
    assert outcome == Taken("delivered", "HTTP 202: later", 202, ack_within_ms=within_ms)


@pytest.mark.parametrize(
    ("status", "value", "later"),
    [
        (202, " Later ", True),
        (202, "now", False),
        (202, "", False),
        (200, "later", False),
        (500, "later", False),
    ],
)
def test_only_a_202_that_says_so_is_acknowledged_later(status, value, later):
    assert isinstance(classify(status, {"timerwheel-ack": value}, NOW_MS), Taken) is later
