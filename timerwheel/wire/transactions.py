"""Transactions on the wire; see `timerwheel.wire`."""

import msgspec
from msgspec import UNSET, UnsetType

from timerwheel.model.messages import OpenTransaction
from timerwheel.wire.paging import LIMIT_DEFAULT, Cursor, Limit, NextCursor


class OpenTransactions(msgspec.Struct, frozen=True):
    """Open transactions, oldest first; `cursor` requests the next page, and is null on the last one.

    A page may have fewer than `limit` and not be the last one.
    """

    transactions: list[OpenTransaction]
    cursor: NextCursor


class OpenQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which open transactions: those of a topic, or of all that the caller may see."""

    topic: str | UnsetType = UNSET
    limit: Limit = LIMIT_DEFAULT
    cursor: Cursor | UnsetType = UNSET
