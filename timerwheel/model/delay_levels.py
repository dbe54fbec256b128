"""The delay levels: the operator's table that turns `DELAY = n` into a delay. Pure.

A table is one string of entries separated by white space, each a positive whole number and a unit (s, m, h,
d). Level n is the n-th entry, counted from 1. Entries need not increase, and may repeat.
"""

import re

import msgspec

from timerwheel.errors import SettingsError
from timerwheel.settings import YEAR_MS

LEVELS_MAX = 255
LEVEL_DELAY_MS_MAX = 1000 * YEAR_MS

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ENTRY = re.compile(r"([0-9]{1,18})([smhd])")


class LevelTable(msgspec.Struct, frozen=True):
    """The levels 1 to `highest`: `texts` as the operator wrote them, `delays_ms` in milliseconds."""

    texts: tuple[str, ...]
    delays_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "LevelTable":
        """Parse the table of a setting.

        Raises SettingsError that names the first bad entry and its level, or says that there are none or too
        many.
        """
        texts = tuple(text.split())
        if not texts:
            raise SettingsError("levels: the table is empty; it needs at least one entry such as 1s")
        if len(texts) > LEVELS_MAX:
            raise SettingsError(f"levels: {len(texts)} entries; at most {LEVELS_MAX} are allowed")
        return cls(texts, tuple(_entry_ms(level, entry) for level, entry in enumerate(texts, 1)))

    @property
    def highest(self) -> int:
        """Return the last level."""
        return len(self.delays_ms)

    def clamp(self, level: int) -> int:
        """Clamp a positive level to the highest level."""
        return min(level, len(self.delays_ms))

    def delay_ms(self, level: int) -> int:
        """Return the delay of a level in milliseconds; IndexError if the table has no such level."""
        if not 1 <= level <= len(self.delays_ms):
            raise IndexError(f"there is no delay level {level}; give one from 1 to {self.highest}")
        return self.delays_ms[level - 1]


def _entry_ms(level: int, entry: str) -> int:
    found = _ENTRY.fullmatch(entry)
    delay_ms = int(found[1]) * _UNIT_MS[found[2]] if found else 0
    if delay_ms == 0:
        named = f"levels: entry {entry[:40]!r} (level {level})"
        raise SettingsError(f"{named} is not a positive whole number with a unit s, m, h or d")
    if delay_ms > LEVEL_DELAY_MS_MAX:
        raise SettingsError(f"levels: entry {entry!r} (level {level}) is longer than 1000 years")
    return delay_ms
