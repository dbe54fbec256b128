"""Who may make a call. Every `Route` states it; a route that does not is for admins only."""

import enum

from multidict import istr

from timerwheel.tokens import Scope

SIGN = istr("X-Requested-With")
"""A header that no page of another site can send, with any value; some calls without a token need it."""


class Need(enum.Enum):
    """One of these for each call; the values are the scopes of which one is enough."""

    OPEN = "nothing"
    TOKEN = "any token"  # noqa: S105 - a name
    SEND = "send"
    RECEIVE = "receive"
    EITHER = "send or receive"
    ADMIN = "admin"

    @property
    def scopes(self) -> frozenset[Scope]:
        """The scopes of which one is enough, beside admin, which always is."""
        return _SCOPES[self]


_SCOPES = {
    Need.OPEN: frozenset(Scope),
    Need.TOKEN: frozenset(Scope),
    Need.SEND: frozenset({Scope.SEND}),
    Need.RECEIVE: frozenset({Scope.RECEIVE}),
    Need.EITHER: frozenset({Scope.SEND, Scope.RECEIVE}),
    Need.ADMIN: frozenset({Scope.ADMIN}),
}
