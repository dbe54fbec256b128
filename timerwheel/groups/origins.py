"""Which topic each dead letter of a dead-letter topic came from. Pure.

A dead-letter topic takes the letters of every group of one name; the topic that a letter came from is a
property of it. Each letter is read once while the service runs, when it is first asked for. After that its
topic is known here: 4 bytes a letter.
"""

from array import array
from collections.abc import Container

import numpy as np

from timerwheel.state.groups import DeadLetters


class Origins:
    """The topics of the letters at the offsets from `first` up to `next_offset`."""

    def __init__(self) -> None:
        self.first = 0
        self._codes = array("I")
        self._topics: list[str] = []
        self._code_of: dict[str, int] = {}
        self._counted: tuple[object, ...] = ()  # what `_counts` was counted from
        self._counts: dict[str, int] = {}

    @property
    def next_offset(self) -> int:
        """The offset of the first letter that was not read yet."""
        return self.first + len(self._codes)

    def add(self, offset: int, topic: str) -> None:
        """A letter was read; offsets come in order. What lies between two of them is gone."""
        if not self._codes:
            self.first = offset
        elif offset > self.next_offset:
            self._codes.extend([self._code("")] * (offset - self.next_offset))
        self._codes.append(self._code(topic))

    def forget_before(self, offset: int) -> None:
        """Retention has removed the letters before this one."""
        if offset > self.first:
            del self._codes[: offset - self.first]
            self.first = offset

    def counts(self, letters: DeadLetters | None) -> dict[str, int]:
        """How many there are of each topic, without those that were dealt with."""
        asked = (self.first, self.next_offset, letters and letters.low, letters and len(letters.removed))
        if asked != self._counted:
            self._counted, self._counts = asked, self._count(letters)
        return self._counts

    def _count(self, letters: DeadLetters | None) -> dict[str, int]:
        codes = np.array(self._codes, np.uint32)
        if letters is not None:
            is_dead = np.arange(self.first, self.next_offset) >= letters.low
            is_dead[[at - self.first for at in letters.removed if self.first <= at < self.next_offset]] = (
                False
            )
            codes = codes[is_dead]
        counts = np.bincount(codes, minlength=len(self._topics)).tolist()
        return {topic: count for topic, count in zip(self._topics, counts, strict=True) if count}

    def find(self, topics: Container[str], offset: int) -> int:
        """The offset of the next letter of these topics; if there is none, the next to be read."""
        wanted = [code for code, topic in enumerate(self._topics) if topic in topics]
        codes = np.array(self._codes[max(offset - self.first, 0) :], np.uint32)
        hits = np.flatnonzero(np.isin(codes, wanted))
        return max(offset, self.first) + int(hits[0]) if len(hits) else max(offset, self.next_offset)

    def _code(self, topic: str) -> int:
        code = self._code_of.get(topic)
        if code is None:
            code = self._code_of[topic] = len(self._topics)
            self._topics.append(topic)
        return code
