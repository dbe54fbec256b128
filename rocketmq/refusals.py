"""Which response code an error of the engine becomes.

Clients try these again, elsewhere if they can: SYSTEM_ERROR, SYSTEM_BUSY, NOT_AVAILABLE, NO_PERMISSION,
TOPIC_NOT_EXIST.
"""

import logging

from timerwheel.errors import RefusedError, TimerwheelError
from timerwheel.rocketmq.codes import Result
from timerwheel.rocketmq.request import Answer, RefusalError
from timerwheel.store.errors import StoreError

logger = logging.getLogger(__name__)

_RESULTS = {
    "slot_congested": Result.SYSTEM_BUSY,
    "disk_reserve": Result.NOT_AVAILABLE,
    "no_space": Result.NOT_AVAILABLE,
    "not_ready": Result.NOT_AVAILABLE,
    "system_topic": Result.NO_PERMISSION,
    "transactional": Result.NO_PERMISSION,
    "too_many_topics": Result.SYSTEM_ERROR,
    "illegal_queue": Result.SYSTEM_ERROR,
    "reserved_key": Result.MESSAGE_ILLEGAL,
    "key_reused": Result.MESSAGE_ILLEGAL,
    "key_recalled": Result.MESSAGE_ILLEGAL,
    "illegal_delay": Result.MESSAGE_ILLEGAL,
    "delay_too_long": Result.MESSAGE_ILLEGAL,
    "reserved_property": Result.MESSAGE_ILLEGAL,
    "illegal_topic": Result.MESSAGE_ILLEGAL,
    "body_too_large": Result.MESSAGE_ILLEGAL,
    "too_many_properties": Result.MESSAGE_ILLEGAL,
    "properties_too_large": Result.MESSAGE_ILLEGAL,
    "illegal_property": Result.MESSAGE_ILLEGAL,
    "illegal_frame": Result.MESSAGE_ILLEGAL,
    "unknown_topic": Result.TOPIC_NOT_EXIST,
    "topic_ending": Result.TOPIC_NOT_EXIST,
    "unknown_queue": Result.SYSTEM_ERROR,
    "group_differs": Result.NO_PERMISSION,
    "illegal_group": Result.SYSTEM_ERROR,
    "unknown_group": Result.GROUP_NOT_EXIST,
    "group_not_found": Result.GROUP_NOT_EXIST,
    "illegal_checkpoint": Result.MESSAGE_ILLEGAL,
    "already_delivered": Result.ILLEGAL_OPERATION,
    "already_recalled": Result.ILLEGAL_OPERATION,
    "open_transaction": Result.ILLEGAL_OPERATION,
    "unknown_message": Result.ILLEGAL_OPERATION,
    "message_deleted": Result.ILLEGAL_OPERATION,
    "illegal_handle": Result.ILLEGAL_OPERATION,
}


def answer_of(error: BaseException) -> Answer:
    """Return the answer for an error; one that nobody expects is logged."""
    if isinstance(error, RefusalError):
        return Answer(error.result, remark=str(error))
    if isinstance(error, RefusedError):
        fault = error.faults[0]
        return refused(fault.code, fault.detail)
    if isinstance(error, (TimerwheelError, StoreError)):
        return refused(error.code, str(error))
    logger.error("a request failed", exc_info=error)
    return Answer(Result.SYSTEM_ERROR, remark="the service failed; its log says how")


def refused(code: str, detail: str) -> Answer:
    """Return the answer for a code of `timerwheel.errors`."""
    return Answer(_RESULTS.get(code, Result.SYSTEM_ERROR), remark=detail)
