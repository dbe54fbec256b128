"""Later acknowledgements on the wire; see `timerwheel.wire`."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.groups.config import REASON_CHARACTERS_MAX
from timerwheel.wire.fields import Answer, Natural
from timerwheel.wire.groups import InvisibleMs


class AckPath(msgspec.Struct, frozen=True):
    """The attempt at a message that a receiver was given."""

    token: Annotated[str, Meta(description="the end of the URL in the header timerwheel-ack-url")]


class GiveBack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The next attempt comes after one of the delays, by default the backoff."""

    delay_ms: Natural | UnsetType = UNSET
    delay: Annotated[str, Meta(examples=["90s", "PT90S"])] | UnsetType = UNSET
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] | UnsetType = UNSET


class Prolong(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long from now the receiver needs."""

    invisible_ms: InvisibleMs


class AckAnswer(Answer, frozen=True):
    """What became of the attempt; `invisible_until_ms` says until when an extended one is its receiver's."""

    result: Literal["acknowledged", "given_back", "extended"]
    invisible_until_ms: int | None = None
