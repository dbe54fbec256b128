"""Tokens: secrets, what a token is for, and the file that keeps them."""

import os
import stat
import tempfile
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timerwheel import tokens
from timerwheel.tokens import Scope, Token, Tokens, TokensError

NOW_MS = 1_800_000_000_000


def make(name="worker", secret="x", scopes=(Scope.RECEIVE,), topics=("orders",), **more):
    return Token(
        name=name,
        starts="tw_abcdef",
        sha256=tokens.hash_of(secret),
        scopes=scopes,
        topics=topics,
        made_ms=NOW_MS,
        **more,
    )


def test_a_secret_has_a_form_that_a_scanner_knows_and_a_checksum():
    secret = tokens.new_secret()
    assert tokens.is_secret(secret)
    assert secret.startswith("tw_")
    assert len(secret) == 52
    assert secret[3:].isalnum()
    swapped = "A" if secret[20] != "A" else "B"
    assert not tokens.is_secret(secret[:20] + swapped + secret[21:])


@settings(deadline=None)  # the machine may be busy
@given(st.text(max_size=60))
def test_no_other_text_is_a_secret(text):
    assert not tokens.is_secret(text)


def test_secrets_never_repeat_and_hold_256_bits():
    found = {tokens.new_secret() for _ in range(1000)}
    assert len(found) == 1000
    assert 62**43 > 2**256


@pytest.mark.parametrize(
    ("patterns", "topic", "expected"),
    [
        (("orders",), "orders", True),
        (("orders",), "orders2", False),
        (("orders",), "Orders", False),
        (("orders*",), "orders-eu", True),
        (("orders*",), "my-orders", False),
        (("o?ders",), "orders", True),
        (("o?ders",), "oders", False),
        (("a", "b*"), "bc", True),
        (("a|b",), "a", False),
        (("a|b",), "a|b", True),
        (("%DLQ%*",), "%DLQ%closers", True),
        (("*",), "%DLQ%closers", True),
        (("**",), "anything", True),
        (("orders*",), "orders\n", True),
        (("orders",), "orders\n", False),
    ],
)
def test_a_pattern_stands_for_a_whole_topic_name_case_and_all(patterns, topic, expected):
    assert make(topics=patterns).has_topic(topic) is expected


@settings(deadline=None)
@given(st.text("abc*?|%-_", min_size=1, max_size=12), st.text("abc|%-_", max_size=12))
def test_a_pattern_matches_what_its_signs_say(pattern, topic):
    def matches(p, t):
        if not p:
            return not t
        if p[0] == "*":
            return matches(p[1:], t) or bool(t and matches(p, t[1:]))
        return bool(t) and p[0] in ("?", t[0]) and matches(p[1:], t[1:])

    assert make(topics=(pattern,)).has_topic(topic) is matches(pattern, topic)


def test_a_pattern_with_many_stars_is_matched_quickly():
    assert not make(topics=("*a" * 60,)).has_topic("a" * 59 + "b" * 68)


def test_admin_has_every_topic_and_no_other_scope_beside_it():
    admin = make(scopes=(Scope.ADMIN,), topics=())
    assert admin.check().has_topic("whatever")
    with pytest.raises(TokensError, match="admin covers all calls"):
        make(scopes=(Scope.ADMIN, Scope.SEND)).check()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"name": ""}, "not a valid name"),
        ({"name": "-x"}, "not a valid name"),
        ({"name": "a\nb"}, "not a valid name"),
        ({"name": "x" * 65}, "not a valid name"),
        ({"scopes": ()}, "scope"),
        ({"topics": ()}, "topics"),
        ({"topics": ("[ab]",)}, "pattern"),
        ({"topics": ("",)}, "pattern"),
        ({"topics": ("a" * 128,)}, "pattern"),
        ({"rate_per_s": 0.0}, "rate"),
        ({"rate_per_s": float("nan")}, "rate"),
        ({"rate_per_s": 1e9}, "rate"),
        ({"sha256": "abc"}, "sha256"),
    ],
)
def test_a_token_that_breaks_a_rule_is_refused_by_name(tmp_path, changed, named):
    token = msgspec.structs.replace(make(), **changed)
    with pytest.raises(TokensError, match=named):
        tokens.create(tmp_path, token)
    assert not tokens.read(tmp_path)


