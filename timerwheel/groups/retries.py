"""Retries of groups of kind `offsets`: a message that a consumer could not process is stored again.

    send_back   a copy in the topic `%RETRY%group`, after a delay: a timer like any other
    give_up     a copy among the dead letters in `%DLQ%group`

The caller composes the properties of a copy: it knows the names that its clients look for. A copy is not new
work, so no limit on new messages refuses it. Each call is one unit.
"""

from collections.abc import Mapping

from timerwheel.errors import AdmissionError
from timerwheel.groups.config import leases_only
from timerwheel.groups.dead_letter_properties import DeadLetterOrigin, letter_properties
from timerwheel.groups.parts import GroupParts, stored_offset
from timerwheel.model.admission import check_delay_ms
from timerwheel.state.groups import dead_topic, retry_topic
from timerwheel.store.record import Kind, crc_of, encode, encode_properties


class Retries:
    """See the module. Belongs to the event loop."""

    def __init__(self, parts: GroupParts) -> None:
        self._parts = parts

    async def send_back(
        self,
        topic: str,
        group: str,
        body: bytes,
        properties: Mapping[str, str],
        *,
        level: int = 0,
        delay_ms: int = 0,
    ) -> str:
        """Store a copy of a message of a group for another attempt; returns its id once it is durable.

        It is delivered to queue 0 of `%RETRY%group` after the delay of a level, or after `delay_ms` without
        one; levels above the highest mean the highest. Raises UnknownGroupError, GroupDiffersError,
        AdmissionError (delay_too_long, illegal_delay), NoSpaceError, NotReadyError, OutcomeUnknownError.
        """
        self._check(topic, group)
        if level < 0:
            raise AdmissionError("illegal_delay", f"level = {level}: a delay level cannot be negative")
        if level:
            level = self._parts.levels.clamp(level)
            delay_ms = self._parts.levels.delay_ms(level)
        else:
            check_delay_ms(delay_ms, self._parts.core.settings.max_delay_ms)
        return await self._store(retry_topic(group), body, properties, delay_ms, level)

    async def give_up(
        self,
        topic: str,
        group: str,
        body: bytes,
        properties: Mapping[str, str],
        origin: DeadLetterOrigin,
    ) -> str:
        """Store a copy of a message of a group as its dead letter; returns its id once it is durable.

        If it is redriven, `%RETRY%group` gets a copy with these properties. Raises what `send_back` does.
        """
        self._check(topic, group)
        return await self._store(dead_topic(group), body, letter_properties(properties, topic, origin))

    def _check(self, topic: str, group: str) -> None:
        self._parts.check_ready()
        if not self._parts.keeps_offsets(self._parts.state(topic, group)):
            raise leases_only(topic, group)

    async def _store(
        self, topic: str, body: bytes, properties: Mapping[str, str], delay_ms: int = 0, level: int = 0
    ) -> str:
        core = self._parts.core
        self._parts.topics.check_open([topic])
        now_ms = core.clock.now_ms()
        unit = [copy_record(topic, body, properties, now_ms, delay_ms, level)]
        dues_ms = [now_ms + delay_ms] if delay_ms else []
        offset = await stored_offset(core.commit.submit(unit, [topic], dues_ms=dues_ms))
        return core.ids.encode(offset, crc_of(unit[0]))


def copy_record(
    topic: str, body: bytes, properties: Mapping[str, str], now_ms: int, delay_ms: int = 0, level: int = 0
) -> bytes:
    """Encode a message for queue 0 of a topic of the service: a timer if it has a delay."""
    kind = Kind.TIMER if delay_ms else Kind.MESSAGE
    text = encode_properties(dict(properties)) if properties else b""
    times_ms = (now_ms, now_ms + delay_ms, now_ms)
    return encode(kind, topic.encode(), text, body, *times_ms, level=level if delay_ms else 0)
