"""What a dead letter says of itself: the properties that it has besides those of its message. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from timerwheel.groups.config import REASON_CHARACTERS_MAX
from timerwheel.model.messages import MessageView

PREFIX = "DLQ_"
ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
ORIGIN_ID = "DLQ_ORIGIN_MESSAGE_ID"
REASON = "DLQ_REASON"
ATTEMPTS = "DLQ_ATTEMPTS"


class DeadLetterOrigin(NamedTuple):
    """Why a message is a dead letter: its first id, the reason, and how many attempts it had."""

    message_id: str
    reason: str
    attempts: int


def letter_properties(
    properties: Mapping[str, str], topic: str | None, origin: DeadLetterOrigin
) -> dict[str, str]:
    """Return the properties of a message's dead letter; without a topic those of one that was redriven."""
    found = dict(properties)
    if topic is not None:
        found[ORIGIN_TOPIC], found[ORIGIN_ID] = topic, origin.message_id
    found[REASON] = origin.reason[:REASON_CHARACTERS_MAX]
    found[ATTEMPTS] = str(origin.attempts)
    return found


def message_properties(letter: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a dead letter without what it says of itself."""
    return {name: value for name, value in letter.items() if not name.startswith(PREFIX)}


def redriven_view(letter: MessageView) -> MessageView:
    """The message that a redriven letter is a copy of, by its first id and in its topic.

    So a worker or an endpoint can tell that it has seen the message before. Its place in the topic is not
    known. A letter that cannot be read stays what it is.
    """
    topic, message_id = letter.properties.get(ORIGIN_TOPIC), letter.properties.get(ORIGIN_ID)
    if not topic or not message_id:
        return letter
    return msgspec.structs.replace(letter, id=message_id, topic=topic, queue_offset=None)
