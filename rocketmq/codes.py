"""The numbers of the protocol: request codes, response codes, flags. Pure.

They are those of `RequestCode`, `ResponseCode`, `MessageSysFlag` and `PullSysFlag` in RocketMQ's source.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class Call(IntEnum):
    """What a request asks for. The last ones go from the server to a client.

    Those over 32,767 do not fit a binary header: their requests are JSON.
    """

    SEND = 10
    PULL = 11
    QUERY_MESSAGE = 12
    QUERY_OFFSET = 14
    UPDATE_OFFSET = 15
    UPDATE_TOPIC = 17
    BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET = 29
    MAX_OFFSET = 30
    MIN_OFFSET = 31
    EARLIEST_STORE_TIME = 32
    VIEW_MESSAGE = 33
    HEARTBEAT = 34
    UNREGISTER = 35
    SEND_BACK = 36
    END_TRANSACTION = 37
    CONSUMER_LIST = 38
    LOCK_QUEUES = 41
    UNLOCK_QUEUES = 42
    CHECK_CLIENT = 46
    DELETE_KV_CONFIG = 102
    ROUTE = 105
    CLUSTER = 106
    UPDATE_GROUP = 200
    TOPIC_STATS = 202
    CONSUMER_CONNECTIONS = 203
    ALL_TOPICS = 206
    DELETE_GROUP = 207
    CONSUME_STATS = 208
    DELETE_TOPIC = 215
    DELETE_TOPIC_ROUTE = 216
    GROUPS_OF_TOPIC = 300
    SEND_V2 = 310
    SEND_BATCH = 320
    RESET_OFFSETS = 222
    TOPIC_CONFIG = 351
    LITE_PULL = 361
    RECALL = 370
    QUERY_ASSIGNMENT = 400
    SET_REQUEST_MODE = 401
    POP = 200_050
    ACKNOWLEDGE = 200_051
    CHANGE_INVISIBLE_TIME = 200_053
    NOTIFICATION = 200_054
    ACKNOWLEDGE_BATCH = 200_151
    CHECK_TRANSACTION = 39
    NOTIFY_CONSUMERS = 40
    RESET_CLIENT_OFFSETS = 220


class Result(IntEnum):
    """How a request ended."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    NOT_SUPPORTED = 3
    MESSAGE_ILLEGAL = 13
    NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_NOW = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    GROUP_NOT_EXIST = 26
    CONSUMER_NOT_ONLINE = 206
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    ILLEGAL_OPERATION = 604


RESULT_NAMES: Final[Mapping[int, str]] = {int(result): result.name for result in Result}

FLAG_RESPONSE: Final = 1
FLAG_ONE_WAY: Final = 2

SYS_COMPRESSED: Final = 1
SYS_MULTI_TAGS: Final = 2
SYS_PREPARED: Final = 4
SYS_COMMIT: Final = 8
SYS_ROLLBACK: Final = 4 | 8
SYS_TRANSACTION: Final = 4 | 8
"""Both bits of a transaction: 4 a half message, 8 a committed one; in an end 8 is a commit, 12 a rollback."""
SYS_BORN_IPV6: Final = 16
SYS_STORE_IPV6: Final = 32
SYS_COMPRESSION_TYPE: Final = 7 << 8
"""How a compressed body is compressed: 0 and 3 mean zlib, 1 LZ4, 2 Zstandard."""

PULL_COMMIT: Final = 1
PULL_SUSPEND: Final = 2
PULL_SUBSCRIPTION: Final = 4

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1

VERSION: Final = 479
"""The protocol version that is answered: that of RocketMQ 5.3.3."""

LANGUAGES: Final = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS"),
    *("RUST", "NODE_JS"),
)
"""The languages of clients, by their numbers in a binary header."""
OTHER_LANGUAGE: Final = "OTHER"
