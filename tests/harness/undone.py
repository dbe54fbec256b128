"""Write transactions of an index that leave nothing behind."""

import contextlib
from collections.abc import Iterator

from timerwheel.store.index import Index, IndexTransaction


class UndoError(Exception):
    """Ends a write transaction without a commit."""


@contextlib.contextmanager
def undone(index: Index) -> Iterator[IndexTransaction]:
    """A write transaction that is dropped at the end of the block."""
    with contextlib.suppress(UndoError), index.write() as txn:
        yield txn
        raise UndoError
