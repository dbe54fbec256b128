"""Admission: every rule that a message must pass before it is stored, and when it falls due. Pure.

The rules are checked in this order, and the first broken one is reported:

1. The topic is 1 to 127 of `[A-Za-z0-9_%|-]`. It is not one of the two topics for scheduled messages, and not
   a reserved name: `%DLQ%...`, `%RETRY%...`, `%TASK%...`, `%TASKLOG%...`, `rmq_sys_...` in any case,
   `TBW102`. A deduplication key, if given, is 1 to 255 bytes of printable text and does not begin with
   `schedule:`.
2. Body, number of properties and bytes of properties are within their limits, as the client sent them. Delay
   properties are not stored and do not count: a delay costs no property however it is written. A trace
   context that is malformed or exceeds the limits is dropped.
3. Property names are not empty and have no control characters. Names and values can be written as UTF-8. No
   name belongs to the service or begins with `SCHEDULE_` or `DLQ_`. `TIMER_TTL_MS` and `TIMER_MAX_ATTEMPTS`
   are numbers within their limits.
4. A prepared (half) message is refused: it is begun, as a transaction.
5. `DELAY` > 0 wins over every other delay property and is clamped to the highest level; 0 means no level.
6. Otherwise the first present of `TIMER_DELAY_SEC`, `TIMER_DELAY_MS`, `TIMER_DELIVER_MS`,
   `__STARTDELIVERTIME` counts. A bad value is an error and never falls through to the next.
7. A delay counts from now, or from `Outgoing.from_ms`. Due ≤ now: an ordinary message, delivered at once.
   Due > now + max_delay: an error; equal is allowed.

The engine checks the slot limit after these. Sums are exact: no delay overflows into the past. A run of a
schedule (`Outgoing.own`) may use reserved names, because the schedule was checked when it was put. A task, or
a trace of RocketMQ's clients (`Outgoing.to_reserved`), may go to its reserved topic.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from timerwheel.errors import AdmissionError
from timerwheel.model.delay_levels import LevelTable
from timerwheel.model.limits import LIMIT_PROPERTIES, check_limits
from timerwheel.model.messages import Outgoing
from timerwheel.model.properties import KEYS, SHARDING_KEY, TAGS
from timerwheel.model.shards import Shard, shard_of_topic
from timerwheel.model.trace_context import CONTEXT_PROPERTIES, TRACEPARENT, context_of, without_context
from timerwheel.settings import Settings

SYSTEM_TOPIC_TIMER = "rmq_sys_wheel_timer"
SYSTEM_TOPIC_LEVELS = "SCHEDULE_TOPIC_XXXX"
SYSTEM_TOPICS = frozenset({SYSTEM_TOPIC_TIMER, SYSTEM_TOPIC_LEVELS})
DEAD_PREFIX = "%DLQ%"
RETRY_PREFIX = "%RETRY%"
SYSTEM_PREFIX = "rmq_sys_"
TASK_PREFIX = "%TASK%"
"""Before the name of a task queue: the topic of its tasks, which only the service sends to."""
TASK_GROUP = "tasks"
"""The group of such a topic as which the service makes the calls; only the service makes and changes it."""
TASK_LOG_PREFIX = "%TASKLOG%"
"""Before the name of a task queue: the topic of the outcomes of its tasks."""
TEMPLATE_TOPIC = "TBW102"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
"""Where RocketMQ's clients send what they trace; no other protocol sends there."""

HALF_PROPERTY = "TRAN_MSG"
HALF_DUE_MS = 253_370_764_800_000
"""Due time of half messages: the year 9999, which no delay reaches (`timerwheel.runtime.transactions`)."""

KEY_PROPERTY = "DEDUP_KEY"
HASH_PROPERTY = "DEDUP_HASH"
DOMAIN_PROPERTY = "DEDUP_DOMAIN"
ENVELOPE_PROPERTY = "__ENVELOPE"
"""What another protocol keeps with a message; no front shows it as a property."""
KEY_BYTES_MAX = 255
SCHEDULE_KEY_PREFIX = "schedule:"

