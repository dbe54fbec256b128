"""Retries: a message that a consumer could not process comes back to its group, or becomes a dead letter.

The copy goes to the topic `%RETRY%group` with a delay level, 3 + the number of earlier tries unless the
consumer names one. After the last try, or when the consumer gives up, it goes to `%DLQ%group`, with the dead
letters of HTTP groups. A copy keeps UNIQ_KEY, and names its origin in RETRY_TOPIC and ORIGIN_MESSAGE_ID.

What an orderly group sends back while it holds locks has been tried to the end, and becomes a dead letter.
"""

from typing import Final

import orjson

from timerwheel.engine import Engine
from timerwheel.groups.config import FIRST_RETRY_LEVEL, check_group
from timerwheel.groups.dead_letter_properties import DeadLetterOrigin
from timerwheel.model.admission import ENVELOPE_PROPERTY, RETRY_PREFIX, check_copy
from timerwheel.model.ids import root_of
from timerwheel.rocketmq.codes import Result
from timerwheel.rocketmq.locks import Locks
from timerwheel.rocketmq.lookups import Lookups
from timerwheel.rocketmq.message_ids import offset_id
from timerwheel.rocketmq.name_server import NameServer
from timerwheel.rocketmq.offsets import Offsets
from timerwheel.rocketmq.request import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    Answer,
    RefusalError,
    Request,
    number_of,
)
from timerwheel.rocketmq.topics import RETRY_ORIGIN
from timerwheel.rocketmq.translation import HIDDEN, UNIQ_KEY, Envelope, envelope_of
from timerwheel.tokens import Scope

TRIES_MAX: Final = 16
"""Tries of a message after the first, unless the consumer says another number."""
RETRY_TOPIC = RETRY_ORIGIN
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"


class Retries:
    """See the module. Event loop only."""

    def __init__(
        self, engine: Engine, lookups: Lookups, name_server: NameServer, offsets: Offsets, locks: Locks
    ) -> None:
        self._engine = engine
        self._lookups = lookups
        self._name_server = name_server
        self._offsets = offsets
        self._locks = locks

    async def send_back(self, request: Request) -> Answer:
        """A consumer returns a message that it has read."""
        group = request.group("group")
        level = request.number("delayLevel", 0, low=INT32_MIN, high=INT32_MAX)
        tries_max = request.number("maxReconsumeTimes", TRIES_MAX, low=INT32_MIN, high=INT32_MAX)
        found = await self._lookups.find(request, request.number("offset"))
        if not found.is_delivered:
            raise RefusalError(Result.SYSTEM_ERROR, "a scheduled message cannot be sent back")
        record = found.record
        request.hold(len(record.body))
        properties: dict[str, str] = orjson.loads(record.properties) if record.properties else {}
        envelope = envelope_of(record.header, properties)
        envelope = envelope._replace(first_id=envelope.first_id or found.message_id)
        is_retry = record.topic.startswith(RETRY_PREFIX) and RETRY_TOPIC in properties
        if not is_retry:  # whatever its sender has written there
            host = self._name_server.address(request)
            properties |= {RETRY_TOPIC: record.topic, ORIGIN_MESSAGE_ID: offset_id(host, found.log_offset)}
        request.must_have(Scope.RECEIVE, properties[RETRY_TOPIC])
        properties.setdefault(UNIQ_KEY, found.message_id)
        tries = envelope.consumed_before
        if level < 0 or tries >= (TRIES_MAX if tries_max < 0 else tries_max):
            await self._give_up(group, record.body, properties, envelope, tries + 1)
        else:
            again = envelope._replace(consumed_before=tries + 1)
            await self._retry(group, record.body, properties, again, level or FIRST_RETRY_LEVEL + tries)
        return Answer()

    async def resend(
        self, request: Request, topic: str, body: bytes, properties: dict[str, str], envelope: Envelope
    ) -> Answer:
        """A consumer sends a message to its retry topic itself, because returning it has failed."""
        origin = properties.get(RETRY_TOPIC)
        if not origin:
            raise RefusalError(
                Result.NO_PERMISSION,
                f"only consumers can send to {topic!r}, to return a message that they have read",
            )
        request.must_have(Scope.RECEIVE, origin)
        check_copy(body, properties, self._engine.sender.rules)
        group = check_group(topic.removeprefix(RETRY_PREFIX))
        name = "l" if "l" in request.frame.fields else "maxReconsumeTimes"
        tries_max = request.number(name, TRIES_MAX, low=INT32_MIN, high=INT32_MAX)
        tries = envelope.consumed_before
        if tries > (TRIES_MAX if tries_max < 0 else tries_max) or self._locks.is_held(group, origin):
            message_id = await self._give_up(group, body, properties, envelope, max(tries, 1))
        else:
            level = number_of("DELAY", properties.pop("DELAY", str(FIRST_RETRY_LEVEL + tries)), 0, INT64_MAX)
            message_id = await self._retry(group, body, properties, envelope, level)
        place = offset_id(self._name_server.address(request), root_of(message_id))
        return Answer(fields={"msgId": place, "queueId": "0", "queueOffset": "0"})

    async def _retry(
        self, group: str, body: bytes, properties: dict[str, str], envelope: Envelope, level: int
    ) -> str:
        """Store a copy in the retry topic; returns its id."""
        topic = properties[RETRY_TOPIC]
        await self._offsets.make(topic, group)
        kept = _copied(properties, envelope)
        return await self._engine.groups.retries.send_back(topic, group, body, kept, level=level)

    async def _give_up(
        self, group: str, body: bytes, properties: dict[str, str], envelope: Envelope, tries: int
    ) -> str:
        """Store a dead letter after so many tries; returns its id. Redriven, it has all its tries again."""
        topic = properties[RETRY_TOPIC]
        await self._offsets.make(topic, group)
        first_id = envelope.first_id or properties.get(UNIQ_KEY, "")
        origin = DeadLetterOrigin(first_id, f"consumed {tries} times without success", tries)
        kept = _copied(properties, envelope._replace(consumed_before=0))
        return await self._engine.groups.retries.give_up(topic, group, body, kept, origin)


def _copied(properties: dict[str, str], envelope: Envelope) -> dict[str, str]:
    kept = {name: value for name, value in properties.items() if name not in HIDDEN and name != "DELAY"}
    return kept | {ENVELOPE_PROPERTY: envelope.encode()}
