"""What Kafka has beside properties and a body, as the text of the hidden property ENVELOPE_PROPERTY. Pure.

    kafka KEY VALUE HEADER...      separated by spaces

KEY is `-` for NULL, else its bytes in base64; an empty key has none. VALUE is `-` for NULL, and `+` if the
value is the body. HEADER is `NAME:VALUE`, both like KEY. All headers are here, in order, also those that are
shown as properties: a property can neither be repeated nor hold bytes that are not UTF-8.
"""

from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

Header = tuple[str, bytes | None]

_TAG: Final = "kafka"
_NULL: Final = "-"
_BODY: Final = "+"


class HasHeaders(Protocol):
    """A record as confluent-kafka returns it."""

    def headers(self) -> Any:  # noqa: ANN401 - pairs, though it is declared as a dict too
        """Return the headers; fails if a name is not UTF-8."""


class UnreadableHeadersError(Exception):
    """The name of a header is not UTF-8, so confluent-kafka cannot return any header of the record."""


def headers_of(message: HasHeaders) -> list[Header]:
    """Return the headers of a record; UnreadableHeadersError. Call it once for a record.

    Clients in C and Go write names of any bytes. A second call after the error would read a list that
    confluent-kafka left half filled, which ends the process.
    """
    try:
        return [*(message.headers() or ())]
    except (SystemError, UnicodeDecodeError) as error:  # the first is how confluent-kafka raises the second
        raise UnreadableHeadersError("the name of a header is not UTF-8") from error


class Envelope(NamedTuple):
    """Key and headers of a record, and whether its value is NULL."""

    key: bytes | None
    headers: Sequence[Header]
    is_null: bool = False

    def encode(self) -> str:
        """Return the text."""
        return text_of(self.key, self.headers, is_null=self.is_null)

    @classmethod
    def decode(cls, text: str) -> "Envelope | None":
        """Return the envelope in a text that `encode` returned; None for another protocol's."""
        parts = text.split(" ")
        if parts[0] != _TAG:
            return None
        headers: list[Header] = []
        for header in parts[3:]:
            name, content = header.split(":", 1)
            headers.append(((_bytes(name) or b"").decode(), _bytes(content)))
        return cls(_bytes(parts[1]), headers, parts[2] == _NULL)


def text_of(key: bytes | None, headers: Sequence[Header], *, is_null: bool) -> str:
    """Return the text of an envelope."""
    text = f"{_TAG} {_text(key)} {_NULL if is_null else _BODY}"
    for name, value in headers:
        text += f" {_text(name.encode())}:{_text(value)}"
    return text


def _text(data: bytes | None) -> str:
    return _NULL if data is None else b2a_base64(data, newline=False).decode()


def _bytes(text: str) -> bytes | None:
    return None if text == _NULL else a2b_base64(text)
