"""Takes the address of a port, for every protocol."""

import asyncio
import errno
import socket

from timerwheel.errors import TimerwheelError


class ListenError(TimerwheelError):
    """The service cannot listen on an address."""

    code = "listen"

    @classmethod
    def of(cls, error: Exception, where: str, hint: str) -> "ListenError":
        """Return what to say of an error at `where`, HOST:PORT; the hint is for a port that is in use."""
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            reason = f"another program uses this port; {hint}"
        else:
            reason = getattr(error, "strerror", None) or str(error)
        return cls(f"cannot listen on {where}: {reason}")


def bound(host: str, port: int, *, backlog: int | None = None) -> socket.socket:
    """Return a socket with the first address of a name; OSError, OverflowError.

    With a backlog it listens, and on IPv6 alone if that is the family. Another can be bound to the address
    as soon as it is closed.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    taken = socket.socket(family, kind, protocol)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if backlog is not None and family == socket.AF_INET6:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        taken.bind(address)
        if backlog is not None:
            taken.listen(backlog)
    except BaseException:
        taken.close()
        raise
    return taken


def accepted_socket(transport: asyncio.Transport) -> socket.socket:
    """Take an unread connection away from its transport, which is closed in any case; OSError.

    Another transport can then read it from its first byte.
    """
    try:
        own: socket.socket = transport.get_extra_info("socket").dup()
    finally:
        transport.abort()
    return own
