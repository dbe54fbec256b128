"""Bulk recall: by id, or of all waiting messages that match conditions."""

from collections.abc import Sequence

import msgspec
from aiohttp import web
from msgspec import UNSET

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, query, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.messages.while_connected import while_connected
from timerwheel.api.security import access
from timerwheel.api.security.access import Access
from timerwheel.errors import DeletedMessageError, UnknownMessageError
from timerwheel.model.admission import check_topic
from timerwheel.runtime.recall_filter import RecallFilter, RecallResult
from timerwheel.store.errors import CorruptionError
from timerwheel.wire.fields import NoQuery
from timerwheel.wire.recalls import NewRecall, RecalledIds, RecalledWhere, RecallOutcome

ID_BYTES = 256  # an id, quotes, comma and white space
SPARE_BYTES = 1 << 20  # of conditions
SPARE_VALUES = 4096


class RecallCalls:
    """The handler of `/v1/messages/recall`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    async def recall(self, request: web.Request) -> web.Response:
        """POST /v1/messages/recall: recalls each given id, or all waiting messages that match conditions."""
        query.read(request, NoQuery)
        count_max = self._handle.settings.messages_per_request_max
        body = await bodies.read_one(request, count_max * ID_BYTES + SPARE_BYTES)
        try:
            wanted = await bodies.decode(body, NewRecall, count_max + SPARE_VALUES)
        except RequestError as error:
            if error.code != "too_many_values":
                raise
            detail = f"more than messages_per_request_max = {count_max} ids"
            raise RequestError("too_many_messages", detail) from None
        if wanted.ids is UNSET:
            return responses.json(await self._by_condition(request, wanted))
        conditions = msgspec.structs.replace(wanted, ids=UNSET)
        if conditions != NewRecall():
            raise RequestError("invalid_field", "give either ids or conditions, not both")
        return responses.json(await self._by_id(wanted.ids, access.of(request)))

    async def _by_id(self, ids: Sequence[str], caller: Access) -> RecalledIds:
        closed = await self._closed(ids, caller)
        results = await self._handle.engine.bulk_recalls.recall_many(
            [one for one in ids if one not in closed]
        )
        recalled = iter(results)
        outcomes = [
            RecallOutcome(one, False, "forbidden") if one in closed else _outcome(next(recalled))  # noqa: FBT003
            for one in ids
        ]
        return RecalledIds(outcomes, sum(outcome.ok for outcome in outcomes))

    async def _closed(self, ids: Sequence[str], caller: Access) -> frozenset[str]:
        """Return the ids of messages whose topics the caller has no access to; unknown ids are left out."""
        if caller.has_all_topics:
            return frozenset()
        count_max = self._handle.settings.messages_per_request_max
        if len(ids) > count_max:
            raise RequestError("too_many_messages", f"more than messages_per_request_max = {count_max} ids")
        closed = set()
        for one in dict.fromkeys(ids):
            try:
                topic = (await self._handle.engine.messages.current(one)).record.topic
            except DeletedMessageError as error:
                topic = error.topic
            except UnknownMessageError:
                continue
            except CorruptionError:
                closed.add(one)  # what its topic is cannot be trusted
                continue
            if not caller.may(topic):
                closed.add(one)
        return frozenset(closed)

    async def _by_condition(self, request: web.Request, wanted: NewRecall) -> RecalledWhere:
        _check(wanted)
        caller = access.of(request)
        if wanted.topic is UNSET:
            caller.check_all_topics("give a topic")
        else:
            caller.check([wanted.topic])
        condition = RecallFilter(
            topic=None if wanted.topic is UNSET else wanted.topic,
            tag=None if wanted.tags is UNSET else wanted.tags,
            key_prefix=None if wanted.key_prefix is UNSET else wanted.key_prefix,
            due_from_ms=None if wanted.due_from_ms is UNSET else wanted.due_from_ms,
            due_to_ms=None if wanted.due_to_ms is UNSET else wanted.due_to_ms,
        )
        dry_run = wanted.dry_run is True
        recall = self._handle.engine.bulk_recalls.recall_where(condition, dry_run=dry_run)
        count = await while_connected(request, self._handle, recall)
        return RecalledWhere(count.matched, count.recalled, count.missed, dry_run)


def _outcome(result: RecallResult) -> RecallOutcome:
    return RecallOutcome(result.id, result.code is None, result.code)


def _check(wanted: NewRecall) -> None:
    """Refuse conditions that nothing can match; raises `RequestError`, `AdmissionError`."""
    if wanted.topic is not UNSET:
        check_topic(wanted.topic, is_known=True)
    if wanted.due_from_ms is UNSET or wanted.due_to_ms is UNSET:
        return
    if wanted.due_from_ms > wanted.due_to_ms:
        raise RequestError("invalid_field", "due_from_ms is after due_to_ms")
