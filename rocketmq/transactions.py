"""Transactions: producers end them, and are asked for those that stay open.

    a send with TRAN_MSG = true    begins one (`timerwheel.rocketmq.sends`)
    an end                         a producer commits it or rolls it back, and names its log offset
    a check                        a producer of its group is asked, and answers with an end

1. An end counts at the offset of an open half message. The engine knows those offsets in memory: nothing is
   read at an offset because a client names it. The producer group must be that of the half message, and the
   caller must have access to its topic.
2. Each transaction ends once, and a further end changes nothing. An end that fails is asked for again.
3. A check goes to one connection of the producer group, to another one each time. While none is connected,
   checks do not count: a group that comes back is asked before its transactions are rolled back.
"""

from typing import NoReturn

import orjson

from timerwheel.engine import Engine
from timerwheel.rocketmq.codes import SYS_COMMIT, SYS_ROLLBACK, Call, Result
from timerwheel.rocketmq.message_ids import offset_id
from timerwheel.rocketmq.name_server import NameServer
from timerwheel.rocketmq.producers import Producers
from timerwheel.rocketmq.request import Answer, RefusalError, Request
from timerwheel.rocketmq.translation import PRODUCER_GROUP, UNIQ_KEY, stored_form
from timerwheel.runtime.message_reader import Current
from timerwheel.tokens import Scope

CHECKS_PROPERTY = "TRANSACTION_CHECK_TIMES"
_UNDECIDED = 0


class Transactions:
    """See the module. Event loop only."""

    def __init__(self, engine: Engine, name_server: NameServer, producers: Producers) -> None:
        self._engine = engine
        self._name_server = name_server
        self._producers = producers
        engine.transactions.on_check.append(self.check)

    async def end(self, request: Request) -> Answer:
        """A producer commits a transaction or rolls it back, or does not know yet."""
        request.must_have(Scope.SEND)
        how = request.number("commitOrRollback")
        if how == _UNDECIDED:
            return Answer()
        if how not in {SYS_COMMIT, SYS_ROLLBACK}:
            detail = f"commitOrRollback = {how}: give {SYS_COMMIT}, {SYS_ROLLBACK} or {_UNDECIDED}"
            raise RefusalError(Result.SYSTEM_ERROR, detail)
        log_offset, group = request.number("commitLogOffset"), request.text("producerGroup")
        found = self._engine.transactions.open_at(log_offset)
        if found is None or not request.caller.may(found.topic):
            _refuse(group, log_offset)
        properties = (await self._engine.messages.get(found.id)).properties
        named = request.text("transactionId", "")
        is_other = bool(named) and properties.get(UNIQ_KEY, named) != named
        if properties.get(PRODUCER_GROUP) != group or is_other:
            _refuse(group, log_offset)
        if how == SYS_COMMIT:
            await self._engine.transactions.commit(found.id)
        else:
            await self._engine.transactions.rollback(found.id)
        return Answer()

    def check(self, current: Current, number: int) -> bool:
        """Ask a producer of the group of an open transaction; returns False if none can be asked now."""
        record, root = current.record, current.root
        properties: dict[str, str] = orjson.loads(record.properties)
        group = properties.get(PRODUCER_GROUP)
        if group is None:  # begun by another protocol
            return True
        producer = self._producers.next(group, record.topic)
        if producer is None:
            return False
        host = self._name_server.address_at(producer.link)
        key = properties.get(UNIQ_KEY, current.message_id)
        fields = {
            "topic": record.topic,
            "tranStateTableOffset": "0",
            "commitLogOffset": str(root),
            "msgId": key,
            "transactionId": key,
            "offsetMsgId": offset_id(host, root),
        }
        more = {CHECKS_PROPERTY: str(number)}
        body = stored_form(record, root, 0, current.message_id, host, more)
        producer.link.notify(Call.CHECK_TRANSACTION, fields, body)
        return True


def _refuse(group: str, log_offset: int) -> NoReturn:
    detail = (
        f"no open transaction of producer group {group[:255]!r} that you may end is at offset {log_offset}"
    )
    raise RefusalError(Result.SYSTEM_ERROR, detail)
