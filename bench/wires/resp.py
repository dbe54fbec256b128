"""RESP2, the protocol of Redis (redis.io, "Redis serialization protocol specification"), for a delay queue.

The queue works like those of common libraries: per topic a sorted set of ids by due time, a hash of bodies by
id, and a list of due bodies, to which `bench.peers.redis_poller` moves them. The keys:

    due:TOPIC     sorted set   id -> due time in milliseconds since 1970
    body:TOPIC    hash         id -> body
    ready:TOPIC   list         bodies, the first due first

A message is scheduled by HSET and then ZADD, so that no id is ever without its body; an array is as many
pairs in one write. The consumer pops up to POP_MAX bodies at once; a popped body is gone from Redis.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import count, islice

from bench.wires.pipelined import InFlight
from bench.wires.wire import Received, RefusedError, Spec

POP_MAX = 1_000
POPS_IN_FLIGHT = 2
"""Redis can work on the next pop while the response of one is read."""

_ADDED = b":1\r\n:1\r\n"
"""The responses to HSET and ZADD of a new message."""


def due_key(topic: str) -> bytes:
    """The sorted set of waiting ids."""
    return b"due:%b" % topic.encode()


def body_key(topic: str) -> bytes:
    """The hash of waiting bodies."""
    return b"body:%b" % topic.encode()


def ready_key(topic: str) -> bytes:
    """The list of due bodies."""
    return b"ready:%b" % topic.encode()


def command(*words: bytes) -> bytes:
    """Encodes a command as RESP: an array of bulk strings."""
    return b"*%d\r\n%b" % (len(words), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))


class Sender:
    """Schedules messages of one topic."""

    def __init__(self, spec: Spec) -> None:
        bodies, dues = body_key(spec["topic"]), due_key(spec["topic"])
        self._hset = b"*4\r\n$4\r\nHSET\r\n$%d\r\n%b\r\n$16\r\n" % (len(bodies), bodies)
        # A due time has 13 digits until the year 2286.
        self._zadd = b"*4\r\n$4\r\nZADD\r\n$%d\r\n%b\r\n$13\r\n" % (len(dues), dues)
        self._ids = _ids()
        self._in_flight = InFlight()
        self._rest = b""

    def greeting(self) -> bytes:
        """Nothing to send: Redis serves at once."""
        return b""

    def request(self, bodies: Sequence[bytes], dues_ms: Sequence[int], now_ms: int) -> bytes:  # noqa: ARG002
        """HSET and ZADD for each message."""
        self._in_flight.sent(len(bodies))
        hset, zadd, ids = self._hset, self._zadd, islice(self._ids, len(bodies))
        return b"".join(
            b"%b%b\r\n$%d\r\n%b\r\n%b%d\r\n$16\r\n%b\r\n" % (hset, name, len(body), body, zadd, due_ms, name)
            for body, due_ms, name in zip(bodies, dues_ms, ids, strict=True)
        )

    def feed(self, data: bytes) -> int:
        """Count pairs of answers; RefusedError for any that is not "one was added"."""
        data = self._rest + data
        messages = len(data) // len(_ADDED)
        if not (_ADDED * (messages + 1)).startswith(data):
            _refuse(next(line for line in data.splitlines(keepends=True) if not b":1\r\n".startswith(line)))
            messages = 0  # the error text is not complete yet
        self._rest = data[messages * len(_ADDED) :]
        return self._in_flight.answered(messages)


class Receiver:
    """Pops the bodies of one topic that are due."""

    def __init__(self, spec: Spec) -> None:
        key = ready_key(spec["topic"])
        self._pop = command(b"BLMPOP", b"0", b"1", key, b"LEFT", b"COUNT", b"%d" % POP_MAX)
        # An answer is an array of two: the key, and an array of bodies.
        self._head = b"*2\r\n$%d\r\n%b\r\n*" % (len(key), key)
        self._left = 0
        """Bodies of a response still missing."""
        self._rest = b""

    def begin(self) -> bytes:
        """Wait for the first bodies."""
        return self._pop * POPS_IN_FLIGHT

    def feed(self, data: bytes) -> Received:
        """Returns bodies, and a pop for each response. Raises RefusedError."""
        data = self._rest + data
        bodies: list[bytes] = []
        at = pops = 0
        while at < len(data):
            if not self._left:
                begin = at + len(self._head)
                if not self._head.startswith(data[at:begin]):
                    _refuse(data[at:])
                end = data.find(b"\r\n", begin)
                if end < 0:
                    break
                self._left = int(data[begin:end])
                pops += 1
                at = end + 2
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            body_at = end + 2
            body_end = body_at + int(data[at + 1 : end])
            if len(data) < body_end + 2:
                break
            bodies.append(data[body_at:body_end])
            at = body_end + 2
            self._left -= 1
        self._rest = data[at:]
        return Received(bodies, self._pop * pops)


def _ids() -> Iterator[bytes]:
    """An id of 16 characters: 8 random ones, so that connections do not collide, and an 8-digit counter."""
    mine = os.urandom(4).hex().encode()
    return (b"%b%08x" % (mine, number) for number in count())


def _refuse(data: bytes) -> None:
    """Raise RefusedError with the first line of these bytes, once it is complete."""
    line, ended, _ = data.partition(b"\r\n")
    if ended:
        raise RefusedError(line.decode(errors="replace"))
