"""The errors of the engine: facts and a stable `code` each; `timerwheel.api.http` maps codes to statuses."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class TimerwheelError(Exception):
    """Base of the engine's expected failures; `facts` are values that a program may act on, by name."""

    code = "timerwheel_error"
    facts: Mapping[str, int | str] = MappingProxyType({})


class SettingsError(TimerwheelError):
    """A setting is wrong; the message names it and says what is allowed."""

    code = "settings"


class ShardMismatchError(SettingsError):
    """The log of a directory is of another shard, or of another number of shards."""


class RangeError(SettingsError):
    """A number is out of the bounds of its setting."""

    def __init__(self, field: str, value: int, low: int, high: int) -> None:
        super().__init__(f"{field} = {value}: must be from {low} to {high}")
        self.field, self.value, self.low, self.high = field, value, low, high


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with one message of a send; `index` is its place in the array."""

    index: int
    code: str
    detail: str


class AdmissionError(TimerwheelError):
    """One message breaks a rule.

    Codes: illegal_delay, delay_too_long, reserved_property, system_topic, illegal_topic, body_too_large,
    too_many_properties, properties_too_large, illegal_property, transactional, illegal_key, reserved_key,
    illegal_queue, topic_ending, wrong_shard.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class RefusedError(TimerwheelError):
    """Nothing of a send was stored, because of these faults."""

    code = "refused"

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(f"message {f.index}: {f.detail}" for f in faults[:5]))
        self.faults = faults


class UnitTooLargeError(TimerwheelError):
    """What is stored together or not at all is larger than the journal takes at once."""

    code = "request_too_large"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the request needs {size} bytes in the log; the journal stores at most {limit} at once. "
            "Split the request"
        )


class CongestedError(TimerwheelError):
    """The second in which a message would fall due is full, and stays so until it is over.

    `free_ms` is the next second with room, None if there is none near.
    """

    code = "slot_congested"

    def __init__(self, due_ms: int, limit: int, free_ms: int | None) -> None:
        advice = "choose another" if free_ms is None else f"the next second with room begins at {free_ms}"
        super().__init__(
            f"the second of due time {due_ms} would exceed slot_messages_max = {limit} messages; " + advice
        )
        self.free_ms = free_ms
        if free_ms is not None:
            self.facts = {"free_ms": free_ms}


class DiskReserveError(TimerwheelError):
    """Free space is below the reserve: new work is refused, due messages still flow."""

    code = "disk_reserve"

    def __init__(self, free_bytes: int, reserve_bytes: int) -> None:
        super().__init__(
            f"only {free_bytes} bytes are free on the data disk, less than disk_reserve = "
            f"{reserve_bytes} bytes; free some space or lower disk_reserve"
        )


class IndexFullError(TimerwheelError):
    """The index has no room, and so much waits for it in memory that new work is refused."""

    code = "no_space"

    def __init__(self, waiting: int, reason: str) -> None:
        super().__init__(
            f"the index has no room, and {waiting} records wait for it in memory: {reason}; "
            "free some space on its disk, or restart with a larger index_map_size if that is reached"
        )


class NotReadyError(TimerwheelError):
    """The engine is starting, stopping or has failed, or another node leads; the message says which.

    `is_standby` if another node leads, whose URL is `leader`, if that is known.
    """

    code = "not_ready"

    def __init__(self, reason: str, *, is_standby: bool = False, leader: str | None = None) -> None:
        super().__init__(reason)
        if is_standby:
            self.facts = {"role": "standby"} | ({} if leader is None else {"leader": leader})


class OutcomeUnknownError(TimerwheelError):
    """The log failed in the middle of a call: what it asked for may have been stored, in part or whole."""

    code = "outcome_unknown"

    def __init__(self, detail: str) -> None:
        super().__init__(f"{detail}; it may have been stored: repeat a send only with a deduplication key")


class UnknownMessageError(TimerwheelError):
    """No message has this id: forged, mistyped, or removed by retention or with its topic."""

    code = "unknown_message"

    def __init__(self, message_id: str, why: str = "") -> None:
        super().__init__(f"there is no message with the id {message_id!r}{why}")


class DeletedMessageError(UnknownMessageError):
    """The message was deleted with its topic; `deleted_ms` is when the topic was deleted last."""

    code = "message_deleted"

    def __init__(self, message_id: str, topic: str, at_ms: int) -> None:
        super().__init__(message_id, f": it was deleted with its topic {topic!r}, at {at_ms}")
        self.topic = topic
        self.facts = {"deleted_ms": at_ms}


class AlreadyDeliveredError(TimerwheelError):
    """Too late: the message is in its queue."""

    code = "already_delivered"

    def __init__(self, message_id: str) -> None:
        super().__init__(f"message {message_id} has been delivered")


class AlreadyRecalledError(TimerwheelError):
    """The message was recalled before."""

    code = "already_recalled"

    def __init__(self, message_id: str) -> None:
        super().__init__(f"message {message_id} has already been recalled")


class OpenTransactionError(TimerwheelError):
    """The message is the half message of an open transaction: only its commit gives it a due time."""

    code = "open_transaction"

    def __init__(self, message_id: str) -> None:
        super().__init__(f"message {message_id} belongs to an open transaction; commit it or roll it back")


class NoOpenTransactionError(TimerwheelError):
    """The message is scheduled: it was committed, or was never a half message."""

    code = "no_open_transaction"

    def __init__(self, message_id: str) -> None:
        super().__init__(
            f"message {message_id} is not an open transaction: it was committed, or was sent without one"
        )


class UnknownTopicError(TimerwheelError):
    """No message was ever sent to this topic."""

    code = "unknown_topic"


class TopicEndingError(TimerwheelError):
    """The topic is being deleted; it can be used again once that is over."""

    code = "topic_ending"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} is being deleted; once that is over, the name can be used again")


class UnknownQueueError(TimerwheelError):
    """The topic has no queue of this number."""

    code = "unknown_queue"


class TopicOptionError(TimerwheelError):
    """An option of a topic has a value that is not allowed; the message names it."""

    code = "invalid_field"


class QueuesShrinkError(TopicOptionError):
    """A topic would get fewer queues than it has; messages and offsets of the others would be lost."""

    code = "queues_shrink"


class KeysMoveError(TopicOptionError):
    """More queues would move sharding keys of an ordered topic to other queues."""

    code = "keys_move"


class FixedOutletError(TopicOptionError):
    """A topic that goes to Kafka by the settings of the service was to be kept here."""

    code = "fixed_outlet"


class PreconditionFailedError(TimerwheelError):
    """The resource is not as the caller has seen it; nothing was changed."""

    code = "precondition_failed"


class OffsetOutOfRangeError(TimerwheelError):
    """A read from behind the end of a queue, where nothing can be waited for."""

    code = "offset_out_of_range"

    def __init__(self, topic: str, queue: int, offset: int, max_offset: int) -> None:
        super().__init__(
            f"offset {offset} is past the end of queue {queue} of topic {topic!r}, which ends at "
            f"{max_offset}; read from there, or from -1, the end"
        )
        self.facts = {"max_offset": max_offset}


class IllegalCursorError(TimerwheelError):
    """A page cursor that this service did not make."""

    code = "illegal_cursor"

    def __init__(self, cursor: str) -> None:
        super().__init__(
            f"{cursor!r} is not a cursor of this call; "
            "use one from the previous page, with the same parameters"
        )
