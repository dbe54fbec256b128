"""The remoting protocol of Apache RocketMQ 5, with binary headers: see `timerwheel.rocketmq.frame`.

Requests are encoded there. Answers are read here only as far as they are needed: the load must cost little. A
due time is sent as the property TIMER_DELIVER_MS. RocketMQ has no batches of messages with due times, so an
array becomes as many sends in one write. The consumer pulls from the only queue of the topic; a pull waits in
the broker for messages and commits the offset so far. A consumer continues where the last one stopped.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.wires.pipelined import InFlight
from bench.wires.wire import Received, RefusedError, Spec
from timerwheel.rocketmq.frame import Form, Frame, encode

GROUP = "bench"
PULL_MESSAGES_MAX = 1_000
PULL_WAIT_MS = 15_000

_PULL_MESSAGE = 11
_QUERY_CONSUMER_OFFSET = 14
_SEND_MESSAGE_V2 = 310

_SUCCESS = 0
_PULL_NOT_FOUND = 19
_PULL_RETRY_IMMEDIATELY = 20
_QUERY_NOT_FOUND = 22

_COMMIT_SUSPEND_SUBSCRIBE = 1 | 2 | 4
"""Flags of a pull: commits an offset, waits for messages, includes its subscription."""

_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">iihBhii")
"""The start of a response: both lengths, and its header up to the flags."""
_OPAQUE_AT = 13
_ANSWER_FLAG = 1
_NAME = struct.Struct(">h")

_STORED = struct.Struct(">i80xi")
"""A message as it is stored: its whole length, and that of its body, which follows. Addresses are IPv4."""


class Answer(NamedTuple):
    """A frame from the broker."""

    code: int
    frame: bytes

    def must_be_success(self) -> None:
        """Raise RefusedError with code and remark for any other response."""
        if self.code != _SUCCESS:
            remark = self._text(_HEADER.size)
            raise RefusedError(f"{self.code} {remark.decode(errors='replace')}")

    @property
    def opaque(self) -> int:
        """The number of its request."""
        return int(_LENGTH.unpack_from(self.frame, _OPAQUE_AT)[0])

    def fields(self) -> dict[str, bytes]:
        """The fields of the header."""
        at = _HEADER.size + 4 + len(self._text(_HEADER.size))
        encoded = self._text(at)
        found, at = {}, 0
        while at < len(encoded):
            value_at = at + 2 + _NAME.unpack_from(encoded, at)[0]
            begin = value_at + 4
            end = begin + _LENGTH.unpack_from(encoded, value_at)[0]
            found[encoded[at + 2 : value_at].decode()] = encoded[begin:end]
            at = end
        return found

    def body(self) -> bytes:
        """The data after the header."""
        return self.frame[8 + (_LENGTH.unpack_from(self.frame, 4)[0] & 0xFFFFFF) :]

    def _text(self, at: int) -> bytes:
        return self.frame[at + 4 : at + 4 + _LENGTH.unpack_from(self.frame, at)[0]]


class Answers:
    """Splits received bytes into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Answer]:
        """The complete responses so far. Requests of the broker to its clients are ignored."""
        data = self._rest + data if self._rest else data
        found: list[Answer] = []
        at = 0
        while len(data) - at >= _HEADER.size:
            length, _, code, _, _, _, flags = _HEADER.unpack_from(data, at)
            end = at + 4 + length
            if end > len(data):
                break
            if flags & _ANSWER_FLAG:
                found.append(Answer(code, data[at:end]))
            at = end
        self._rest = data[at:]
        return found


def frame(code: int, fields: Mapping[str, str | int]) -> bytes:
    """A request without a body."""
    texts = {name: str(value) for name, value in fields.items()}
    return encode(Frame(code, 0, texts, form=Form.BINARY))


class Counted:
    """Counts the answers to sends: the broker may give them out of order."""

    def __init__(self) -> None:
        self._in_flight = InFlight()
        self._answers = Answers()

    def greeting(self) -> bytes:
        """Nothing to send."""
        return b""

    def feed(self, data: bytes) -> int:
        """See `SendWire`."""
        answers = self._answers.feed(data)
        for answer in answers:
            answer.must_be_success()
        return self._in_flight.answered(len(answers))


class Sender(Counted):
    """A send for each message."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        born, due = "born".zfill(13), "due".zfill(13)
        sent = frame(
            _SEND_MESSAGE_V2,
            {
                "a": GROUP,
                "b": spec["topic"],
                "c": "TBW102",  # the template for creating a missing topic
                "d": 1,  # number of queues
                "e": 0,  # the queue
                "f": 0,  # system flags
                "g": born,
                "h": 0,  # flags
                "i": f"TIMER_DELIVER_MS\x01{due}\x02",
            },
        )
        self._bytes = len(sent) - 4
        escaped = sent[4:].replace(b"%", b"%%")
        self._after_length = escaped.replace(born.encode(), b"%013d").replace(due.encode(), b"%013d")

    def request(self, bodies: Sequence[bytes], dues_ms: Sequence[int], now_ms: int) -> bytes:
        """See `SendWire`."""
        self._in_flight.sent(len(bodies))
        return b"".join(
            _LENGTH.pack(self._bytes + len(body)) + self._after_length % (now_ms, due_ms) + body
            for body, due_ms in zip(bodies, dues_ms, strict=True)
        )


class Receiver:
    """Pulls from the only queue, one at a time like RocketMQ's own clients."""

    def __init__(self, spec: Spec) -> None:
        self._topic = spec["topic"]
        self._answers = Answers()
        self._begun = False

    def begin(self) -> bytes:
        """Query the committed offset of the group."""
        return frame(_QUERY_CONSUMER_OFFSET, {"consumerGroup": GROUP, "topic": self._topic, "queueId": 0})

    def feed(self, data: bytes) -> Received:
        """See `ReceiveWire`. An offset that the queue does not have is refused: messages would be missing."""
        bodies: list[bytes] = []
        reply: list[bytes] = []
        for answer in self._answers.feed(data):
            if not self._begun:
                self._begun = True
                reply.append(self._pull(0 if answer.code == _QUERY_NOT_FOUND else _number(answer, "offset")))
                continue
            if answer.code not in (_PULL_NOT_FOUND, _PULL_RETRY_IMMEDIATELY):
                answer.must_be_success()
                bodies += stored_bodies(answer.body())
            reply.append(self._pull(_number(answer, "nextBeginOffset")))
        return Received(bodies, b"".join(reply))

    def _pull(self, offset: int) -> bytes:
        """Pull from this offset on; all before it is committed."""
        return frame(
            _PULL_MESSAGE,
            {
                "consumerGroup": GROUP,
                "topic": self._topic,
                "queueId": 0,
                "queueOffset": offset,
                "maxMsgNums": PULL_MESSAGES_MAX,
                "sysFlag": _COMMIT_SUSPEND_SUBSCRIBE,
                "commitOffset": offset,
                "suspendTimeoutMillis": PULL_WAIT_MS,
                "subscription": "*",
                "subVersion": 0,
                "expressionType": "TAG",
            },
        )


def stored_bodies(stored: bytes) -> list[bytes]:
    """The bodies of concatenated messages in the broker's storage format."""
    bodies = []
    at, end = 0, len(stored)
    while at < end:
        whole, body = _STORED.unpack_from(stored, at)
        begin = at + _STORED.size
        bodies.append(stored[begin : begin + body])
        at += whole
    return bodies


def _number(answer: Answer, name: str) -> int:
    if name not in (fields := answer.fields()):
        answer.must_be_success()
    return int(fields[name])
