"""Connected producers: clients name their groups in heartbeats, and are asked how open transactions end."""

from typing import Final, Protocol

import msgspec

from timerwheel.rocketmq.codes import Call, Result
from timerwheel.rocketmq.request import Caller, Link, RefusalError
from timerwheel.tokens import Scope

PRODUCERS_MAX: Final = 1_000
"""Most producers of the clients of one connection."""

Client = tuple[str, str]
"""The names of a token and of a client that has it."""


class ClientLink(Link, Protocol):
    """A connection over which the service can send requests to the client."""

    def notify(self, call: Call, fields: dict[str, str], body: bytes = b"") -> None:
        """Send a request to the client that it does not answer."""


class Producer(msgspec.Struct, frozen=True):
    """A client that produces in a group."""

    link: ClientLink
    caller: Caller


class Producers:
    """The connected producers by group. Event loop only.

    A client is known by its name and that of its token, so nobody takes the place of somebody else's client.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[Client, Producer]] = {}  # the client that was asked last is at the end
        self._links: dict[int, set[tuple[str, Client]]] = {}  # by the identity of the connection

    def join(self, link: ClientLink, caller: Caller, client_id: str, group: str) -> None:
        """A client produces in a group; nothing happens if its caller may not send. RefusalError."""
        if not caller.holds(Scope.SEND):
            return
        client = caller.name, client_id
        own = self._links.get(id(link), set())
        if (group, client) not in own and len(own) >= PRODUCERS_MAX:
            detail = f"the clients of this connection have {PRODUCERS_MAX} producers; end some first"
            raise RefusalError(Result.SYSTEM_ERROR, detail)
        producers = self._groups.setdefault(group, {})
        if client in producers and producers[client].link is not link:
            self._links.get(id(producers[client].link), set()).discard((group, client))
        producers[client] = Producer(link, caller)
        self._links.setdefault(id(link), set()).add((group, client))

    def leave(self, link: Link, caller: Caller, client_id: str, group: str) -> None:
        """A client ends a producer."""
        self._remove(link, (caller.name, client_id), group)

    def closed(self, link: Link) -> None:
        """A connection was closed."""
        for group, client in list(self._links.get(id(link), ())):
            self._remove(link, client, group)
        self._links.pop(id(link), None)

    def _remove(self, link: Link, client: Client, group: str) -> None:
        producers = self._groups.get(group, {})
        if client not in producers or producers[client].link is not link:
            return
        del producers[client]
        if not producers:
            del self._groups[group]
        self._links.get(id(link), set()).discard((group, client))

    def next(self, group: str, topic: str) -> Producer | None:
        """Return the producer of a group whose turn it is, of those that may send to the topic."""
        producers = self._groups.get(group, {})
        for client, producer in producers.items():
            caller = producer.caller
            if producer.link.takes_more and caller.holds(Scope.SEND) and caller.may(topic):
                producers[client] = producers.pop(client)
                return producer
        return None
