"""The tokens of URLs at which receivers acknowledge later."""

import base64

import pytest

from timerwheel.push.ack_urls import AckUrls, Attempted, shard_of

SECRET = bytes(range(16))
URLS = AckUrls(SECRET, 3, "https://example.net")
MARKED = Attempted("orders", "g", "ab" * 34)
UNMARKED = Attempted("orders", "g", "ab" * 30)


@pytest.mark.parametrize("attempted", [MARKED, UNMARKED])
def test_a_token_leads_back_to_its_attempt_and_shard(attempted):
    token = URLS.token(attempted)
    assert URLS.read(token) == attempted
    assert shard_of(token) == 3
    assert AckUrls(SECRET[::-1], 3, "").read(token) is None


def test_a_token_of_the_version_before_marks_is_read():
    """Made by the program of that version."""
    given = "AAOrq6urq6urq6urq6urq6urq6urq6urq6urq6urq6uW6tnKBifLrbSScPzXlnoeb3JkZXJzAGc"
    assert URLS.read(given) == UNMARKED
    assert URLS.token(UNMARKED) == given


@pytest.mark.parametrize("attempted", [MARKED, UNMARKED])
def test_every_flipped_bit_and_every_part_of_a_token_is_none(attempted):
    raw = base64.urlsafe_b64decode(URLS.token(attempted) + "==")
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert URLS.read(base64.urlsafe_b64encode(flipped).rstrip(b"=").decode()) is None
    for end in range(len(raw)):
        assert URLS.read(base64.urlsafe_b64encode(raw[:end]).rstrip(b"=").decode()) is None
