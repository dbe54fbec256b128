"""Checks and splits JSON that is too large to decode at once, in steps that yield to the event loop.

Decoding takes up to 2 ns for a byte and half a microsecond for a value. A text of up to DIRECT_BYTES is
decoded directly, in 10 ms at worst. In a larger text the values are counted first, so one with too many is
refused before any value is created. Whether the values are valid is left to the decoder.
"""

import re
from collections.abc import Awaitable, Callable

from timerwheel.api.http.problems import RequestError

DIRECT_BYTES = 1 << 18
STEP_BYTES = 1 << 16
STEP_SIGNS = 2_000  # brackets and strings, each of which costs as much as many bytes

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
    """Raise `RequestError` too_many_values if there are more commas, colons and brackets outside strings."""
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
    """Find, within DIRECT_BYTES, where an object seems to end and, after a comma, the next one to begin.

    A string can contain the same characters, which is rare; decoding the part before it shows that.
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
    # A step may end between a backslash and what it escapes; at the end of the text nothing follows.
    return (at, True) if at + 1 < len(text) else (len(text), True)


def _end(pattern: re.Pattern[bytes], text: Text, at: int, end: int) -> int:
    """Return where a match of a pattern that always matches ends."""
    found = pattern.match(text, at, end)
    assert found is not None
    return found.end()
