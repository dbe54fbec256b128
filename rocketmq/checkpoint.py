"""The checkpoint of a popped message: its consumer returns it to acknowledge the message. Pure.

    start popped_ms invisible_ms pop retry broker queue offset receipt

separated by spaces. It is the property POP_CK of the message. RocketMQ's own has the first eight parts, and a
client that makes one from the answer to a pop has no receipt either. `start` is the first offset of the queue
in that pop. `pop`, the number of a queue in RocketMQ's broker, is here a number of the pop. `retry` is 0.

An acknowledgement of many has for each pop and queue a bit for each message, counted from `start`: the fields
of BatchAck in RocketMQ 5.3, with a BitSet as base64 of its bytes, lowest bit first.
"""

import base64
import binascii
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np

from timerwheel.errors import TimerwheelError
from timerwheel.state.groups import DEAD_QUEUE, OFFSET_BITS

POP_CHECKPOINT: Final = "POP_CK"
CHARACTERS_MAX: Final = 1_024
ACKNOWLEDGED_MAX: Final = 4_096
"""Most messages that one acknowledgement names."""
NUMBER_MAX: Final = (1 << 31) - 1
_NO_RETRY = "0"
_PARTS, _PARTS_WITH_RECEIPT = 8, 9
_NUMBERS = (0, 1, 2, 3, 6, 7)
_DIGITS_MAX = 19
_BITS = 8

Name = Annotated[str, msgspec.Meta(max_length=255)]


class CheckpointError(TimerwheelError):
    """The text is not the checkpoint of a popped message."""

    code = "illegal_checkpoint"


class Checkpoint(NamedTuple):
    """See the module."""

    start: int
    popped_ms: int
    invisible_ms: int
    pop: int
    broker: str
    queue: int
    offset: int
    receipt: str = ""

    def encode(self) -> str:
        """Return the text, with the receipt."""
        start, popped_ms, invisible_ms, pop, broker, queue, offset, receipt = self
        return f"{start} {popped_ms} {invisible_ms} {pop} {_NO_RETRY} {broker} {queue} {offset} {receipt}"

    @classmethod
    def decode(cls, text: str) -> "Checkpoint":
        """Return the checkpoint in a text; CheckpointError."""
        parts = text.split(" ") if len(text) <= CHARACTERS_MAX else []
        has_parts = len(parts) in {_PARTS, _PARTS_WITH_RECEIPT}
        if not has_parts or not all(_is_number(parts[at]) for at in _NUMBERS):
            raise CheckpointError("extraInfo is not a checkpoint; return the POP_CK of the message unchanged")
        start, popped_ms, invisible_ms, pop, queue, offset = (int(parts[at]) for at in _NUMBERS)
        _check_place(queue, offset)
        receipt = parts[_PARTS] if len(parts) == _PARTS_WITH_RECEIPT else ""
        return cls(start, popped_ms, invisible_ms, pop, parts[5], queue, offset, receipt)


class PoppedPart(msgspec.Struct, frozen=True):
    """Messages of one queue, of one pop, that are acknowledged together."""

    group: Name = msgspec.field(name="c")
    topic: Name = msgspec.field(name="t")
    start: Annotated[int, msgspec.Meta(ge=0, lt=1 << OFFSET_BITS)] = msgspec.field(name="so")
    queue: Annotated[int, msgspec.Meta(ge=0, le=DEAD_QUEUE)] = msgspec.field(name="q")
    pop: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)] = msgspec.field(name="rq")
    bits: str = msgspec.field(name="b")

    def offsets(self) -> list[int]:
        """Return the queue offsets of the messages; CheckpointError."""
        try:
            data = np.frombuffer(base64.b64decode(self.bits, validate=True), np.uint8)
        except (binascii.Error, ValueError) as error:
            raise CheckpointError(f"the bits of queue {self.queue} are not base64: {error}") from None
        places = np.flatnonzero(data)
        if len(places) > ACKNOWLEDGED_MAX:
            raise _too_many()
        found = np.unpackbits(data[places], bitorder="little").reshape(-1, _BITS).nonzero()
        offsets: list[int] = (places[found[0]] * _BITS + found[1] + self.start).tolist()
        if offsets:
            _check_place(self.queue, offsets[-1])
        return offsets


class _Batch(msgspec.Struct, frozen=True):
    acks: Annotated[list[PoppedPart], msgspec.Meta(max_length=ACKNOWLEDGED_MAX)] = []


_decode = msgspec.json.Decoder(_Batch).decode


def acknowledged(body: bytes) -> list[tuple[PoppedPart, list[int]]]:
    """Return the parts of an acknowledgement of many, with the offsets of each; CheckpointError."""
    try:
        parts = _decode(body).acks
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"the acknowledgement is malformed: {error}") from None
    found: list[tuple[PoppedPart, list[int]]] = []
    left = ACKNOWLEDGED_MAX
    for part in parts:
        offsets = part.offsets()
        left -= len(offsets)
        if left < 0:
            raise _too_many()
        found.append((part, offsets))
    return found


def _too_many() -> CheckpointError:
    return CheckpointError(f"more than {ACKNOWLEDGED_MAX} messages are acknowledged at once; send fewer")


def _is_number(text: str) -> bool:
    return len(text) <= _DIGITS_MAX and text.isascii() and text.isdecimal()


def _check_place(queue: int, offset: int) -> None:
    if queue > DEAD_QUEUE or offset >> OFFSET_BITS:
        raise CheckpointError(f"no message can be at offset {offset} of queue {queue}")
