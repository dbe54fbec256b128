"""The five ways to say when; see `timerwheel.wire`."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.wire.fields import Int64


class Delays(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """When to deliver: at most one of the five, and none beside a delay property in `properties`."""

    delay_ms: Int64 | UnsetType = UNSET
    delay: Annotated[str, Meta(examples=["90s", "1h30m", "PT90S"])] | UnsetType = UNSET
    deliver_at_ms: Int64 | UnsetType = UNSET
    deliver_at: Annotated[str, Meta(examples=["2026-12-24T18:00:00+01:00"])] | UnsetType = UNSET
    delay_level: Int64 | UnsetType = UNSET
