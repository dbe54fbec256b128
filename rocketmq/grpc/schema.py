"""The messages of the gRPC protocol: numbers, names and types of their fields, as message classes.

Source: the package `apache.rocketmq.v2` of RocketMQ's 5.x clients. Only what this service reads or writes
is here; other fields of a client's message are kept but not looked at. A test compares this with the
descriptors of the Python client.

The classes belong to a descriptor pool of their own, because a process can hold only one set of messages of
this package in the common pool, and that of a client may be there.

A field is written `number name type`; `*` before the type means repeated, `?` that its presence is known,
and `|name` behind it that at most one of the fields with this name is set.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2

from timerwheel.rocketmq.grpc.codes import (
    AddressScheme,
    ClientType,
    Code,
    DigestType,
    Encoding,
    FilterType,
    Language,
    MessageType,
    Permission,
    TransactionResolution,
    TransactionSource,
)

PACKAGE: Final = "apache.rocketmq.v2"
SERVICE: Final = f"{PACKAGE}.MessagingService"

ENUMS: Final[Mapping[str, type[IntEnum]]] = {
    kind.__name__: kind
    for kind in (
        Code,
        Permission,
        FilterType,
        AddressScheme,
        MessageType,
        DigestType,
        Encoding,
        ClientType,
        Language,
        TransactionResolution,
        TransactionSource,
    )
}

MESSAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "Status": ("1 code Code", "2 message string"),
    "Resource": ("1 resource_namespace string", "2 name string"),
    "Address": ("1 host string", "2 port int32"),
    "Endpoints": ("1 scheme AddressScheme", "2 addresses *Address"),
    "Broker": ("1 name string", "2 id int32", "3 endpoints Endpoints"),
    "MessageQueue": (
        "1 topic Resource",
        "2 id int32",
        "3 permission Permission",
        "4 broker Broker",
        "5 accept_message_types *MessageType",
    ),
    "Assignment": ("1 message_queue MessageQueue",),
    "FilterExpression": ("1 type FilterType", "2 expression string"),
    "SubscriptionEntry": ("1 topic Resource", "2 expression FilterExpression"),
    "ExponentialBackoff": ("1 initial Duration", "2 max Duration", "3 multiplier float"),
    "CustomizedBackoff": ("1 next *Duration",),
    "RetryPolicy": (
        "1 max_attempts int32",
        "2 exponential_backoff ExponentialBackoff|strategy",
        "3 customized_backoff CustomizedBackoff|strategy",
    ),
    "UA": ("1 language Language", "2 version string", "3 platform string", "4 hostname string"),
    "Metric": ("1 on bool", "2 endpoints ?Endpoints"),
    "Publishing": ("1 topics *Resource", "2 max_body_size int32", "3 validate_message_type bool"),
    "Subscription": (
        "1 group ?Resource",
        "2 subscriptions *SubscriptionEntry",
        "3 fifo ?bool",
        "4 receive_batch_size ?int32",
        "5 long_polling_timeout ?Duration",
    ),
    "Settings": (
        "1 client_type ?ClientType",
        "2 access_point ?Endpoints",
        "3 backoff_policy ?RetryPolicy",
        "4 request_timeout ?Duration",
        "5 publishing Publishing|pub_sub",
        "6 subscription Subscription|pub_sub",
        "7 user_agent UA",
        "8 metric Metric",
    ),
    "TelemetryCommand": (
        "1 status ?Status",
        "2 settings Settings|command",
        "5 recover_orphaned_transaction_command RecoverOrphanedTransactionCommand|command",
    ),
    "RecoverOrphanedTransactionCommand": ("1 message Message", "2 transaction_id string"),
    "Digest": ("1 type DigestType", "2 checksum string"),
    "DeadLetterQueue": ("1 topic string", "2 message_id string"),
    "SystemProperties": (
        "1 tag ?string",
        "2 keys *string",
        "3 message_id string",
        "4 body_digest Digest",
        "5 body_encoding Encoding",
        "6 message_type MessageType",
        "7 born_timestamp Timestamp",
        "8 born_host string",
        "9 store_timestamp ?Timestamp",
        "10 store_host string",
        "11 delivery_timestamp ?Timestamp",
        "12 receipt_handle ?string",
        "13 queue_id int32",
        "14 queue_offset ?int64",
        "15 invisible_duration ?Duration",
        "16 delivery_attempt ?int32",
        "17 message_group ?string",
        "18 trace_context ?string",
        "20 dead_letter_queue ?DeadLetterQueue",
    ),
    "Message": (
        "1 topic Resource",
        "2 user_properties *UserPropertiesEntry",
        "3 system_properties SystemProperties",
        "4 body bytes",
    ),
    "QueryRouteRequest": ("1 topic Resource", "2 endpoints Endpoints"),
    "QueryRouteResponse": ("1 status Status", "2 message_queues *MessageQueue"),
    "QueryAssignmentRequest": ("1 topic Resource", "2 group Resource", "3 endpoints Endpoints"),
    "QueryAssignmentResponse": ("1 status Status", "2 assignments *Assignment"),
    "HeartbeatRequest": ("1 group ?Resource", "2 client_type ClientType"),
    "HeartbeatResponse": ("1 status Status",),
    "NotifyClientTerminationRequest": ("1 group ?Resource",),
    "NotifyClientTerminationResponse": ("1 status Status",),
    "SendMessageRequest": ("1 messages *Message",),
    "SendResultEntry": (
        "1 status Status",
        "2 message_id string",
        "3 transaction_id string",
        "4 offset int64",
        "5 recall_handle string",
    ),
    "SendMessageResponse": ("1 status Status", "2 entries *SendResultEntry"),
    "EndTransactionRequest": (
        "1 topic Resource",
        "2 message_id string",
        "3 transaction_id string",
        "4 resolution TransactionResolution",
        "5 source TransactionSource",
        "6 trace_context string",
    ),
    "EndTransactionResponse": ("1 status Status",),
    "RecallMessageRequest": ("1 topic Resource", "2 recall_handle string"),
    "RecallMessageResponse": ("1 status Status", "2 message_id string"),
    "ReceiveMessageRequest": (
        "1 group Resource",
        "2 message_queue MessageQueue",
        "3 filter_expression FilterExpression",
        "4 batch_size int32",
        "5 invisible_duration ?Duration",
        "6 auto_renew bool",
        "7 long_polling_timeout ?Duration",
        "8 attempt_id ?string",
    ),
    "ReceiveMessageResponse": (
        "1 status Status|content",
        "2 message Message|content",
        "3 delivery_timestamp Timestamp|content",
    ),
    "AckMessageEntry": ("1 message_id string", "2 receipt_handle string"),
    "AckMessageRequest": ("1 group Resource", "2 topic Resource", "3 entries *AckMessageEntry"),
    "AckMessageResultEntry": ("1 message_id string", "2 receipt_handle string", "3 status Status"),
    "AckMessageResponse": ("1 status Status", "2 entries *AckMessageResultEntry"),
    "ChangeInvisibleDurationRequest": (
        "1 group Resource",
        "2 topic Resource",
        "3 receipt_handle string",
        "4 invisible_duration Duration",
        "5 message_id string",
    ),
    "ChangeInvisibleDurationResponse": ("1 status Status", "2 receipt_handle string"),
    "ForwardMessageToDeadLetterQueueRequest": (
        "1 group Resource",
        "2 topic Resource",
        "3 receipt_handle string",
        "4 message_id string",
        "5 delivery_attempt int32",
        "6 max_delivery_attempts int32",
    ),
    "ForwardMessageToDeadLetterQueueResponse": ("1 status Status",),
}

_Proto = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "string": _Proto.TYPE_STRING,
    "bytes": _Proto.TYPE_BYTES,
    "bool": _Proto.TYPE_BOOL,
    "int32": _Proto.TYPE_INT32,
    "int64": _Proto.TYPE_INT64,
    "float": _Proto.TYPE_FLOAT,
}
_COMMON: Final = {"Timestamp": "google.protobuf.Timestamp", "Duration": "google.protobuf.Duration"}
_MAP_ENTRY: Final = "UserPropertiesEntry"


def _file() -> descriptor_pb2.FileDescriptorProto:
    """Return the descriptor of all messages and enumerations."""
    file = descriptor_pb2.FileDescriptorProto(
        name="timerwheel/rocketmq.proto",
        package=PACKAGE,
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name, duration_pb2.DESCRIPTOR.name],
    )
    for name, kind in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for value in kind:
            enum.value.add(name=value.name, number=value)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "Message":
            entry = message.nested_type.add(name=_MAP_ENTRY)
            entry.options.map_entry = True
            _add(entry, "1 key string", "")
            _add(entry, "2 value string", "")
        for field in fields:
            _add(message, field, f".{PACKAGE}.{name}")
        # The unnamed groups of optional fields come behind the named ones.
        for one in message.field:
            if one.proto3_optional:
                one.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{one.name}")
    return file


def _add(message: descriptor_pb2.DescriptorProto, field: str, path: str) -> None:
    number, name, kind = field.split(" ")
    kind, _, group = kind.partition("|")
    type_name = kind.lstrip("*?")
    found = message.field.add(name=name, number=int(number))
    found.label = _Proto.LABEL_REPEATED if kind[0] == "*" else _Proto.LABEL_OPTIONAL
    if kind[0] == "?":
        found.proto3_optional = True
    if type_name in _SCALARS:
        found.type = _SCALARS[type_name]
    elif type_name in ENUMS:
        found.type, found.type_name = _Proto.TYPE_ENUM, f".{PACKAGE}.{type_name}"
    else:
        found.type = _Proto.TYPE_MESSAGE
        whole = f"{path}.{type_name}" if type_name == _MAP_ENTRY else f".{PACKAGE}.{type_name}"
        found.type_name = f".{_COMMON[type_name]}" if type_name in _COMMON else whole
    if group:
        known = [one.name for one in message.oneof_decl]
        if group not in known:
            message.oneof_decl.add(name=group)
            known.append(group)
        found.oneof_index = known.index(group)


_pool = descriptor_pool.DescriptorPool()
for _common in (timestamp_pb2, duration_pb2):
    _pool.AddSerializedFile(_common.DESCRIPTOR.serialized_pb)
_pool.AddSerializedFile(_file().SerializeToString())


def message_class(name: str) -> Any:
    """Return the class of a message of MESSAGES."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
