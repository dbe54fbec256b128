"""Which dead letters are meant: those that meet every given condition. Pure."""

from collections.abc import Container

import msgspec

from timerwheel.groups.config import REASON_CHARACTERS_MAX
from timerwheel.model.admission import KEY_PROPERTY
from timerwheel.model.listing import ALWAYS, KEY_CHARACTERS_MAX, Times
from timerwheel.model.messages import DeadLetter
from timerwheel.model.properties import KEYS
from timerwheel.model.tags import IllegalFilterError


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on a dead letter; without any, all letters are meant.

    `topics` are the topics of the groups that gave up, `reason` is a part of the reason in any case, `key` is
    the deduplication key or one of the keys, and `died` are the times at which the letter was given up.
    """

    topics: Container[str] | None = None
    reason: str | None = None
    key: str | None = None
    died: Times = ALWAYS

    def check(self) -> "DeadLetterFilter":
        """Return itself; IllegalFilterError for a condition that means nothing."""
        for name, text, most in (
            ("reason", self.reason, REASON_CHARACTERS_MAX),
            ("key", self.key, KEY_CHARACTERS_MAX),
        ):
            if text is not None and not 0 < len(text) <= most:
                raise IllegalFilterError(
                    f"{name} must have 1 to {most} characters; leave it out for any {name}"
                )
        return self

    def has_topic(self, letter: DeadLetter) -> bool:
        """Whether the letter is of one of the topics."""
        return self.topics is None or letter.origin_topic in self.topics

    def admits(self, letter: DeadLetter) -> bool:
        """Whether a letter of the topics meets the other conditions."""
        if not self.died.has(letter.dead_ms):
            return False
        if self.reason is not None and self.reason.casefold() not in letter.reason.casefold():
            return False
        properties = letter.message.properties
        return self.key is None or self.key in (
            properties.get(KEY_PROPERTY),
            *properties.get(KEYS, "").split(),
        )


ALL_LETTERS = DeadLetterFilter()
