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


async def take_pending(
    core: Core, messages: MessageReader, message_id: str, *, half: bool = False
) -> tuple[Current, Taken]:
    """Take a timer, or with `half` that of an open transaction.

    It is taken in the step of the loop in which it is known to be pending. Raises UnknownMessageError,
    AlreadyDeliveredError or AlreadyRecalledError, each of which is exact; OpenTransactionError or
    NoOpenTransactionError if it is the other one of the two.
    """
    core.life.check_ready()
    current = await messages.current(message_id)
    if current.state is State.DELIVERED:
        raise AlreadyDeliveredError(message_id)
    if current.state is State.RECALLED:
        raise AlreadyRecalledError(message_id)
    header = current.record.header
    if half != (header.due_ms == admission.HALF_DUE_MS):
        raise NoOpenTransactionError(message_id) if half else OpenTransactionError(message_id)
    topic = core.state.topic(current.record.topic).id
    timer = entry(
        due_ms=header.due_ms,
        root=current.root,
        offset=current.offset,
        size=header.size,
        topic=topic,
        queue=header.queue,
        delay_level=header.level,
    )
    return current, core.in_flight.take(timer)
