"""Takes the address of a port, for every protocol, and gives it back without dropping a client's request.

A client may send as soon as the system has completed its handshake, which is before the service knows of
the connection. A listening socket that is closed then resets the connection, and the client cannot know
whether its request was carried out. So a socket is closed in three steps: new handshakes are dropped
(`drop_handshakes`), which clients repeat after a second, and which are refused by then; those under way end,
within HANDSHAKE_S; and the connections that nobody has accepted are taken (`waiting_connections`).
"""

import asyncio
import contextlib
import ctypes
import errno
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Final

from timerwheel.errors import TimerwheelError

HANDSHAKE_S: Final = 0.05
"""How long a handshake may take that is under way: longer than a round trip within a region."""

WAITING_MAX: Final = 4_096
"""More connections do not wait for a socket, unless new ones come: `net.core.somaxconn` of Linux."""

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # of Linux; Python does not have them
_NO_HANDSHAKES = (
    (0x30, 0, 0, 13),  # load the byte of the TCP header that has the flags
    (0x45, 0, 1, 0x02),  # is SYN set?
    (0x06, 0, 0, 0),  # yes: drop the packet
    (0x06, 0, 0, 0xFFFFFFFF),  # no: keep it
)
"""A filter in classic BPF: (code, jump if true, jump if false, operand)."""


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


def drop_handshakes(listening: socket.socket) -> None:
    """Have the system drop new handshakes; those under way go on. Does nothing where it cannot do so."""
    if sys.platform != "linux":
        return
    steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _NO_HANDSHAKES))
    with contextlib.suppress(OSError):
        program = struct.pack("HP", len(_NO_HANDSHAKES), ctypes.addressof(steps))
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def take_handshakes(listening: socket.socket) -> None:
    """Undo `drop_handshakes` for a socket that another process has left."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # there was none
            listening.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def waiting_connections(listening: socket.socket) -> Iterator[socket.socket]:
    """Accept the connections that clients have and nobody has accepted yet, at most WAITING_MAX."""
    listening.settimeout(0)
    for _ in range(WAITING_MAX):
        try:
            yield listening.accept()[0]
        except ConnectionAbortedError:
            continue
        except OSError:  # no more, or no descriptor is left for one
            return


def accepted_socket(transport: asyncio.Transport) -> socket.socket:
    """Take an unread connection away from its transport, which is closed in any case; OSError.

    Another transport can then read it from its first byte.
    """
    try:
        own: socket.socket = transport.get_extra_info("socket").dup()
    finally:
        transport.abort()
    return own
