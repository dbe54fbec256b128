"""What a token may do, on the wire; see `timerwheel.wire`."""

import msgspec

from timerwheel.tokens import Scope


class TokenInfo(msgspec.Struct, frozen=True):
    """The rights of the caller: scopes, and the patterns of its topics.

    `name` is null for a caller without a token, which a service without tokens gives all rights. `*` is every
    topic. `rate_per_s` is null if there is no limit, and `expires_ms` if the token does not expire.
    """

    name: str | None
    scopes: list[Scope]
    topics: list[str]
    rate_per_s: float | None
    expires_ms: int | None
