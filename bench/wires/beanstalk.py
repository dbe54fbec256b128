"""The beanstalk protocol (`doc/protocol.txt` of beanstalkd): jobs in tubes; a topic is a tube.

A due time is sent as a delay in whole seconds from the arrival of the put, rounded up: a message may be late
by that, never early. An array of messages becomes as many puts in one write, each answered separately.

The consumer deletes each job on arrival. A connection is served strictly in order, so a delete behind a
waiting `reserve` would wait, too, and the job would be redelivered when the connection ends. So it
alternates:

    no job was there    one `reserve`, which waits
    a job came          its deletes, then reserves that do not wait: 1, 2, 4 .. BATCH_MAX while all bring one
    one brought none    its deletes, then one `reserve` that waits again

A worker takes one job at a time: the protocol has no reserve or delete for several.
"""

from collections.abc import Sequence

from bench.wires.pipelined import InFlight
from bench.wires.wire import Finished, Received, RefusedError, Spec

PRIORITY = 0
TTR_S = 86_400
"""How long a job may stay reserved: longer than any run, so that none is delivered twice."""
BATCH_MAX = 64

_WAITING = b"reserve\r\n"
_NOT_WAITING = b"reserve-with-timeout 0\r\n"


class Sender:
    """Puts jobs into one tube."""

    def __init__(self, spec: Spec) -> None:
        self._tube = spec["topic"].encode()
        self._using = False
        self._in_flight = InFlight()
        self._rest = b""

    def greeting(self) -> bytes:
        """Choose the tube."""
        return b"use %b\r\n" % self._tube

    def request(self, bodies: Sequence[bytes], dues_ms: Sequence[int], now_ms: int) -> bytes:
        """A put for each message."""
        self._in_flight.sent(len(bodies))
        return b"".join(
            b"put %d %d %d %d\r\n%b\r\n" % (PRIORITY, _delay_s(due_ms - now_ms), TTR_S, len(body), body)
            for body, due_ms in zip(bodies, dues_ms, strict=True)
        )

    def feed(self, data: bytes) -> int:
        """Count `INSERTED`; any other answer is a refusal: `BURIED`, `DRAINING`, `OUT_OF_MEMORY`, .."""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        lines, self._rest = data[:end], data[end:]
        if lines and not self._using:
            using, _, lines = lines.partition(b"\r\n")
            if using != b"USING %b" % self._tube:
                raise RefusedError(using.decode(errors="replace"))
            self._using = True
        inserted = lines.count(b"INSERTED ")
        if inserted != lines.count(b"\n"):
            refused = next(line for line in lines.split(b"\r\n") if not line.startswith(b"INSERTED "))
            raise RefusedError(refused.decode(errors="replace"))
        return self._in_flight.answered(inserted)


class Receiver:
    """Reserves and deletes the jobs of one tube."""

    def __init__(self, spec: Spec) -> None:
        self._tube = spec["topic"].encode()
        self._rest = b""
        self._asked = 1
        self._batch = 1
        self._empty = False
        """Whether a reserve of the batch in flight brought no job."""

    def begin(self) -> bytes:
        """Watch the tube alone, and wait for its first job."""
        return _watch(self._tube)

    def feed(self, data: bytes) -> Received:
        """Jobs, each answered with its delete; RefusedError for `NOT_FOUND`, `DEADLINE_SOON`, .."""
        bodies: list[bytes] = []
        reply: list[bytes] = []
        answers, self._rest = _answers(self._rest + data)
        for line, body in answers:
            if body is not None:
                bodies.append(body)
                reply.append(_delete(line))
                self._asked -= 1
            elif line == b"TIMED_OUT":
                self._asked -= 1
                self._empty = True
            elif line != b"DELETED":
                raise RefusedError(line.decode(errors="replace"))
        if not self._asked:
            reply.append(self._ask())
        return Received(bodies, b"".join(reply))

    def _ask(self) -> bytes:
        """The next reserves, now that all are answered."""
        if self._empty:
            self._empty = False
            self._asked = self._batch = 1
            return _WAITING
        self._asked = self._batch
        self._batch = min(2 * self._batch, BATCH_MAX)
        return _NOT_WAITING * self._asked


class Worker:
    """See `WorkWire`: `reserve` and `delete`."""

    def __init__(self, spec: Spec) -> None:
        assert spec["count_max"] == 1, "beanstalkd reserves one job at a time"
        self._tube = spec["topic"].encode()
        self._ack_with_next = spec["ack_with_next"]
        self._held: list[bytes] = []
        """The body of the job that is being deleted."""
        self._rest = b""

    def begin(self) -> bytes:
        """Watch the tube alone, and reserve its first job."""
        return _watch(self._tube)

    def feed(self, data: bytes) -> Finished:
        """See `WorkWire`."""
        finished: list[bytes] = []
        reply = b""
        answers, self._rest = _answers(self._rest + data)
        for line, body in answers:
            if body is not None:
                self._held = [body]
                reply = _delete(line) + (_WAITING if self._ack_with_next else b"")
            elif line == b"DELETED":
                finished += self._held
                if not self._ack_with_next:
                    reply = _WAITING
            else:
                raise RefusedError(line.decode(errors="replace"))
        return Finished(finished, reply)


def _watch(tube: bytes) -> bytes:
    """Watch a tube alone, and reserve its first job."""
    return b"watch %b\r\nignore default\r\n%b" % (tube, _WAITING)


def _answers(data: bytes) -> tuple[list[tuple[bytes, bytes | None]], bytes]:
    """The lines of complete answers, each with the body of its job, if it has one; and what is left."""
    found: list[tuple[bytes, bytes | None]] = []
    at = 0
    while (end := data.find(b"\r\n", at)) >= 0:
        line = data[at:end]
        if line.startswith(b"RESERVED "):
            body_at, end = end + 2, end + 2 + int(line.split(b" ")[2])
            if len(data) < end + 2:
                break
            found.append((line, data[body_at:end]))
        elif not line.startswith(b"WATCHING "):
            found.append((line, None))
        at = end + 2
    return found, data[at:]


def _delete(reserved: bytes) -> bytes:
    """The command that deletes the job of such a line."""
    return b"delete %b\r\n" % reserved.split(b" ")[1]


def _delay_s(delay_ms: int) -> int:
    return max(-(-delay_ms // 1000), 0)