ALIBABA_DELIVER_MS: Final = "__STARTDELIVERTIME"
_TIMES: Final[Mapping[str, Callable[[int, int], int]]] = {
    "TIMER_DELAY_SEC": lambda from_ms, seconds: from_ms + seconds * 1000,
    "TIMER_DELAY_MS": lambda from_ms, delay_ms: from_ms + delay_ms,
    "TIMER_DELIVER_MS": lambda _, due_ms: due_ms,
    ALIBABA_DELIVER_MS: lambda _, due_ms: due_ms,
}
"""The properties that set a due time, in the order in which they count, each with its due time.

It follows from the time from which a delay counts, and from the property's number.
"""
TIMER_PROPERTIES = tuple(_TIMES)
DELAY_PROPERTIES = frozenset({"DELAY", *TIMER_PROPERTIES})
RESERVED_PROPERTIES = frozenset(
    {"REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"}
    | {KEY_PROPERTY, HASH_PROPERTY, DOMAIN_PROPERTY, ENVELOPE_PROPERTY}
)
RESERVED_PREFIXES = ("SCHEDULE_", "DLQ_")
_RULED = DELAY_PROPERTIES | RESERVED_PROPERTIES | LIMIT_PROPERTIES | CONTEXT_PROPERTIES | {HALF_PROPERTY}
"""Properties for whose values there are rules, or that mean something to admission."""
FIELD_PROPERTIES = frozenset({TAGS, KEYS, "UNIQ_KEY", SHARDING_KEY, "__BORNHOST"})
"""Fields of a message in RocketMQ's protocols, which do not count towards `properties_max`."""

TOPIC_CHARACTERS_MAX: Final = 127
_match_topic = re.compile(rf"[A-Za-z0-9_%|-]{{1,{TOPIC_CHARACTERS_MAX}}}").fullmatch
_match_reserved = re.compile(
    rf"(?:{DEAD_PREFIX}|{RETRY_PREFIX}|{TASK_PREFIX}|{TASK_LOG_PREFIX}|(?i:{SYSTEM_PREFIX})).*|{TEMPLATE_TOPIC}",
    re.DOTALL,
).fullmatch
# Twenty characters hold every 64-bit number; without a limit, parsing a million digits would take minutes.
_match_number = re.compile(r"-?[0-9]{1,19}").fullmatch
_has_control = re.compile(r"[\x00-\x1f\x7f-\x9f]").search
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_SHORT_DIGITS = 18
_SHOWN_CHARACTERS = 40


class Rules(msgspec.Struct, frozen=True):
    """The limits that admission checks, in milliseconds, bytes and counts."""

    levels: LevelTable
    max_delay_ms: int
    body_bytes_max: int
    properties_max: int
    properties_bytes_max: int
    shard: Shard | None = None
    """The shard whose topics alone are taken, if there are several."""

    @classmethod
    def of(cls, settings: Settings) -> "Rules":
        """Return the rules for these settings; SettingsError if the level table is wrong."""
        return cls(
            LevelTable.parse(settings.levels),
            settings.max_delay_ms,
            settings.body_bytes_max,
            settings.properties_max,
            settings.properties_bytes_max,
        )


class Plan(msgspec.Struct, frozen=True, gc=False):
    """What admission decided about a message.

    `due_ms` is epoch milliseconds, and now for a message that is due at once. `level` is 0 unless a delay
    level set the time. `properties` is a new dict without the delay properties.
    """

    due_ms: int
    level: int
    waits: bool
    properties: dict[str, str]


