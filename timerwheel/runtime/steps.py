"""The steps of long work on the event loop: more without a pause would make a due message late."""

from collections.abc import Iterator, Sequence

from timerwheel.model.messages import Outgoing

AT_ONCE_MAX = 500
"""Most messages to process without a pause."""
AT_ONCE_BYTES = 4 << 20
"""Most bytes of bodies to process without a pause, unless one message alone has more."""


def steps(messages: Sequence[Outgoing]) -> Iterator[slice]:
    """Yield slices of the messages; each is processed without a pause."""
    begin, size_bytes = 0, 0
    for place, message in enumerate(messages):
        size_bytes += len(message.body)
        if place - begin == AT_ONCE_MAX or (size_bytes > AT_ONCE_BYTES and place > begin):
            yield slice(begin, place)
            begin, size_bytes = place, len(message.body)
    yield slice(begin, len(messages))


def is_one_step(messages: Sequence[Outgoing]) -> bool:
    """Whether these messages are processed without a pause."""
    if len(messages) == 1:
        return True
    few = 0 < len(messages) <= AT_ONCE_MAX
    return few and sum([len(message.body) for message in messages]) <= AT_ONCE_BYTES
