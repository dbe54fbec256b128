"""Ports for servers that must know theirs beforehand, because clients get it, or they restart at it.

A port that was free a moment ago may be another process's now. A bound socket that does not listen keeps its
port: the system gives it to nobody by itself, but a server that sets SO_REUSEADDR, as ours and Java's do, may
bind it by its number (Linux, `inet_csk_bind_conflict`).
"""

import socket
from functools import cache

HOST = "127.0.0.1"


def reserved_port() -> int:
    """A port of the loopback that nobody else gets as long as this process lives."""
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind((HOST, 0))
    _kept().append(taken)
    port: int = taken.getsockname()[1]
    return port


def reserved_ports(count: int) -> int:
    """The first of so many ports in a row that nobody else gets as long as this process lives."""
    for _ in range(1000):
        taken = [socket.socket() for _ in range(count)]
        try:
            port = 0
            for place, one in enumerate(taken):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind((HOST, port + place if port else 0))
                port = port or one.getsockname()[1]
        except (OSError, OverflowError):
            for one in taken:
                one.close()
            continue
        _kept().extend(taken)
        return port
    raise AssertionError(f"no {count} free ports in a row")


def reserved_address() -> str:
    """The same as HOST:PORT."""
    return f"{HOST}:{reserved_port()}"


@cache
def _kept() -> list[socket.socket]:
    return []