def admit(outgoing: Outgoing, now_ms: int, rules: Rules) -> Plan:
    """Return the plan for a message sent at `now_ms`; AdmissionError with the first rule it breaks.

    About 1 µs when the message has no properties, or just `TIMER_DELAY_MS` or `TIMER_DELIVER_MS`.
    """
    trusted = outgoing.own or outgoing.to_reserved
    if trusted or rules.shard is not None or not is_sendable(outgoing.topic):
        _check_place(outgoing, rules.shard, trusted=trusted)
    if len(outgoing.body) > rules.body_bytes_max:
        raise _body_error(outgoing.body, rules)
    if outgoing.dedup_key is not None:
        check_key(outgoing.dedup_key)
        if not outgoing.own and outgoing.dedup_key.startswith(SCHEDULE_KEY_PREFIX):
            raise _reserved_key(outgoing.dedup_key)
    elif outgoing.after_recall is not None or outgoing.replaces:
        field = "on_duplicate" if outgoing.replaces else "after_recall"
        raise AdmissionError("illegal_key", f"{field} needs a deduplication key; give dedup_key too")
    due_ms = _short_time(outgoing, now_ms)
    if now_ms < due_ms <= now_ms + rules.max_delay_ms:
        return Plan(due_ms, 0, True, {})  # noqa: FBT003 - keywords would double the cost of the hot path
    if 0 < due_ms <= now_ms:
        return Plan(now_ms, 0, False, {})  # noqa: FBT003 - as above
    properties = outgoing.spelled
    if TRACEPARENT in properties:
        properties = _with_context(properties, rules)
    _check_properties(properties, rules, own=outgoing.own)
    if properties.get(HALF_PROPERTY, "").lower() == "true":
        detail = (
            f"{HALF_PROPERTY} = true: begin a transaction (POST /v1/transactions) instead of sending a "
            "half message"
        )
        raise AdmissionError("transactional", detail)
    from_ms = now_ms if outgoing.from_ms is None else min(outgoing.from_ms, now_ms)
    return _plan(properties, now_ms, rules, from_ms)


def _body_error(body: bytes, rules: Rules) -> AdmissionError:
    detail = f"the body has {len(body)} bytes, more than body_size_max = {rules.body_bytes_max}"
    return AdmissionError("body_too_large", detail)


def _with_context(properties: dict[str, str], rules: Rules) -> dict[str, str]:
    """Return the properties, without the trace context if it is malformed or exceeds the limits."""
    rest = without_context(properties)
    whole = rest | context_of(properties)
    counted = _counted(whole)
    if _number_of(counted) > rules.properties_max or _size_bytes(counted) > rules.properties_bytes_max:
        return rest
    return whole


def _short_time(outgoing: Outgoing, now_ms: int) -> int:
    """Return the due time for the simple cases: a number, one property in plain digits, or no delay at all.

    Return 0 for all others: the full path decides, and reports what is wrong.
    """
    properties = outgoing.properties
    from_ms = now_ms if outgoing.from_ms is None else min(outgoing.from_ms, now_ms)
    if not properties:
        if outgoing.after_ms is not None:
            return from_ms + outgoing.after_ms
        return now_ms if outgoing.at_ms is None else outgoing.at_ms
    if len(properties) > 1 or outgoing.after_ms is not None or outgoing.at_ms is not None:
        return 0
    if (text := properties.get("TIMER_DELAY_MS")) is None:
        text, from_ms = properties.get("TIMER_DELIVER_MS"), 0
    if text is not None and len(text) <= _SHORT_DIGITS and text.isascii() and text.isdecimal():
        return from_ms + int(text)
    return 0


def admit_delay(properties: dict[str, str], now_ms: int, rules: Rules) -> Plan:
    """Return the plan for a reschedule; `properties` may hold delay properties only.

    Raises AdmissionError: the limits of a send apply, reserved_property or illegal_property for any other
    property, illegal_delay if no property names a time (`DELAY = 0` alone does not).
    """
    _check_properties(properties, rules)
    others = sorted(properties.keys() - DELAY_PROPERTIES)
    if others:
        names = ", ".join(map(_shown, others[:5]))
        raise AdmissionError("illegal_property", f"{names}: a reschedule can change only the due time")
    if not _names_time(properties):
        detail = f"no new due time; give DELAY from 1, or one of {', '.join(TIMER_PROPERTIES)}"
        raise AdmissionError("illegal_delay", detail)
    return _plan(properties, now_ms, rules, now_ms)


