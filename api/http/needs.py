"""Who may make a call. Every `Route` states it; without it, a route is open to admins only."""

import enum

from multidict import istr

from timerwheel.tokens import Scope

SIGN = istr("X-Requested-With")
"""A header, with any value, that no page of another site can send; some calls without a token need it."""


class Need(enum.Enum):
    """What a call requires; the values are scopes, any one of which is enough."""

    OPEN = "nothing"
    TOKEN = "any token"  # noqa: S105 - a name
    SEND = "send"
    RECEIVE = "receive"
    EITHER = "send or receive"
    ADMIN = "admin"

    @property
    def scopes(self) -> frozenset[Scope]:
        """Return the scopes, any one of which is enough; admin always is."""
        return _SCOPES[self]


_SCOPES = {
    Need.OPEN: frozenset(Scope),
    Need.TOKEN: frozenset(Scope),
    Need.SEND: frozenset({Scope.SEND}),
    Need.RECEIVE: frozenset({Scope.RECEIVE}),
    Need.EITHER: frozenset({Scope.SEND, Scope.RECEIVE}),
    Need.ADMIN: frozenset({Scope.ADMIN}),
}
