"""A set of queue offsets, stored as the edges of its ranges: acknowledged messages lie close together. Pure.

`[a, b, c, d]` holds the offsets in [a, b) and in [c, d). Edges ascend strictly, so ranges never touch. The
end of a range that begins at 0 is the low-water mark.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence


class OffsetSet:
    """See the module. Adding a range at the end takes constant time."""

    __slots__ = ("edges",)

    def __init__(self, edges: Iterable[int] = ()) -> None:
        self.edges: list[int] = list(edges)

    def add(self, first: int, end: int) -> None:
        """Add the offsets in [first, end); `end` is greater than `first`."""
        edges = self.edges
        low = bisect_left(edges, first)
        high = bisect_right(edges, end, low)
        edges[low:high] = [first] * (not low & 1) + [end] * (not high & 1)

    def __contains__(self, offset: int) -> bool:
        return bool(bisect_right(self.edges, offset) & 1)

    @property
    def low(self) -> int:
        """Return the first offset that is not in the set."""
        return self.edges[1] if self.edges and not self.edges[0] else 0

    @property
    def end(self) -> int:
        """Return one past the greatest offset in the set, 0 if it is empty."""
        return self.edges[-1] if self.edges else 0

    def next_gap(self, offset: int) -> int:
        """Return the first offset from `offset` on that is not in the set."""
        place = bisect_right(self.edges, offset)
        return self.edges[place] if place & 1 else offset

    def count(self, first: int) -> int:
        """Count the offsets from `first` on."""
        place = bisect_right(self.edges, first)
        later = self.edges[place:]
        return sum(later[1 - place % 2 :: 2]) - sum(later[place % 2 :: 2]) - first * (place & 1)

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges: first offset, and one past the last."""
        edges = iter(self.edges)
        return zip(edges, edges, strict=True)

    def without(self, offsets: Sequence[int]) -> "OffsetSet":
        """Return the set without these offsets, which ascend."""
        edges: list[int] = []
        for start, end in self.stretches():
            first = start
            for hole in offsets[bisect_left(offsets, start) : bisect_left(offsets, end)]:
                if first < hole:
                    edges += [first, hole]
                first = hole + 1
            if first < end:
                edges += [first, end]
        return OffsetSet(edges)

    def pack(self) -> int | list[int]:
        """Return it as a JSON value: a single range from 0 as one number."""
        return self.low if len(self.edges) == 2 * bool(self.low) else list(self.edges)

    @classmethod
    def unpack(cls, packed: int | list[int]) -> "OffsetSet":
        """Return the set that `pack` encoded."""
        if isinstance(packed, int):
            return cls((0, packed) if packed else ())
        return cls(packed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetSet) and self.edges == other.edges

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"OffsetSet({self.edges})"