def is_sendable(topic: str) -> bool:
    """Whether clients can send to a topic of this name."""
    return len(topic) <= TOPIC_CHARACTERS_MAX and _is_sendable(topic)


@lru_cache(maxsize=4096)
def _is_sendable(topic: str) -> bool:
    return _is_storable(topic) and not is_reserved(topic)


def is_reserved(topic: str) -> bool:
    """Whether a topic of this name belongs to the service: dead letters, retries, tasks, timers."""
    return topic in SYSTEM_TOPICS or _match_reserved(topic) is not None


def are_plain(names: Collection[str]) -> bool:
    """Whether properties with these names are stored as they are, whatever their values.

    Their number and size have limits all the same.
    """
    return _RULED.isdisjoint(names) and all(
        name and name.isprintable() and not name.startswith(RESERVED_PREFIXES) for name in names
    )


def _is_storable(topic: str) -> bool:
    return (
        topic not in SYSTEM_TOPICS and not topic.startswith(DEAD_PREFIX) and _match_topic(topic) is not None
    )


def _names_time(properties: dict[str, str]) -> bool:
    if any(name in properties for name in TIMER_PROPERTIES):
        return True
    return "DELAY" in properties and _level(properties["DELAY"]) > 0


def _counted(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties that count towards the limits: those that would be stored."""
    if DELAY_PROPERTIES.isdisjoint(properties):
        return properties
    return {name: value for name, value in properties.items() if name not in DELAY_PROPERTIES}


def _number_of(counted: dict[str, str]) -> int:
    return len(counted.keys() - FIELD_PROPERTIES)


def _check_properties(properties: dict[str, str], rules: Rules, *, own: bool = False) -> None:
    size_bytes = _size_bytes(properties)
    if len(properties) > rules.properties_max or size_bytes > rules.properties_bytes_max:
        _check_limits(_counted(properties), rules)
    if "" in properties:
        raise AdmissionError("illegal_property", "a property has an empty name")
    if not own:
        _check_names(properties)


def _check_names(properties: dict[str, str]) -> None:
    if not "".join(properties).isprintable():
        _check_no_control(properties)
    check_limits(properties)
    reserved = [name for name in properties if name.startswith(RESERVED_PREFIXES)]
    if reserved or not RESERVED_PROPERTIES.isdisjoint(properties):
        names = sorted({*reserved, *(RESERVED_PROPERTIES & properties.keys())})
        text = ", ".join(map(_shown_name, names[:5]))
        raise AdmissionError("reserved_property", f"{text}: only the service may set this")


def _check_limits(counted: dict[str, str], rules: Rules) -> None:
    if (number := _number_of(counted)) > rules.properties_max:
        detail = f"{number} properties, more than properties_max = {rules.properties_max}"
        raise AdmissionError("too_many_properties", detail)
    size_bytes = _size_bytes(counted)
    if size_bytes > rules.properties_bytes_max:
        detail = (
            f"names and values of the properties have {size_bytes} bytes, more than "
            f"properties_size_max = {rules.properties_bytes_max}"
        )
        raise AdmissionError("properties_too_large", detail)


def _check_no_control(properties: dict[str, str]) -> None:
    """Raise AdmissionError for a control character in a name: RocketMQ's format separates names by them."""
    for name in properties:
        if _has_control(name) is not None:
            raise AdmissionError(
                "illegal_property", f"the name of the property {_shown(name)} contains a control character"
            )


def _size_bytes(properties: dict[str, str]) -> int:
    """Count the UTF-8 bytes of all names and values; AdmissionError illegal_property without a UTF-8 form."""
    text = "".join(properties) + "".join(properties.values())
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        name = next(name for name, value in properties.items() if not _is_unicode(name + value))
        detail = f"the property {_shown(name)} contains half of a surrogate pair, which UTF-8 cannot encode"
        raise AdmissionError("illegal_property", detail) from None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plan(properties: dict[str, str], now_ms: int, rules: Rules, from_ms: int) -> Plan:
    plan = plan_accepted(properties, now_ms, rules.levels, from_ms)
    if plan.due_ms > now_ms + rules.max_delay_ms:
        detail = f"due {plan.due_ms - now_ms} ms from now, more than max_delay = {rules.max_delay_ms} ms"
        raise AdmissionError("delay_too_long", detail)
    return plan


def plan_accepted(properties: dict[str, str], now_ms: int, levels: LevelTable, from_ms: int) -> Plan:
    """Plan a message whose properties were accepted, under limits that may have been lowered since."""
    if DELAY_PROPERTIES.isdisjoint(properties):
        return Plan(now_ms, 0, False, properties.copy())  # noqa: FBT003 - as in `admit`
    level, due_ms = _time(properties, from_ms, levels)
    rest = {name: value for name, value in properties.items() if name not in DELAY_PROPERTIES}
    if due_ms <= now_ms:
        return Plan(due_ms=now_ms, level=0, waits=False, properties=rest)
    return Plan(due_ms=due_ms, level=level, waits=True, properties=rest)


def _time(properties: dict[str, str], from_ms: int, levels: LevelTable) -> tuple[int, int]:
    """Return level (0 is none) and due time from the property that counts; `from_ms` if there is none."""
    text = properties.get("DELAY")
    if text is not None and (level := levels.clamp(_level(text))):
        return level, from_ms + levels.delay_ms(level)
    for name, due_ms_of in _TIMES.items():
        text = properties.get(name)
        if text is not None:
            return 0, due_ms_of(from_ms, _number(name, text))
    return 0, from_ms


def _level(text: str) -> int:
    level = _number("DELAY", text)
    if level < 0:
        raise AdmissionError("illegal_delay", f"DELAY = {level}: a delay level cannot be negative")
    return level


def _number(name: str, text: str) -> int:
    if _match_number(text) is None or not _INT64_MIN <= (number := int(text)) <= _INT64_MAX:
        raise AdmissionError("illegal_delay", f"{name} = {_shown(text)} is not a whole number of 64 bits")
    return number


def check_topic(topic: str, *, is_known: bool = False) -> None:
    """Raise AdmissionError unless this topic can have consumers.

    Those are a client's topic, a dead-letter topic, the topic of a group's retries, and those of tasks.

    With `is_known` the topic has messages. Those that were sent before its name was reserved can still be
    consumed.
    """
    name = topic.removeprefix(DEAD_PREFIX)
    if name != topic:
        is_legal = not name.startswith(DEAD_PREFIX)
    else:
        own = (RETRY_PREFIX, TASK_PREFIX, TASK_LOG_PREFIX)
        is_own = topic.startswith(own) and topic not in own
        is_legal = topic not in SYSTEM_TOPICS and (is_known or is_own or _match_reserved(topic) is None)
    if not is_legal or _match_topic(name) is None:
        raise _topic_error(topic)


def _check_place(outgoing: Outgoing, shard: Shard | None, *, trusted: bool) -> None:
    """Raise AdmissionError if the topic is not one for this message, or not of this shard."""
    if not (_is_storable(outgoing.topic) if trusted else is_sendable(outgoing.topic)):
        raise _topic_error(outgoing.topic)
    if shard is not None:
        check_shard(outgoing.topic, shard)


def check_shard(topic: str, shard: Shard) -> None:
    """Raise AdmissionError wrong_shard for a topic that is in another shard."""
    if shard.holds(topic):
        return
    other = shard_of_topic(topic, shard.of)
    detail = f"topic {_shown(topic)} is in shard {other} of {shard.of}, and this is shard {shard.number}"
    raise AdmissionError("wrong_shard", f"{detail}: GET /v1/cluster says where each one is")


def check_delay_ms(delay_ms: int, limit_ms: int) -> None:
    """Raise AdmissionError delay_too_long or illegal_delay unless a delay is from 0 to `limit_ms`."""
    if not 0 <= delay_ms <= limit_ms:
        code = "delay_too_long" if delay_ms > limit_ms else "illegal_delay"
        raise AdmissionError(code, f"delay_ms = {delay_ms}: must be from 0 to max_delay = {limit_ms} ms")


def check_copy(body: bytes, properties: dict[str, str], rules: Rules) -> None:
    """Raise AdmissionError unless a client may store this as a copy of a message that it has received.

    Clients add properties of their own to a copy, so their number and size are not limited here.
    """
    if len(body) > rules.body_bytes_max:
        raise _body_error(body, rules)
    _check_names(properties)


def check_topic_name(topic: str) -> None:
    """Raise AdmissionError illegal_topic unless a topic, even one of the service, can have this name."""
    if topic not in SYSTEM_TOPICS and _match_topic(topic.removeprefix(DEAD_PREFIX)) is None:
        raise AdmissionError(
            "illegal_topic",
            f"{_shown(topic)} is not a valid topic: use 1 to 127 characters of A-Z a-z 0-9 _ % | -",
        )


def _topic_error(topic: str) -> AdmissionError:
    if topic in SYSTEM_TOPICS:
        return AdmissionError("system_topic", f"{topic} is reserved for scheduled messages")
    if _match_reserved(topic) is not None:
        return AdmissionError(
            "system_topic", f"{_shown(topic)} is reserved for the service; choose another topic"
        )
    return AdmissionError(
        "illegal_topic",
        f"{_shown(topic)} is not a valid topic: use 1 to 127 characters of A-Z a-z 0-9 _ % | -",
    )


def is_key(key: str) -> bool:
    """Whether a client may give a message this deduplication key."""
    return _is_printable_key(key) and not key.startswith(SCHEDULE_KEY_PREFIX)


def are_plain_keys(keys: Sequence[str]) -> bool:
    """Whether these keys are such keys, all in ASCII; False says nothing. About 0.05 µs for each."""
    text = "".join(keys)
    sizes = set(map(len, keys))
    return (
        text.isascii()
        and text.isprintable()
        and SCHEDULE_KEY_PREFIX not in text
        and (not sizes or (min(sizes) >= 1 and max(sizes) <= KEY_BYTES_MAX))
    )


def _is_printable_key(key: str) -> bool:
    try:
        size_bytes = len(key) if key.isascii() else len(key.encode())
    except UnicodeEncodeError:
        return False
    return 1 <= size_bytes <= KEY_BYTES_MAX and key.isprintable()


def check_key(key: str) -> None:
    """Raise AdmissionError illegal_key unless it is 1 to KEY_BYTES_MAX bytes of printable text."""
    if not _is_printable_key(key):
        detail = f"{_shown(key)} is not a valid key: use 1 to {KEY_BYTES_MAX} bytes of printable text"
        raise AdmissionError("illegal_key", detail)


def _reserved_key(key: str) -> AdmissionError:
    detail = f"{_shown(key)} begins with {SCHEDULE_KEY_PREFIX}, which is reserved for schedules"
    return AdmissionError("reserved_key", detail)


def _shown_name(name: str) -> str:
    """Show a property's name in an error message: unchanged if it is short and printable."""
    return name if name.isprintable() and len(name) <= _SHOWN_CHARACTERS else _shown(name)


def _shown(text: str) -> str:
    """Show a client's text in an error message: printable and short."""
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}..."
