"""Takes the timer of one message out of firing's reach, to end or replace it."""

from timerwheel.errors import (
    AlreadyDeliveredError,
    AlreadyRecalledError,
    NoOpenTransactionError,
    OpenTransactionError,
)
from timerwheel.model import admission
from timerwheel.model.messages import State
from timerwheel.runtime.core import Core
from timerwheel.runtime.in_flight import Taken, entry
from timerwheel.runtime.message_reader import Current, MessageReader


class PendingTimers:
    """The pending timers by the ids of their messages. Belongs to the event loop."""

    def __init__(self, core: Core, messages: MessageReader) -> None:
        self._core = core
        self._messages = messages

    async def take(self, message_id: str, *, half: bool = False) -> tuple[Current, Taken]:
        """Take a timer, or with `half` that of an open transaction.

        It is taken in the step of the loop in which it is known to be pending. Raises UnknownMessageError,
        AlreadyDeliveredError or AlreadyRecalledError, each of which is exact; OpenTransactionError or
        NoOpenTransactionError if it is the other one of the two.
        """
        self._core.life.check_ready()
        current = await self._messages.current(message_id)
        if current.state is State.DELIVERED:
            raise AlreadyDeliveredError(message_id)
        if current.state is State.RECALLED:
            raise AlreadyRecalledError(message_id)
        header = current.record.header
        if half != (header.due_ms == admission.HALF_DUE_MS):
            raise NoOpenTransactionError(message_id) if half else OpenTransactionError(message_id)
        topic = self._core.state.topic(current.record.topic).id
        timer = entry(
            due_ms=header.due_ms,
            root=current.root,
            offset=current.offset,
            size=header.size,
            topic=topic,
            queue=header.queue,
            delay_level=header.level,
        )
        return current, self._core.in_flight.take(timer)
