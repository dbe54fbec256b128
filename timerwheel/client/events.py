"""Parses server-sent events from chunks of bytes of any size (WHATWG HTML, 9.2.6). Pure."""

from typing import NamedTuple

_NEWLINE = b"\n"


class Event(NamedTuple):
    """One event: its kind (`message` by default), its id, and its data with lines joined."""

    kind: str
    id: str
    data: bytes


class EventParser:
    """Parses bytes into events. Skips comments; a lone CR ends no line, since the service sends none."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._kind = ""
        self._id = ""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that these bytes complete."""
        found: list[Event] = []
        *whole, rest = data.split(_NEWLINE)
        for line in whole:
            self._line += line
            event = self._take(bytes(self._line).removesuffix(b"\r"))
            self._line.clear()
            if event is not None:
                found.append(event)
        self._line += rest
        return found

    def _take(self, line: bytes) -> Event | None:
        if not line:
            return self._end()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._kind = value.decode()
        elif name == b"id":
            self._id = value.decode()
        elif name == b"data":
            self._data.append(value)
        return None

    def _end(self) -> Event | None:
        """Handle an empty line, which completes an event unless it has neither kind nor data."""
        kind, data = self._kind, self._data
        self._kind, self._data = "", []
        if not kind and not data:
            return None
        return Event(kind or "message", self._id, _NEWLINE.join(data))
