"""The enumerations of the gRPC protocol, and which code an error of the engine becomes.

An answer carries its code in `status`, and the call itself succeeds: clients look at nothing else.
"""

import logging
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from timerwheel.errors import RefusedError, TimerwheelError
from timerwheel.store.errors import StoreError

logger = logging.getLogger(__name__)

DETAIL_CHARACTERS_MAX: Final = 1_000


class Code(IntEnum):
    """How a call ended."""

    CODE_UNSPECIFIED = 0
    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    REQUEST_TIMEOUT = 40800
    PAYLOAD_TOO_LARGE = 41300
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    TOO_MANY_REQUESTS = 42900
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    UNSUPPORTED = 50500


OK: Final = (int(Code.OK), "OK")
"""Code and text of what went well."""
CODE_NAMES: Final[Mapping[int, str]] = {int(code): code.name for code in Code}


class Permission(IntEnum):
    """What may be done with a queue."""

    PERMISSION_UNSPECIFIED = 0
    NONE = 1
    READ = 2
    WRITE = 3
    READ_WRITE = 4


class FilterType(IntEnum):
    """How a filter expression is written."""

    FILTER_TYPE_UNSPECIFIED = 0
    TAG = 1
    SQL = 2


class AddressScheme(IntEnum):
    """What kind of addresses clients connect to."""

    ADDRESS_SCHEME_UNSPECIFIED = 0
    IPv4 = 1
    IPv6 = 2
    DOMAIN_NAME = 3


class MessageType(IntEnum):
    """What a message is, beside its body."""

    MESSAGE_TYPE_UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class TransactionResolution(IntEnum):
    """How a transaction ends."""

    TRANSACTION_RESOLUTION_UNSPECIFIED = 0
    COMMIT = 1
    ROLLBACK = 2


class TransactionSource(IntEnum):
    """Why a client ends a transaction: because it is through, or because it was asked."""

    SOURCE_UNSPECIFIED = 0
    SOURCE_CLIENT = 1
    SOURCE_SERVER_CHECK = 2


class DigestType(IntEnum):
    """How the checksum of a body is computed."""

    DIGEST_TYPE_UNSPECIFIED = 0
    CRC32 = 1
    MD5 = 2
    SHA1 = 3


class Encoding(IntEnum):
    """How a body is compressed; GZIP is gzip or zlib."""

    ENCODING_UNSPECIFIED = 0
    IDENTITY = 1
    GZIP = 2


class ClientType(IntEnum):
    """What a client does."""

    CLIENT_TYPE_UNSPECIFIED = 0
    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3
    PULL_CONSUMER = 4
    LITE_PUSH_CONSUMER = 5
    LITE_SIMPLE_CONSUMER = 6


class Language(IntEnum):
    """What a client is written in."""

    LANGUAGE_UNSPECIFIED = 0
    JAVA = 1
    CPP = 2
    DOT_NET = 3
    GOLANG = 4
    RUST = 5
    PYTHON = 6
    PHP = 7
    NODE_JS = 8
    RUBY = 9
    OBJECTIVE_C = 10
    DART = 11
    KOTLIN = 12


class CallError(TimerwheelError):
    """A call, or one message of it, is answered with this code."""

    code = "grpc"

    def __init__(self, answer: Code, detail: str) -> None:
        super().__init__(detail)
        self.answer = answer


_CODES: Final[Mapping[str, Code]] = {
    "illegal_topic": Code.ILLEGAL_TOPIC,
    "system_topic": Code.ILLEGAL_TOPIC,
    "unknown_topic": Code.TOPIC_NOT_FOUND,
    "topic_ending": Code.TOPIC_NOT_FOUND,
    "too_many_topics": Code.FORBIDDEN,
    "illegal_group": Code.ILLEGAL_CONSUMER_GROUP,
    "invalid_field": Code.BAD_REQUEST,
    "too_many_groups": Code.FORBIDDEN,
    "unknown_group": Code.CONSUMER_GROUP_NOT_FOUND,
    "group_not_found": Code.CONSUMER_GROUP_NOT_FOUND,
    "group_differs": Code.BAD_REQUEST,
    "illegal_filter": Code.ILLEGAL_FILTER_EXPRESSION,
    "illegal_key": Code.ILLEGAL_MESSAGE_ID,
    "reserved_key": Code.ILLEGAL_MESSAGE_ID,
    "key_reused": Code.BAD_REQUEST,
    "key_recalled": Code.BAD_REQUEST,
    "illegal_delay": Code.ILLEGAL_DELIVERY_TIME,
    "delay_too_long": Code.ILLEGAL_DELIVERY_TIME,
    "body_too_large": Code.MESSAGE_BODY_TOO_LARGE,
    "illegal_property": Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    "reserved_property": Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    "too_many_properties": Code.MESSAGE_PROPERTIES_TOO_LARGE,
    "properties_too_large": Code.MESSAGE_PROPERTIES_TOO_LARGE,
    "transactional": Code.BAD_REQUEST,
    "open_transaction": Code.BAD_REQUEST,
    "no_open_transaction": Code.INVALID_TRANSACTION_ID,
    "illegal_receipt": Code.INVALID_RECEIPT_HANDLE,
    "receipt_ended": Code.INVALID_RECEIPT_HANDLE,
    "illegal_handle": Code.BAD_REQUEST,
    "unknown_message": Code.MESSAGE_NOT_FOUND,
    "message_deleted": Code.MESSAGE_NOT_FOUND,
    "already_delivered": Code.BAD_REQUEST,
    "already_recalled": Code.BAD_REQUEST,
    "slot_congested": Code.TOO_MANY_REQUESTS,
    "not_ready": Code.HA_NOT_AVAILABLE,
    "disk_reserve": Code.HA_NOT_AVAILABLE,
    "no_space": Code.HA_NOT_AVAILABLE,
    "log_failed": Code.HA_NOT_AVAILABLE,
}


def code_of(code: str) -> Code:
    """Return the code for one of `timerwheel.errors`."""
    return _CODES.get(code, Code.INTERNAL_SERVER_ERROR)


def status_of(error: BaseException) -> tuple[Code, str]:
    """Return code and text for an error; one that nobody expects is logged."""
    if isinstance(error, CallError):
        return error.answer, str(error)[:DETAIL_CHARACTERS_MAX]
    if isinstance(error, RefusedError):
        fault = error.faults[0]
        return code_of(fault.code), fault.detail[:DETAIL_CHARACTERS_MAX]
    if isinstance(error, (TimerwheelError, StoreError)):
        return code_of(error.code), str(error)[:DETAIL_CHARACTERS_MAX]
    logger.error("a call failed", exc_info=error)
    return Code.INTERNAL_SERVER_ERROR, "the service failed; its log says how"
