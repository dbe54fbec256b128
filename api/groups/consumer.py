"""A client that takes messages of a group over one HTTP request, for as long as it is there.

1. Nothing is leased for a client that is known to have gone, or while the service stops.
2. What was leased is given back at once if the answer cannot begin: its client went, or making it failed. The
   lease alone would bring it back later. `returning` sees to that, around all that comes before the answer.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from timerwheel.api.engine_handle import LOOK_UP_MS, EngineHandle
from timerwheel.api.http import budget
from timerwheel.api.http.route import Handler
from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import NO_TERMS, GroupTerms, UnknownGroupError
from timerwheel.model.messages import Delivery
from timerwheel.runtime.message_views import PAGE_BYTES_MAX
from timerwheel.runtime.shielded import finished
from timerwheel.state.config_table import ConfigTable
from timerwheel.state.groups import group_topic
from timerwheel.store.errors import StoreError
from timerwheel.wire.groups import GroupPath

logger = logging.getLogger(__name__)

GONE: Final = "its consumer disconnected"
UNANSWERED: Final = "it could not be sent to its consumer"


class Consumer:
    """The consumer behind one request. Belongs to the event loop."""

    def __init__(self, handle: EngineHandle, request: web.Request, place: GroupPath) -> None:
        self._handle = handle
        self._request = request
        self._place = place
        self._unanswered: Sequence[Delivery] = ()
        request[KEY] = self

    @property
    def gone(self) -> bool:
        """Whether the connection is closed or being closed."""
        transport = self._request.transport
        return transport is None or transport.is_closing()

    async def first(
        self, count_max: int, invisible_ms: int | None, wait_ms: int, terms: GroupTerms = NO_TERMS
    ) -> list[Delivery]:
        """Receive up to `count_max` messages; may create the group. Raises what `Groups.receive` does."""
        if self.gone:
            return []
        with self._request[budget.KEY].budgets.answers.taking() as bytes_max:
            found = await self._handle.engine.groups.receive(
                self._place.topic,
                self._place.group,
                terms,
                count_max=count_max,
                bytes_max=min(bytes_max, PAGE_BYTES_MAX),
                invisible_ms=invisible_ms,
                wait_ms=min(wait_ms, LOOK_UP_MS),
                wanted=lambda: not self.gone,
            )
        if found and self._handle.traces is not None and not self.gone:
            try:
                await self._handle.traces.leased(found, self._place.group)
            except (Exception, asyncio.CancelledError):
                await finished(self.give_back(found))
                raise
        # Last, since whatever waits before it gives the client time to go.
        if found and self.gone:
            await finished(self.give_back(found))
            return []
        return found

    async def more(self, count_max: int, invisible_ms: int | None, wait_ms: int) -> list[Delivery]:
        """Receive as `first` does, for an existing group; UnknownGroupError if it has been deleted."""
        self.check_group()
        return await self.first(count_max, invisible_ms, wait_ms)

    def check_group(self) -> None:
        """Raise UnknownGroupError if the group has been deleted."""
        place = self._place
        if self._handle.engine.control.get(ConfigTable.GROUP, group_topic(place.topic, place.group)) is None:
            raise UnknownGroupError(f"group {place.group!r} of topic {place.topic!r} was deleted")

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge these messages."""
        receipts = [delivery.receipt for delivery in deliveries]
        await self._handle.engine.groups.ack(self._place.topic, self._place.group, receipts)

    def will_answer(self, found: Sequence[Delivery]) -> None:
        """The answer to the request will be these messages: they go back if it cannot begin."""
        self._unanswered = found

    async def answered(self, failed: BaseException | None) -> None:
        """The answer is about to begin, unless it failed or the client is gone: then return its messages.

        That runs to its end even if the caller is cancelled.
        """
        found, self._unanswered = self._unanswered, ()
        if found and (failed is not None or self.gone):
            has_left = failed is None or isinstance(failed, asyncio.CancelledError)
            await finished(give_back(self._handle, self._place, found, GONE if has_left else UNANSWERED))

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Return messages that did not reach the client. If that fails, their leases expire."""
        await give_back(self._handle, self._place, deliveries)


KEY = web.RequestKey("consumer", Consumer)
"""The consumer of a request that leases messages."""


def returning(handler: Handler) -> Handler:
    """Call the handler of a receive, and return what it leased if its answer cannot begin.

    Once it begins, the client may read it, and the messages are its own until their leases end.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            response = await handler(request)
        except (Exception, asyncio.CancelledError) as error:
            if (consumer := request.get(KEY)) is not None:
                await consumer.answered(error)
            raise
        if (consumer := request.get(KEY)) is not None:
            await consumer.answered(None)
        return response

    return answer


async def give_back(
    handle: EngineHandle, place: GroupPath, deliveries: Sequence[Delivery], reason: str = GONE
) -> None:
    """Return messages that did not reach their client. If that fails, their leases expire."""
    receipts = [delivery.receipt for delivery in deliveries]
    try:
        await handle.engine.groups.nack(place.topic, place.group, receipts, delay_ms=0, reason=reason)
    except (TimerwheelError, StoreError) as error:
        logger.info(
            "cannot return %d messages that did not reach their consumer; they are redelivered when their "
            "leases expire: %s",
            len(receipts),
            error,
        )
