"""What RocketMQ's clients do with stored messages: read them one by one, and send them in batches."""

import struct
from collections.abc import Iterator
from ipaddress import ip_address
from typing import NamedTuple

from timerwheel.rocketmq.codes import SYS_BORN_IPV6, SYS_STORE_IPV6
from timerwheel.rocketmq.frame import FrameError
from timerwheel.rocketmq.stored_message import MAGIC, MAGIC_LONG_TOPIC, Host, StoredMessage


class BatchedMessage(NamedTuple):
    """A message in the body of a batch; `properties` is the text form in UTF-8."""

    flag: int
    body: bytes
    properties: bytes


def decode_all(data: bytes) -> list[StoredMessage]:
    """Decode messages that lie one behind the other; FrameError."""
    try:
        return list(_decoded(data))
    except (struct.error, ValueError, IndexError) as error:
        raise FrameError(f"not a stored message: {error}") from None


def _decoded(data: bytes) -> Iterator[StoredMessage]:
    reader = _Reader(data)
    while reader.at < len(data):
        begin = reader.at
        size, magic, _, queue, flag, queue_offset, log_offset, sys_flag, born_ms = reader.fields(">iiiiiqqiq")
        if magic not in (MAGIC, MAGIC_LONG_TOPIC):
            raise FrameError(f"not a stored message: its magic is {magic}")
        born = reader.host(is_ipv6=bool(sys_flag & SYS_BORN_IPV6))
        (store_ms,) = reader.fields(">q")
        store = reader.host(is_ipv6=bool(sys_flag & SYS_STORE_IPV6))
        consumed_before, half_offset, body_size = reader.fields(">iqi")
        body = reader.part(body_size)
        topic = reader.part(*reader.fields(">H" if magic == MAGIC_LONG_TOPIC else ">B"))
        properties = reader.part(*reader.fields(">H"))
        if reader.at - begin != size:
            raise FrameError("a stored message does not end where it says")
        yield StoredMessage(
            topic=topic.decode(),
            queue=queue,
            queue_offset=queue_offset,
            log_offset=log_offset,
            born_ms=born_ms,
            store_ms=store_ms,
            born_host=born,
            store_host=store,
            body=body,
            properties=properties.decode(),
            flag=flag,
            sys_flag=sys_flag & ~(SYS_BORN_IPV6 | SYS_STORE_IPV6),
            consumed_before=consumed_before,
            half_offset=half_offset,
        )


class _Reader:
    """Reads fields one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def fields(self, form: str) -> tuple:
        found = struct.unpack_from(form, self._data, self.at)
        self.at += struct.calcsize(form)
        return found

    def part(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self._data):
            raise FrameError(f"a part of {size} bytes at {self.at}, where {len(self._data) - self.at} follow")
        found, self.at = self._data[self.at : end], end
        return found

    def host(self, *, is_ipv6: bool) -> Host:
        address = ip_address(self.part(16 if is_ipv6 else 4))
        return Host(str(address), *self.fields(">i"))


def encode_batch(messages: list[BatchedMessage]) -> bytes:
    """Encode the body of a batch."""
    parts: list[bytes] = []
    for flag, body, text in messages:
        head = struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, flag, len(body))
        parts += (head, body, struct.pack(">H", len(text)), text)
    return b"".join(parts)
