"""The five ways to give a due time, converted to RocketMQ's properties, which the engine reads."""

from msgspec import UNSET

from timerwheel.api.http.problems import RequestError
from timerwheel.model.admission import DELAY_PROPERTIES
from timerwheel.model.durations import parse_delay_ms, parse_rfc3339_ms
from timerwheel.wire.delays import Delays
from timerwheel.wire.messages import NewTime


def delay_property(delays: Delays, properties: dict[str, str]) -> tuple[str, str] | None:
    """Return the delay field as a property, None if no field is given.

    Raises `RequestError` conflicting_delay for two fields or a field beside a delay property, and
    `AdmissionError` illegal_delay for a text that does not say a time.
    """
    found: list[tuple[str, str, str]] = []
    if delays.delay_ms is not UNSET:
        found.append(("delay_ms", "TIMER_DELAY_MS", str(delays.delay_ms)))
    if delays.deliver_at_ms is not UNSET:
        found.append(("deliver_at_ms", "TIMER_DELIVER_MS", str(delays.deliver_at_ms)))
    if delays.delay_level is not UNSET:
        found.append(("delay_level", "DELAY", str(delays.delay_level)))
    if delays.delay is not UNSET:
        found.append(("delay", "TIMER_DELAY_MS", delays.delay))
    if delays.deliver_at is not UNSET:
        found.append(("deliver_at", "TIMER_DELIVER_MS", delays.deliver_at))
    if not found:
        return None
    given = [field for field, _, _ in found] + sorted(DELAY_PROPERTIES & properties.keys())
    if len(given) > 1:
        raise RequestError("conflicting_delay", f"give only one of {' and '.join(given)}")
    field, name, value = found[0]
    if field == "delay":
        value = str(parse_delay_ms(value))
    elif field == "deliver_at":
        value = str(parse_rfc3339_ms(value))
    return name, value


def new_time(wanted: NewTime) -> dict[str, str]:
    """Return the delay properties of a reschedule; raises `RequestError` or `AdmissionError`."""
    properties = {} if wanted.properties is UNSET else wanted.properties
    for name in properties:
        if name not in DELAY_PROPERTIES:
            raise RequestError("invalid_field", f"properties: {name!r} is not a delay property")
    when = delay_property(wanted, properties)
    if when is not None:
        properties[when[0]] = when[1]
    if not properties:
        raise RequestError("invalid_field", "give exactly one delay field or delay property")
    return properties
