"""Tag filters as RocketMQ writes them: `*` is every message, `A || B` those with one of these tags. Pure.

A filter cannot name a tag with white space in it, because that would hide a forgotten `||`.
"""

import msgspec

from timerwheel.errors import TimerwheelError

TAGS_MAX = 64
FILTER_CHARACTERS_MAX = 2_048


class IllegalFilterError(TimerwheelError):
    """A tag filter is malformed."""

    code = "illegal_filter"


class TagFilter(msgspec.Struct, frozen=True):
    """The tags that pass; None passes all messages, even those without tags."""

    tags: frozenset[str] | None

    @classmethod
    def parse(cls, text: str) -> "TagFilter":
        """Parse a filter; IllegalFilterError."""
        if len(text) > FILTER_CHARACTERS_MAX:
            raise IllegalFilterError(f"the filter is longer than {FILTER_CHARACTERS_MAX} characters")
        parts = [part.strip() for part in text.split("||")]
        if parts == [""]:
            raise IllegalFilterError("the tags are empty; give * for every message, or leave them out")
        if parts == ["*"]:
            return cls(None)
        if not all(parts) or "*" in parts:
            raise IllegalFilterError(f"{text[:80]!r} is not a valid filter; give *, or tags separated by ||")
        spaced = next((part for part in parts if len(part.split()) > 1), None)
        if spaced is not None:
            raise IllegalFilterError(f"{spaced[:80]!r} contains white space; put || between two tags")
        if len(parts) > TAGS_MAX:
            raise IllegalFilterError(f"{len(parts)} tags; at most {TAGS_MAX} are allowed")
        return cls(frozenset(parts))

    def passes(self, tag: str | None) -> bool:
        """Tell whether a message with this tag passes."""
        return self.tags is None or tag in self.tags

    def __str__(self) -> str:
        """Return the filter in its canonical form."""
        return "*" if self.tags is None else " || ".join(sorted(self.tags))
