"""Bulk recall and reschedule: by id, or of all scheduled messages that match conditions."""

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from aiohttp import web
from msgspec import UNSET

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import DELAY, JSON, JSON_BODY, STORE, Need, call
from timerwheel.api.messages.delays import delay_property
from timerwheel.api.messages.while_connected import while_connected
from timerwheel.api.security import access
from timerwheel.api.security.access import Access
from timerwheel.errors import DeletedMessageError, UnknownMessageError
from timerwheel.model.admission import check_topic
from timerwheel.model.durations import parse_shift_ms
from timerwheel.runtime.bulk_changes import TimeOf, moved_to, shifted
from timerwheel.runtime.recall_filter import RecallFilter, RecallResult
from timerwheel.store.errors import CorruptionError
from timerwheel.wire.fields import given
from timerwheel.wire.recalls import (
    NewRecall,
    NewTimes,
    RecalledIds,
    RecalledWhere,
    RecallOutcome,
    RescheduledIds,
    RescheduledWhere,
    RescheduleOutcome,
)

CONDITIONS = ("illegal_filter", "illegal_topic", "system_topic", "too_many_messages")

_changes_many = partial(call, "POST", needs=Need.SEND, audited=True)


Wanted = TypeVar("Wanted", NewRecall, NewTimes)

ID_BYTES = 256  # an id, quotes, comma and white space
SPARE_BYTES = 1 << 20  # of conditions
SPARE_VALUES = 4096


class RecallCalls:
    """The handler of `/v1/messages/recall`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    @_changes_many(
        "/v1/messages/recall",
        "recallMessages",
        answer=(RecalledIds, RecalledWhere),
        bodies={JSON: NewRecall},
        problems=(*JSON_BODY, *STORE, *CONDITIONS),
    )
    async def recall(self, request: web.Request) -> web.Response:
        """Recall many scheduled messages: by id, or all that match conditions."""
        wanted = await self._wanted(request, NewRecall)
        if wanted.ids is UNSET:
            return responses.json(await self._by_condition(request, wanted))
        return responses.json(await self._by_id(wanted.ids, access.of(request)))

    @_changes_many(
        "/v1/messages/reschedule",
        "rescheduleMessages",
        answer=(RescheduledIds, RescheduledWhere),
        bodies={JSON: NewTimes},
        problems=(*JSON_BODY, *DELAY, "conflicting_delay", *STORE, *CONDITIONS),
    )
    async def reschedule(self, request: web.Request) -> web.Response:
        """Reschedule many scheduled messages: by id, or all that match conditions."""
        wanted = await self._wanted(request, NewTimes)
        time_of = self._time_of(wanted)
        if wanted.ids is UNSET:
            return responses.json(await self._reschedule_where(request, wanted, time_of))
        return responses.json(await self._reschedule_ids(wanted.ids, time_of, access.of(request)))

    async def _wanted(self, request: web.Request, kind: type[Wanted]) -> Wanted:
        count_max = self._handle.settings.messages_per_request_max
        body = await bodies.read_one(request, count_max * ID_BYTES + SPARE_BYTES)
        try:
            wanted = await bodies.decode(body, kind, count_max + SPARE_VALUES)
        except RequestError as error:
            if error.code != "too_many_values":
                raise
            detail = f"more than messages_per_request_max = {count_max} ids"
            raise RequestError("too_many_messages", detail) from None
        if wanted.ids is not UNSET and _has_conditions(wanted):
            raise RequestError("invalid_field", "give either ids or conditions, not both")
        return wanted

    def _time_of(self, wanted: NewTimes) -> TimeOf:
        """Return the new time of each message; raises `RequestError` and `AdmissionError`."""
        when, engine = delay_property(wanted, {}), self._handle.engine
        given = [one for one in (when, wanted.shift_ms, wanted.shift) if one is not None and one is not UNSET]
        if len(given) > 1:
            raise RequestError("conflicting_delay", "give only one of the delay fields, shift_ms and shift")
        if not given:
            raise RequestError("invalid_field", "give a delay field, shift_ms or shift")
        engine.sender.check_accepting()
        if when is not None:
            time_of = moved_to(dict([when]), engine.sender.rules)
            time_of(0, engine.clock.now_ms())  # refuses a time that no message may have
            return time_of
        shift_ms = wanted.shift_ms
        if wanted.shift is not UNSET:
            shift_ms = parse_shift_ms(wanted.shift)
        assert shift_ms is not UNSET
        return shifted(shift_ms)

    async def _reschedule_ids(self, ids: Sequence[str], time_of: TimeOf, caller: Access) -> RescheduledIds:
        closed = await self._closed(ids, caller)
        open_ids = [one for one in ids if one not in closed]
        results = await self._handle.engine.bulk_recalls.reschedule_many(open_ids, time_of)
        found = {one.id: one for one in results}
        outcomes = [
            RescheduleOutcome(one, ok=False, code="forbidden")
            if one in closed
            else RescheduleOutcome(one, found[one].code is None, found[one].code, found[one].due_ms)
            for one in ids
        ]
        return RescheduledIds(outcomes, len({outcome.id for outcome in outcomes if outcome.ok}))

    async def _reschedule_where(
        self, request: web.Request, wanted: NewTimes, time_of: TimeOf
    ) -> RescheduledWhere:
        condition, dry_run = _condition(wanted, access.of(request)), wanted.dry_run is True
        work = self._handle.engine.bulk_recalls.reschedule_where(condition, time_of, dry_run=dry_run)
        count = await while_connected(request, self._handle, work)
        return RescheduledWhere(count.matched, count.rescheduled, count.missed, count.refused, dry_run)

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
        condition, dry_run = _condition(wanted, access.of(request)), wanted.dry_run is True
        recall = self._handle.engine.bulk_recalls.recall_where(condition, dry_run=dry_run)
        count = await while_connected(request, self._handle, recall)
        return RecalledWhere(count.matched, count.recalled, count.missed, dry_run)


def _outcome(result: RecallResult) -> RecallOutcome:
    return RecallOutcome(result.id, result.code is None, result.code)


def _has_conditions(wanted: NewRecall | NewTimes) -> bool:
    names = ("topic", "tags", "key_prefix", "due_from_ms", "due_to_ms", "reserved", "dry_run")
    return any(getattr(wanted, name) is not UNSET for name in names)


def _condition(wanted: NewRecall | NewTimes, caller: Access) -> RecallFilter:
    """Return the conditions of a call; raises `RequestError`, `AdmissionError`, or that it is forbidden."""
    if wanted.topic is not UNSET:
        check_topic(wanted.topic, is_known=True)
    due_from_ms, due_to_ms = given(wanted.due_from_ms), given(wanted.due_to_ms)
    if due_from_ms is not None and due_to_ms is not None and due_from_ms > due_to_ms:
        raise RequestError("invalid_field", "due_from_ms is after due_to_ms")
    if wanted.topic is UNSET:
        caller.check_all_topics("give a topic")
    else:
        caller.check([wanted.topic])
    return RecallFilter(
        topic=given(wanted.topic),
        tag=given(wanted.tags),
        key_prefix=given(wanted.key_prefix),
        due_from_ms=due_from_ms,
        due_to_ms=due_to_ms,
        reserved=wanted.reserved is True,
    )
