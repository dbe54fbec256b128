"""A dict that counts its entries which somebody looks through."""

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any


class CountedDict(dict[Any, Any]):
    """`seen` is how many entries were passed by loops over it, and by sets that it was combined with.

    A look-up by key counts nothing.
    """

    seen = 0

    def __iter__(self) -> Iterator[Any]:
        for key in super().__iter__():
            self.seen += 1
            yield key

    def keys(self) -> Any:
        return KeysView(self)

    def values(self) -> Any:
        return ValuesView(self)

    def items(self) -> Any:
        return ItemsView(self)
