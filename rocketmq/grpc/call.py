"""One call of a client: who makes it, by which token, and from where."""

import re
from functools import lru_cache
from typing import Any, Final

from timerwheel.rocketmq.grpc.codes import CallError, Code
from timerwheel.rocketmq.request import Caller, Callers
from timerwheel.rocketmq.stored_message import Host
from timerwheel.tokens import Scope

CLIENT_ID: Final = "x-mq-client-id"
CLIENT_ID_CHARACTERS_MAX: Final = 255
AUTHORIZATION: Final = "authorization"
SLOW_READER_MS: Final = 30_000
"""How long a client may leave unread what it is sent; then the call ends."""

ClientName = tuple[str, str]
"""The names of a token and of a client that has it."""

_find_credential = re.compile(r"Credential=([^/,\s]+)").search
_match_peer = re.compile(r"ipv[46]:\[?([0-9a-fA-F.:]+?)(?:%[^\]]*)?\]?:([0-9]+)").fullmatch
_UNKNOWN_PEER: Final = Host("127.0.0.1", 0)


class Call:
    """See the module. `context` is that of gRPC."""

    def __init__(self, context: Any, callers: Callers) -> None:
        self.context = context
        self._callers = callers
        self._metadata = dict(context.invocation_metadata() or ())

    @property
    def peer(self) -> Host:
        """Address and port of the client."""
        return _host_of(self.context.peer())

    @property
    def client_id(self) -> str:
        """The id that the client gave itself; CallError without one."""
        found = self._metadata.get(CLIENT_ID) or ""
        if not 0 < len(found) <= CLIENT_ID_CHARACTERS_MAX:
            raise CallError(
                Code.CLIENT_ID_REQUIRED,
                f"the metadata {CLIENT_ID} must have 1 to {CLIENT_ID_CHARACTERS_MAX} characters",
            )
        return str(found)

    @property
    def client(self) -> ClientName:
        """The name of the token and the id of the client, so nobody is taken for a client of another token.

        CallError.
        """
        return self.caller(counted=False).name, self.client_id

    def caller(self, *, counted: bool = True) -> Caller:
        """Return the caller; CallError if nobody has its token, or it has exceeded its rate."""
        credential = _find_credential(self._metadata.get(AUTHORIZATION) or "")
        caller = self._callers.of_key("" if credential is None else credential[1])
        if caller is None:
            raise CallError(
                Code.UNAUTHORIZED,
                "give a valid token of this service as the access key; any secret key will do",
            )
        if counted and (wait_ms := caller.take()):
            raise CallError(
                Code.TOO_MANY_REQUESTS,
                f"the token {caller.name!r} has exceeded its rate limit; try again in {wait_ms} ms",
            )
        return caller

    def caller_for(self, scope: Scope, *topics: str, counted: bool = True) -> Caller:
        """Return the caller if it has this scope and access to these topics; CallError."""
        caller = self.caller(counted=counted)
        if not caller.holds(scope):
            raise CallError(Code.FORBIDDEN, f"the token {caller.name!r} lacks the scope {scope}")
        for topic in topics:
            if not caller.may(topic):
                raise CallError(
                    Code.FORBIDDEN, f"the token {caller.name!r} has no access to topic {topic[:127]!r}"
                )
        return caller


@lru_cache(maxsize=4096)
def _host_of(peer: str) -> Host:
    found = _match_peer(peer)
    return _UNKNOWN_PEER if found is None else Host(found[1], int(found[2]))
