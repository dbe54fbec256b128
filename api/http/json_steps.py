"""JSON that is too large to be decoded at once: looked at, and cut, in steps with a breath between them.

Decoding takes up to 2 ns for a byte and half a microsecond for a value. A text of up to DIRECT_BYTES is
decoded as it is, at worst in some 10 ms. Of a larger one the values are counted first, so that a text with
very many is refused before anything is made of it. What the values are is for the decoder to say.
"""

import re
from collections.abc import Awaitable, Callable

from timerwheel.api.http.problems import RequestError

DIRECT_BYTES = 1 << 18
STEP_BYTES = 1 << 16
STEP_SIGNS = 2_000  # brackets and strings: each costs as much as many bytes

Breathe = Callable[[], Awaitable[None]]
Text = bytes | bytearray

_QUOTE = ord('"')
_OPENING, _CLOSING = frozenset(b"[{"), frozenset(b"]}")
_SIGNS = (b",", b":", b"[", b"{")
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_REST_OF_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_STRINGS = re.compile(_STRING, re.DOTALL)
_UP_TO_OPEN_STRING = re.compile(rb'(?:[^"]++|' + _STRING + rb")*+", re.DOTALL)
_UP_TO_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|' + _STRING + rb")*+", re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*+")
_EDGE = re.compile(rb'\}[ \t\r\n]*+,[ \t\r\n]*+(?=\{[ \t\r\n]*+")')


async def check_values(text: Text, values_max: int, breathe: Breathe) -> None:
    """Raise `RequestError` too_many_values if more commas, colons and brackets stand outside of strings."""
    at, count, is_in_string = 0, 0, False
    while at < len(text):
        end = min(at + STEP_BYTES, len(text))
        if is_in_string:
            at, is_in_string = _through_string(text, at, end)
        else:
            stop = _end(_UP_TO_OPEN_STRING, text, at, end)
            signs = _STRINGS.sub(b"", text[at:stop])
            count += sum(map(signs.count, _SIGNS))
            is_in_string = stop < end
            at = stop + is_in_string
        if count > values_max:
            raise RequestError("too_many_values", f"the JSON has more than {values_max} values")
        await breathe()


async def end_of_object(text: Text, at: int, bytes_max: int, breathe: Breathe) -> int | None:
    """Return where the object that begins here ends; None if that is not within `bytes_max`."""
    limit = min(len(text), at + bytes_max)
    depth, signs, looked_at, is_in_string = 0, 0, at, False
    while at < limit:
        end = min(at + STEP_BYTES, limit)
        if is_in_string:
            at, is_in_string = _through_string(text, at, end)
        else:
            at = _end(_UP_TO_BRACKET, text, at, end)
            if at < end:
                sign = text[at]
                at += 1
                is_in_string = sign == _QUOTE
                depth += (sign in _OPENING) - (sign in _CLOSING)
                if sign in _CLOSING and depth <= 0:
                    return at
        signs += 1
        if signs % STEP_SIGNS == 0 or at - looked_at >= STEP_BYTES:
            looked_at = at
            await breathe()
    return None


async def after_space(text: Text, at: int, breathe: Breathe) -> int:
    """Return the first position from here that is not white space."""
    while True:
        found = _end(_SPACE, text, at, at + STEP_BYTES)
        if found < at + STEP_BYTES:
            return found
        at = found
        await breathe()


def last_edge(text: Text, at: int) -> tuple[int, int] | None:
    """Where, within DIRECT_BYTES, an object seems to end and, behind a comma, the next one to begin.

    It seems so in few strings: those that end in the same signs. Decoding what lies before tells.
    """
    end = at + DIRECT_BYTES
    for begin in (max(at, end - STEP_BYTES), at):
        if found := list(_EDGE.finditer(text, begin, end)):
            return found[-1].start() + 1, found[-1].end()
    return None


def _through_string(text: Text, at: int, end: int) -> tuple[int, bool]:
    """Return the position after the string, or where to continue scanning, and which of the two it is."""
    quote = text.find(b'"', at, end)
    if text.find(b"\\", at, end if quote < 0 else quote) < 0:  # ten times as fast as the pattern
        return (quote + 1, False) if quote >= 0 else (end, True)
    at = _end(_REST_OF_STRING, text, at, end)
    if at < end and text[at] == _QUOTE:
        return at + 1, False
    # A backslash may be parted from what it escapes; at the end of the text there is nothing behind it.
    return (at, True) if at + 1 < len(text) else (len(text), True)


def _end(pattern: re.Pattern[bytes], text: Text, at: int, end: int) -> int:
    """Return where a match of a pattern that always matches ends."""
    found = pattern.match(text, at, end)
    assert found is not None
    return found.end()
