r"""The text form of a message's properties: `name \x01 value \x02 name \x01 value \x02`. Pure.

Source: MessageDecoder of RocketMQ. Empty names and values are left out when the text is read, and so is a
pair without \x01. A name or value that contains \x01 or \x02 cannot be written.
"""

from collections.abc import Mapping, Sequence
from typing import Final

TEXT_BYTES_MAX: Final = 32_767
"""Most bytes of the text: in a stored message its length has 16 bits with a sign."""

TEXT_CHARACTERS_SHORT: Final = TEXT_BYTES_MAX // 4
"""A text of so many characters has at most TEXT_BYTES_MAX bytes."""

_NAME_END, _PAIR_END = "\x01", "\x02"


def decode(text: str) -> dict[str, str]:
    """Return the properties in a text; of a name that occurs twice the last value."""
    found: dict[str, str] = {}
    for pair in text.split(_PAIR_END):
        name, _, value = pair.partition(_NAME_END)
        if name and value:
            found[name] = value
    return found


def encode(properties: Mapping[str, str]) -> str:
    """Return the text of the properties, without those that cannot be written.

    If the text would have more than TEXT_BYTES_MAX bytes, the longest properties are left out.
    """
    pairs = [
        f"{name}\x01{value}\x02"
        for name, value in properties.items()
        if name and value and _is_plain(name) and _is_plain(value)
    ]
    text = "".join(pairs)
    if len(text) <= TEXT_CHARACTERS_SHORT or len(text.encode()) <= TEXT_BYTES_MAX:
        return text
    room_bytes, kept = TEXT_BYTES_MAX, set[str]()
    for size_bytes, pair in sorted((len(pair.encode()), pair) for pair in pairs):
        if size_bytes <= room_bytes:
            room_bytes -= size_bytes
            kept.add(pair)
    return "".join(pair for pair in pairs if pair in kept)


def from_json(each: Sequence[bytes]) -> list[bytes] | None:
    """Return the texts of properties that are stored as JSON, as `encode` would; None if only that can tell.

    In compact JSON without a backslash each quote ends or begins a string, so `":"` and `","` stand between
    strings, and are exchanged for their marks where they stand. If a quote is left, it was not so. JSON has
    no line end within a string, so one separates them. Unlike those of `encode`, a text can be longer than
    TEXT_BYTES_MAX.
    """
    data = b"\n".join(each)
    if b"\\" in data or b'""' in data or data[:2] != b'{"' or data[-2:] != b'"}':
        return None
    text = (
        data[2:-2].replace(b'"}\n{"', b"\x02\n").replace(b'":"', b"\x01").replace(b'","', b"\x02") + b"\x02"
    )
    found = text.split(b"\n")
    return None if b'"' in text or len(found) != len(each) else found


def _is_plain(text: str) -> bool:
    return _NAME_END not in text and _PAIR_END not in text
