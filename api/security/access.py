"""The access rights of a request's sender: `Auth` determines them, handlers check them.

1. `Auth` has already checked the scope of the call and the topic in its path.
2. The handler checks the topics in a body, a query or an answer: only it parses them, so two parsers cannot
   disagree.
3. The service's own topic names stand for messages of many topics, so they need access to all topics.
"""

from collections.abc import Iterable

import msgspec
from aiohttp import web

from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import Need
from timerwheel.api.security.rates import Rates
from timerwheel.runtime.queue_reader import SYSTEM_TOPICS
from timerwheel.state.groups import is_internal
from timerwheel.tokens import Scope, Token

OPEN_NAME = "open"


class Access(msgspec.Struct, frozen=True):
    """The rights of one caller. Without a token it has all rights, because the service has no tokens."""

    token: Token | None = None
    rates: Rates | None = None

    @property
    def name(self) -> str:
        """The name of the caller in logs."""
        return OPEN_NAME if self.token is None else self.token.name

    def take(self) -> int:
        """Count a call; returns 0 if it may be served, else how many ms to wait."""
        return 0 if self.token is None or self.rates is None else self.rates.take(self.token)

    def take_by_name(self, request_id: str, *, is_look_up: bool) -> int:
        """Count a call to something with a name, whose look-up came before it; else as `take`."""
        if self.token is None or self.rates is None:
            return 0
        if is_look_up:
            return self.rates.take_look_up(self.token, request_id)
        return 0 if self.rates.has_looked_up(self.token, request_id) else self.rates.take(self.token)

    def charge(self, messages: int) -> None:
        """Count the other messages of an array, whose first was counted as the call."""
        if self.token is not None and self.rates is not None:
            self.rates.charge(self.token, messages - 1)

    def has_scope(self, need: Need) -> bool:
        """Whether one of the token's scopes is enough, for any topic."""
        token = self.token
        return token is None or Scope.ADMIN in token.scopes or not need.scopes.isdisjoint(token.scopes)

    def holds(self, scope: Scope) -> bool:
        """Whether the token has this scope, or is an admin's."""
        token = self.token
        return token is None or Scope.ADMIN in token.scopes or scope in token.scopes

    @property
    def has_all_topics(self) -> bool:
        """Whether the caller has access to all topics."""
        return self.token is None or self.token.has_all_topics

    def may(self, topic: str) -> bool:
        """Whether the caller has access to the topic."""
        if self.token is None or self.token.has_all_topics:
            return True
        return topic not in SYSTEM_TOPICS and not is_internal(topic) and self.token.has_topic(topic)

    def check(self, topics: Iterable[str]) -> None:
        """Raise `RequestError` forbidden for the first topic that the caller has no access to."""
        if self.has_all_topics:
            return
        for topic in dict.fromkeys(topics):
            if not self.may(topic):
                raise RequestError("forbidden", f"the token {self.name!r} has no access to topic {topic!r}")

    def check_all_topics(self, remedy: str) -> None:
        """Raise `RequestError` forbidden, with a remedy, if the caller lacks access to some topics."""
        if not self.has_all_topics:
            raise RequestError(
                "forbidden",
                (
                    f"this call covers all topics, and the token {self.name!r} has access to only "
                    f"some: {remedy}"
                ),
            )


OPEN = Access()
KEY = web.RequestKey("access", Access)


def of(request: web.Request) -> Access:
    """The access of a request that came through `Auth`; KeyError for one that did not."""
    return request[KEY]
