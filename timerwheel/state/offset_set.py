"""A set of queue offsets, as the edges of its stretches: acknowledged messages lie close together. Pure.

`[a, b, c, d]` holds the offsets from `a` up to, but not with, `b`, and those from `c` up to `d`. Edges ascend
strictly, so stretches never touch. One that begins at 0 is what is called a low-water mark elsewhere.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class OffsetSet:
    """See the module. Adding a stretch at the end costs the same however many there are."""

    __slots__ = ("edges",)

    def __init__(self, edges: Iterable[int] = ()) -> None:
        self.edges: list[int] = list(edges)

    def add(self, first: int, end: int) -> None:
        """The offsets from `first` up to `end`, which is greater."""
        edges = self.edges
        low = bisect_left(edges, first)
        high = bisect_right(edges, end, low)
        edges[low:high] = [first] * (not low & 1) + [end] * (not high & 1)

    def __contains__(self, offset: int) -> bool:
        return bool(bisect_right(self.edges, offset) & 1)

    @property
    def low(self) -> int:
        """The first offset that it does not hold."""
        return self.edges[1] if self.edges and not self.edges[0] else 0

    @property
    def end(self) -> int:
        """One past the greatest offset that it holds, 0 if it is empty."""
        return self.edges[-1] if self.edges else 0

    def next_gap(self, offset: int) -> int:
        """The first offset from `offset` on that it does not hold."""
        place = bisect_right(self.edges, offset)
        return self.edges[place] if place & 1 else offset

    def count(self, first: int) -> int:
        """How many offsets it holds from `first` on."""
        place = bisect_right(self.edges, first)
        later = self.edges[place:]
        return sum(later[1 - place % 2 :: 2]) - sum(later[place % 2 :: 2]) - first * (place & 1)

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Its stretches: first offset, and one past the last."""
        edges = iter(self.edges)
        return zip(edges, edges, strict=True)

    def pack(self) -> int | list[int]:
        """As JSON values: a low-water mark as that number."""
        return self.low if len(self.edges) == 2 * bool(self.low) else list(self.edges)

    @classmethod
    def unpack(cls, packed: int | list[int]) -> "OffsetSet":
        """The set that `pack` has given."""
        if isinstance(packed, int):
            return cls((0, packed) if packed else ())
        return cls(packed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetSet) and self.edges == other.edges

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"OffsetSet({self.edges})"
