"""What the service says of the caller's own token."""

import pytest

from timerwheel import tokens
from timerwheel.tokens import Scope, Token


async def test_without_tokens_a_caller_may_do_everything(service):
    answer = await service.call("GET", "/v1/token")
    assert answer.content == {
        "name": None,
        "scopes": ["admin"],
        "topics": ["*"],
        "rate_per_s": None,
        "expires_ms": None,
    }


@pytest.mark.parametrize(
    ("scopes", "topics", "told"),
    [((Scope.SEND, Scope.RECEIVE), ("orders-*",), ["orders-*"]), ((Scope.ADMIN,), (), ["*"])],
)
async def test_a_token_learns_its_scopes_and_topics_and_not_its_secret(service, scopes, topics, told):
    secret = tokens.new_secret()
    token = Token(
        name="shop",
        starts=secret[:9],
        sha256=tokens.hash_of(secret),
        scopes=scopes,
        topics=topics,
        rate_per_s=50,
        made_ms=0,
    )
    tokens.create(service.engine.settings.data, token)
    while (answer := await service.call("GET", "/v1/token")).status != 401:
        await service.engine.clock.sleep_for(20)
    assert answer.code == "unauthenticated"
    answer = await service.call("GET", "/v1/token", headers={"Authorization": f"Bearer {secret}"})
    assert answer.content == {
        "name": "shop",
        "scopes": [str(scope) for scope in scopes],
        "topics": told,
        "rate_per_s": 50,
        "expires_ms": None,
    }
