"""A service with tokens: they are there before it starts, and the clock of its guard is the test's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.harness.apps import app_of
from tests.harness.clock import ManualClock
from tests.harness.served import Served
from timerwheel import tokens
from timerwheel.api.security.slow_clients import TimeLimits
from timerwheel.engine import Engine
from timerwheel.settings import Serving, Settings
from timerwheel.tokens import Scope, Token


def token_of(name: str, *scopes: Scope, topics: tuple[str, ...] = ("*",), **more: Any) -> tuple[Token, str]:
    """A token, and its secret."""
    secret = tokens.new_secret()
    wanted = () if Scope.ADMIN in scopes else topics
    values = {"starts": secret[: tokens.SHOWN_CHARACTERS], "made_ms": 0, **more}
    return Token(name=name, sha256=tokens.hash_of(secret), scopes=scopes, topics=wanted, **values), secret


def grant(data: Path, name: str, *scopes: Scope, **more: Any) -> dict[str, str]:
    """Make a token in a data directory; the headers that show it."""
    token, secret = token_of(name, *scopes, **more)
    tokens.create(data, token)
    return {"Authorization": f"Bearer {secret}"}


def code(answer: tuple[int, Any]) -> Any:
    """The problem of an answer, or its status."""
    status, content = answer
    return content.get("code", status) if isinstance(content, dict) else status


class Guarded:
    """A running service; `look` has it notice what became of tokens and of slow bodies."""

    def __init__(
        self, engine: Engine, server: Served, session: aiohttp.ClientSession, clock: ManualClock
    ) -> None:
        self.engine = engine
        self.data = engine.settings.data
        self.url = server.make_url("/")
        self.app = server.app
        self.session = session
        self.clock = clock

    def look(self, after_ms: int = 1_000) -> None:
        """Let time go on for the guard, which then looks before the next request can arrive."""
        self.clock.advance(after_ms)

    async def call(
        self, method: str, path: str, headers: dict[str, str] | None = None, **request: Any
    ) -> tuple[int, Any]:
        """Status and content of an answer, if that is JSON; a stream is not waited for."""
        url = str(self.url).rstrip("/") + path
        async with self.session.request(method, url, headers=headers, **request) as response:
            kind = response.headers.get("Content-Type", "")
            return response.status, await response.json(content_type=None) if "json" in kind else None


@asynccontextmanager
async def guarded(
    data: Path, *, serving: Serving | None = None, limits: TimeLimits | None = None, **settings: Any
) -> AsyncIterator[Guarded]:
    """A service on a data directory, until the end of the block."""
    clock = ManualClock()
    engine = await Engine.open(Settings(data=data, disk_reserve_bytes=0, **settings))
    try:
        server = Served(app_of(engine, serving, limits, clock))
        await server.start_server()
        try:
            async with aiohttp.ClientSession() as session:
                yield Guarded(engine, server, session, clock)
        finally:
            await server.close()
    finally:
        await engine.close()
