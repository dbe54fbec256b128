"""A producer that names headers with any bytes, as clients in C and Go can: librdkafka's own functions."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka

_PRODUCER = 0
_END, _TOPIC, _VALUE, _HEADERS = 0, 1, 4, 10  # rd_kafka_vtype_t
_FLUSH_MS = 30_000
_NAMES_MAX = 8


def send(address: str, topic: str, value: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Produce one record, and return when it is stored."""
    kafka = _library()
    reason = ctypes.create_string_buffer(512)
    conf = kafka.rd_kafka_conf_new()
    kafka.rd_kafka_conf_set(conf, b"bootstrap.servers", address.encode(), reason, len(reason))
    producer = ctypes.c_void_p(kafka.rd_kafka_new(_PRODUCER, conf, reason, len(reason)))
    assert producer.value, reason.value
    named = ctypes.c_void_p(kafka.rd_kafka_headers_new(ctypes.c_size_t(_NAMES_MAX)))
    for name, content in headers:
        kafka.rd_kafka_header_add(
            named, name, ctypes.c_ssize_t(len(name)), content, ctypes.c_ssize_t(len(content))
        )
    body = ctypes.c_char_p(value), ctypes.c_size_t(len(value))
    place = ctypes.c_char_p(topic.encode())
    error = kafka.rd_kafka_producev(producer, _TOPIC, place, _VALUE, *body, _HEADERS, named, _END)
    assert error == 0
    assert kafka.rd_kafka_flush(producer, _FLUSH_MS) == 0
    kafka.rd_kafka_destroy(producer)


def _library() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    kafka = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(kafka, name).restype = ctypes.c_void_p
    kafka.rd_kafka_conf_set.argtypes = [ctypes.c_void_p, *[ctypes.c_char_p] * 3, ctypes.c_size_t]
    kafka.rd_kafka_new.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    return kafka
