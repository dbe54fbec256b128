"""What a dead letter says of itself: the properties that it has besides those of its message. Pure."""

import msgspec

from timerwheel.model.messages import MessageView

ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
ORIGIN_ID = "DLQ_ORIGIN_MESSAGE_ID"
REASON = "DLQ_REASON"
ATTEMPTS = "DLQ_ATTEMPTS"


def redriven_view(letter: MessageView) -> MessageView:
    """The message that a redriven letter is a copy of, by its first id and in its topic.

    So a worker or an endpoint can tell that it has seen the message before. Its place in the topic is not
    known. A letter that cannot be read stays what it is.
    """
    topic, message_id = letter.properties.get(ORIGIN_TOPIC), letter.properties.get(ORIGIN_ID)
    if not topic or not message_id:
        return letter
    return msgspec.structs.replace(letter, id=message_id, topic=topic, queue_offset=None)
