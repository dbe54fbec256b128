"""POP consumption of Apache RocketMQ 5 over its remoting protocol (see `bench.wires.rocketmq`).

The broker leases messages of all queues of a topic to any worker that asks (POP_MESSAGE). Its gRPC proxy uses
the same calls. Their codes do not fit into a binary header, so these requests have JSON headers. RocketMQ's
broker answers as it is configured, timerwheel as it is asked; both forms are read.

A single message is acknowledged with ACK_MESSAGE; several with one BATCH_ACK_MESSAGE, which names for each
queue the offset where the pop began there and a bit for each message after it. An answer has the opaque of
its request: those of a pop and of an acknowledgement written together may come in either order.
"""

import base64
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from bench.wires.rocketmq import GROUP, Counted, frame
from bench.wires.wire import Finished, RefusedError, Spec
from timerwheel.rocketmq.frame import Frame, FrameReader, encode

QUEUES = 8
"""What RocketMQ gives a topic by default. One pop at a time reads a queue."""
POP_MAX = 32
"""The broker refuses more."""
INVISIBLE_MS = 600_000
WAIT_MS = 15_000

_SEND_MESSAGE_V2 = 310
_POP_MESSAGE = 200_050
_ACK_MESSAGE = 200_051
_BATCH_ACK_MESSAGE = 200_151
_SUCCESS = 0
_NOTHING_FOUND = {209, 210}
"""POLLING_FULL and POLLING_TIMEOUT."""
_FROM_THE_FIRST = 0

_POP, _ACK = 1, 2
"""The opaque of each kind of request."""

_LENGTH = struct.Struct(">i")
_STORED = struct.Struct(">i8xi4xq56xi")
"""A message as it is stored: its whole length, its queue, its offset there, the length of its body, which
follows."""


class Popped(NamedTuple):
    """The messages of one pop."""

    fields: dict[str, str]
    places: list[tuple[int, int]]
    """The queue of each message, and its offset there."""
    bodies: list[bytes]


class Sender(Counted):
    """A send for each message, visible at once, to all queues in turn. Due times are ignored."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        fields = {"a": GROUP, "b": spec["topic"], "c": "TBW102", "d": QUEUES}
        rest = {"f": 0, "g": "born".zfill(13), "h": 0, "i": ""}
        self._frames = [frame(_SEND_MESSAGE_V2, fields | {"e": queue} | rest)[4:] for queue in range(QUEUES)]
        self._sent = 0

    def request(self, bodies: Sequence[bytes], dues_ms: Sequence[int], now_ms: int) -> bytes:  # noqa: ARG002
        """See `SendWire`."""
        self._in_flight.sent(len(bodies))
        born = b"%013d" % now_ms
        said: list[bytes] = []
        for body in bodies:
            head = self._frames[self._sent % QUEUES].replace(b"000000000born", born)
            said += (_LENGTH.pack(len(head) + len(body)), head, body)
            self._sent += 1
        return b"".join(said)


class Worker:
    """See `WorkWire`."""

    def __init__(self, spec: Spec) -> None:
        assert spec["count_max"] <= POP_MAX, f"the broker pops at most {POP_MAX} messages at once"
        self._topic = spec["topic"]
        self._ack_with_next = spec["ack_with_next"]
        self._pop = json_frame(
            _POP_MESSAGE,
            _POP,
            {
                "consumerGroup": GROUP,
                "topic": self._topic,
                "queueId": -1,
                "maxMsgNums": spec["count_max"],
                "invisibleTime": INVISIBLE_MS,
                "pollTime": WAIT_MS,
                "bornTime": 0,  # the broker sets it to its time
                "initMode": _FROM_THE_FIRST,
                "exp": "*",
                "expType": "TAG",
                "order": "false",
            },
        )
        self._popped: Popped | None = None
        """What came with the last pop, while an acknowledgement is in flight."""
        self._held: list[bytes] = []
        """Bodies of the messages that are being acknowledged."""
        self._frames = FrameReader()

    def begin(self) -> bytes:
        """Pop the first messages."""
        return self._pop

    def feed(self, data: bytes) -> Finished:
        """See `WorkWire`."""
        finished: list[bytes] = []
        replies: list[bytes] = []
        for answer in self._frames.feed(data):
            if not answer.is_response:
                continue
            if answer.opaque == _ACK:
                _must_be_success(answer)
                finished, self._held = self._held, []
                if not self._ack_with_next:
                    replies.append(self._pop)
            elif answer.code in _NOTHING_FOUND:
                replies.append(self._pop)
            else:
                _must_be_success(answer)
                self._popped = _popped(answer.fields, answer.body)
            if self._popped and not self._held:
                replies.append(self._acknowledge(self._popped))
                self._held, self._popped = self._popped.bodies, None
        return Finished(finished, b"".join(replies))

    def _acknowledge(self, popped: Popped) -> bytes:
        starts = _starts(popped.fields["startOffsetInfo"])
        if len(popped.places) == 1:
            [(queue, offset)] = popped.places
            retry, start = starts[queue]
            given = " ".join(popped.fields[name] for name in ("popTime", "invisibleTime", "reviveQid"))
            said = json_frame(
                _ACK_MESSAGE,
                _ACK,
                {
                    "consumerGroup": GROUP,
                    "topic": self._topic,
                    "queueId": queue,
                    "extraInfo": f"{start} {given} {retry} bench {queue} {offset}",
                    "offset": offset,
                },
            )
        else:
            said = json_frame(_BATCH_ACK_MESSAGE, _ACK, {}, self._batch(popped, starts))
        return said + self._pop if self._ack_with_next else said

    def _batch(self, popped: Popped, starts: dict[int, tuple[str, int]]) -> bytes:
        bits = dict.fromkeys(starts, 0)
        for queue, offset in popped.places:
            bits[queue] |= 1 << (offset - starts[queue][1])
        acks = [
            {
                "c": GROUP,
                "t": self._topic,
                "r": retry,
                "so": start,
                "q": queue,
                "rq": int(popped.fields["reviveQid"]),
                "pt": int(popped.fields["popTime"]),
                "it": int(popped.fields["invisibleTime"]),
                "b": base64.b64encode(mask.to_bytes(-(-mask.bit_length() // 8), "little")).decode(),
            }
            for (queue, (retry, start)), mask in zip(starts.items(), bits.values(), strict=True)
        ]
        return orjson.dumps({"brokerName": "bench", "acks": acks})


def json_frame(code: int, opaque: int, fields: dict[str, Any], body: bytes = b"") -> bytes:
    """A request with a JSON header, in which every field is a string."""
    return encode(Frame(code, opaque, {name: str(value) for name, value in fields.items()}, body))


def _must_be_success(answer: Frame) -> None:
    if answer.code != _SUCCESS:
        raise RefusedError(f"{answer.code} {answer.remark or ''}")


def _popped(fields: dict[str, str], stored: bytes) -> Popped:
    places: list[tuple[int, int]] = []
    bodies: list[bytes] = []
    at = 0
    while at < len(stored):
        whole, queue, offset, body = _STORED.unpack_from(stored, at)
        begin = at + _STORED.size
        places.append((queue, offset))
        bodies.append(stored[begin : begin + body])
        at += whole
    return Popped(fields, places, bodies)


def _starts(said: str) -> dict[int, tuple[str, int]]:
    """Return for each queue whether it is one of retries, and where the pop began: `0 3 120;0 4 99`."""
    parts = (part.split(" ") for part in said.split(";"))
    return {int(queue): (retry, int(offset)) for retry, queue, offset in parts}
