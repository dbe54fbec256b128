"""Transactions on the wire; see `timerwheel.wire`."""

import msgspec

from timerwheel.model.messages import OpenTransaction


class OpenTransactions(msgspec.Struct, frozen=True):
    """The open transactions, in the order of their next checks."""

    transactions: list[OpenTransaction]