def test_a_token_is_over_at_its_time_and_not_before():
    token = make(expires_ms=NOW_MS)
    assert not token.expired(NOW_MS - 1)
    assert token.expired(NOW_MS)
    assert not make().expired(1 << 62)


def test_a_token_is_found_by_its_secret_and_by_no_other():
    found = Tokens([make("one", "s1"), make("two", "s2")])
    assert found.of_secret("s2").name == "two"
    assert found.of_secret("s3") is None
    assert found.of_secret(tokens.hash_of("s2")) is None
    assert found.of_secret("\udcff") is None


def test_what_was_created_is_read_back_until_it_is_revoked(tmp_path):
    data = tmp_path / "not" / "there" / "yet"
    first, second = make("first", "s1", rate_per_s=2.5), make("second", "s2", expires_ms=NOW_MS + 1)
    tokens.create(data, first)
    tokens.create(data, second)
    assert tokens.read(data).all == (first, second)
    assert tokens.revoke(data, "first") == (first, 1)
    assert tokens.read(data).all == (second,)
    assert tokens.revoke(data, "second") == (second, 0)
    assert not tokens.read(data)


def test_a_name_is_taken_once_and_an_unknown_one_cannot_be_revoked(tmp_path):
    tokens.create(tmp_path, make("worker", "s1"))
    with pytest.raises(TokensError, match="already"):
        tokens.create(tmp_path, make("worker", "s2"))
    with pytest.raises(TokensError, match="no token 'nobody'"):
        tokens.revoke(tmp_path, "nobody")
    assert len(tokens.read(tmp_path).all) == 1


def test_the_file_is_its_owners_alone_and_holds_no_secret(tmp_path):
    secret = tokens.new_secret()
    before = os.umask(0)
    try:
        tokens.create(tmp_path, make(secret=secret))
        assert os.umask(0) == 0, "the mask is as it was"
    finally:
        os.umask(before)
    path = tmp_path / "tokens.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret not in path.read_text()
    assert [one.name for one in tmp_path.iterdir()] == ["tokens.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write for others")
def test_root_leaves_a_file_that_the_owner_of_the_directory_can_read_and_change():
    with tempfile.TemporaryDirectory() as outer:  # not below `tmp_path`, which only root may enter
        data = Path(outer) / "data"
        data.mkdir()
        os.chown(outer, 1234, 4321)
        os.chown(data, 1234, 4321)
        tokens.create(data, make())
        found = (data / "tokens.json").stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 4321, 0o600)
        assert (os.geteuid(), os.getegid()) == (0, 0)


def test_many_who_create_at_once_lose_nothing(tmp_path):
    threads = [
        threading.Thread(target=tokens.create, args=(tmp_path, make(f"t{n}", f"s{n}"))) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {token.name for token in tokens.read(tmp_path).all} == {f"t{n}" for n in range(8)}


def _file(*listed, version=1):
    return msgspec.json.encode({"version": version, "tokens": list(listed)})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "not a token file"),
        (b"[]", "not a token file"),
        (b"[" * 100_000, "not a token file"),
        (b'{"version":1,"tokens":[],"more":1}', "not a token file"),
        (_file(version=2), "version 2"),
        (_file(make("a", "s"), make("a", "t")), "two tokens with the same name"),
        (_file(make("a", "s"), make("b", "s")), "two tokens with the same secret"),
        (_file(make(topics=())), "topics"),
        (_file({**msgspec.to_builtins(make()), "scopes": ["root"]}), "not a token file"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_whole_and_left_as_it_is(tmp_path, body, named):
    path = tmp_path / "tokens.json"
    path.write_bytes(body)
    with pytest.raises(TokensError, match=named):
        tokens.read(tmp_path)
    with pytest.raises(TokensError, match=named):
        tokens.create(tmp_path, make("new", "new"))
    assert path.read_bytes() == body


def test_expired_tokens_count_as_tokens():
    assert Tokens([make(expires_ms=0)])
    assert not Tokens()
