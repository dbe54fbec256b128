"""`Retry-After` as the client reads it."""

import pytest

from timerwheel.client.retries import retry_after_ms

LONG_AGO = ("Sun Nov  6 08:49:37 1994", "Sun, 06 Nov 1994 08:49:37 -0000", "Sun, 06 Nov 1994 08:49:37 GMT")


@pytest.mark.parametrize("text", LONG_AGO)
def test_a_date_is_read_in_every_form_and_is_in_utc(text):
    assert retry_after_ms(text) == 0


@pytest.mark.parametrize(
    ("text", "wait_ms"),
    [(None, None), ("0", 0), ("7", 7_000), ("9" * 5_000, None), ("-1", None), ("soon", None), ("٣", None)],
)
def test_what_is_no_time_is_none(text, wait_ms):
    assert retry_after_ms(text) == wait_ms
