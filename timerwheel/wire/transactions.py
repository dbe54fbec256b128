"""Transactions on the wire; see `timerwheel.wire`."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.model.messages import OpenTransaction


class OpenTransactions(msgspec.Struct, frozen=True):
    """Open transactions, oldest first; `cursor` requests the next page, and is null on the last one.

    A page may have fewer than `limit` and not be the last one.
    """

    transactions: list[OpenTransaction]
    cursor: str | None


class OpenQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which open transactions: those of a topic, or of all that the caller may see."""

    topic: str | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: str | UnsetType = UNSET
