"""The steps of long work on the event loop: more without a pause would make a due message late."""

from collections.abc import Iterator, Mapping, Sequence

from timerwheel.model.messages import Outgoing

AT_ONCE_MAX = 500
"""Most messages to process without a pause."""
AT_ONCE_BYTES = 4 << 20
"""Most bytes, as `size_of` counts them, to process without a pause, unless one message alone has more."""


def steps(messages: Sequence[Outgoing]) -> Iterator[slice]:
    """Yield slices of the messages; each is processed without a pause."""
    if len(messages) == 1:
        yield slice(0, 1)
        return
    sizes = sizes_of(messages)
    if sum(sizes) <= AT_ONCE_BYTES:  # so their number alone counts
        for begin in range(0, max(len(messages), 1), AT_ONCE_MAX):
            yield slice(begin, min(begin + AT_ONCE_MAX, len(messages)))
        return
    begin, size_bytes = 0, 0
    for place, size in enumerate(sizes):
        size_bytes += size
        if place - begin == AT_ONCE_MAX or (size_bytes > AT_ONCE_BYTES and place > begin):
            yield slice(begin, place)
            begin, size_bytes = place, size
    yield slice(begin, len(messages))


def is_one_step(messages: Sequence[Outgoing]) -> bool:
    """Whether these messages are processed without a pause."""
    if len(messages) == 1:
        return True
    few = 0 < len(messages) <= AT_ONCE_MAX
    return few and sum(sizes_of(messages)) <= AT_ONCE_BYTES


def size_of(message: Outgoing) -> int:
    """Count the bytes of body and envelope, and the characters of the properties."""
    [size] = sizes_of([message])
    return size


def sizes_of(messages: Sequence[Outgoing]) -> list[int]:
    """Count what `size_of` does for each of these messages."""
    return [
        len(message.body)
        + len(message.plain)
        + len(message.envelope)
        + (size_of_properties(message.properties) if message.properties else 0)
        for message in messages
    ]


def size_of_properties(properties: Mapping[str, str]) -> int:
    """Count the characters of names and values."""
    return sum(map(len, properties)) + sum(map(len, properties.values()))
