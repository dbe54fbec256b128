"""The calls of the gRPC protocol, on the parts of the engine that serve HTTP too.

1. A failure is an answer with a code in `status`; the call itself succeeds. Only a Telemetry stream, and
   bytes that are not a message, end with an error of gRPC.
2. Nothing is leased for a client that has gone, or while the service stops. What was leased and not written
   to the client is taken back at once.
3. Sends in progress have at most half of `in_progress_bytes_max`, and the messages of receives about as much.
   One receive has at most `RECEIVE_BYTES_MAX`, and is ended if its client does not read for `SLOW_READER_MS`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

from timerwheel.engine import Engine
from timerwheel.errors import (
    AlreadyDeliveredError,
    AlreadyRecalledError,
    NoOpenTransactionError,
    NotReadyError,
    UnknownMessageError,
)
from timerwheel.groups.config import INVISIBLE_MS_MAX, NO_TERMS, Exponential, GroupTerms
from timerwheel.model.admission import check_topic
from timerwheel.model.messages import Delivery, ReceiptResult
from timerwheel.model.tags import TagFilter
from timerwheel.rocketmq.grpc import settings as client_settings
from timerwheel.rocketmq.grpc.call import SLOW_READER_MS, Call
from timerwheel.rocketmq.grpc.clients import LEASE_MS, Client, Clients
from timerwheel.rocketmq.grpc.codes import (
    CODE_NAMES,
    CallError,
    ClientType,
    Code,
    FilterType,
    MessageType,
    Permission,
    TransactionResolution,
    code_of,
    status_of,
)
from timerwheel.rocketmq.grpc.messages import name_of, set_ms, shown, to_ms
from timerwheel.rocketmq.grpc.producers import Producers, Stream
from timerwheel.rocketmq.grpc.schema import message_class
from timerwheel.rocketmq.grpc.sends import MESSAGES_MAX, Sends
from timerwheel.rocketmq.grpc.settings import BATCH_MAX, LONG_POLLING_MS
from timerwheel.rocketmq.message_ids import RecallHandle
from timerwheel.rocketmq.name_server import BROKER
from timerwheel.rocketmq.pops import Place
from timerwheel.rocketmq.request import Callers
from timerwheel.rocketmq.stored_message import Host
from timerwheel.tokens import Scope

INVISIBLE_MS_MIN: Final = 10_000
RECEIVES_MAX: Final = 10_000
"""Most receives that wait or are written at a time."""
STREAMS_MAX: Final = 10_000
"""Most Telemetry streams at a time."""
RECEIVE_REQUEST_BYTES_MAX: Final = 16 << 10
RECEIVE_BYTES_MAX: Final = 4 << 20
RECEIVE_BYTES_MIN: Final = 64 << 10
LOOK_UP_MS: Final = 10_000
"""How often a receive that waits checks its token, besides when there may be a message for it."""
MARGIN_MS: Final = 300
"""How long before its client's deadline a receive is answered."""
ACCEPTED_TYPES: Final = (
    MessageType.NORMAL,
    MessageType.FIFO,
    MessageType.DELAY,
    MessageType.TRANSACTION,
)

Answer = Any  # a message of the protocol; these classes are made at run time
_Response = message_class("ReceiveMessageResponse")
_Command = message_class("TelemetryCommand")


class Service:
    """See the module. Event loop only."""

    def __init__(self, engine: Engine, callers: Callers, address: Host, *, is_exact: bool = False) -> None:
        self._engine = engine
        self._callers = callers
        self._clock = engine.clock
        self._store_host = f"{address.address}:{address.port}"
        self.clients = Clients(engine)
        self.stopping = asyncio.Event()
        self._receives = 0
        self._waiting: set[asyncio.Task[list[Delivery]]] = set()
        self._receives_bytes = 0
        self._bytes_max = engine.settings.in_progress_bytes_max // 2
        self._streams = 0
        self.producers = Producers(engine, self._store_host, self._bytes_max)
        engine.transactions.on_check.append(self.producers.ask)
        self.unary: dict[str, Callable[[Call, Any, Answer], Awaitable[None]]] = {
            "QueryRoute": self.query_route,
            "QueryAssignment": self.query_assignment,
            "Heartbeat": self.heartbeat,
            "NotifyClientTermination": self.notify_client_termination,
            "SendMessage": Sends(engine, self.producers, self._bytes_max, is_exact=is_exact).send,
            "EndTransaction": self.end_transaction,
            "RecallMessage": self.recall_message,
            "AckMessage": self.ack_message,
            "ChangeInvisibleDuration": self.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": self.forward_message_to_dead_letter_queue,
        }

    def stop(self) -> None:
        """End streams and receives that wait, and refuse further calls."""
        if not self.stopping.is_set():
            self.stopping.set()
            for waiting in self._waiting:
                waiting.cancel()
            self._engine.transactions.on_check.remove(self.producers.ask)

    def call(self, context: Any) -> Call:
        """Return the call of this context; NotReadyError while the service stops."""
        if self.stopping.is_set():
            raise NotReadyError("the service is stopping")
        return Call(context, self._callers)

    async def request(self, call: Call, requests: Any) -> Any:
        """Return the one request of a call; CallError for bytes that are none, or without a valid token.

        Without a token nothing is read: gRPC takes what comes of a request into memory once it is asked for.
        """
        call.caller(counted=False)
        async for request in requests:
            return _sound(request)
        raise CallError(Code.BAD_REQUEST, "the call has no request")

    async def assure_lead(self) -> None:
        """Return if no other process leads; NotReadyError if that is not certain."""
        await self._engine.lead.assure()

    def count(self, call: str, code: int) -> None:
        """Count a call that was answered with this code."""
        self._engine.counters.front_calls["grpc", call, CODE_NAMES[code]] += 1

    # ------------------------------------------------------------------ routes and clients

    async def query_route(self, call: Call, request: Any, answer: Answer) -> None:
        """QueryRoute: every legal topic has a route, to the address that the client used."""
        call.caller()
        check_topic(name_of(request.topic))
        self._set_queue(answer.message_queues.add(), request, 0)

    async def query_assignment(self, call: Call, request: Any, answer: Answer) -> None:
        """QueryAssignment: every consumer gets all queues, because a receive takes from any of them."""
        call.caller_for(Scope.RECEIVE, name_of(request.topic))
        check_topic(name_of(request.topic))
        self._set_queue(answer.assignments.add().message_queue, request, -1)

    def _set_queue(self, queue: Any, request: Any, number: int) -> None:
        queue.topic.CopyFrom(request.topic)
        queue.id = number
        queue.permission = Permission.READ_WRITE
        queue.accept_message_types.extend(ACCEPTED_TYPES)
        queue.broker.name = BROKER
        queue.broker.endpoints.CopyFrom(request.endpoints)

    async def heartbeat(self, call: Call, request: Any, _answer: Answer) -> None:
        """Heartbeat: the client is there."""
        call.caller()
        client = self.clients.heard(call.client)
        if request.client_type:
            client.type = request.client_type

    async def notify_client_termination(self, call: Call, _request: Any, _answer: Answer) -> None:
        """NotifyClientTermination: the client leaves."""
        call.caller()
        await self.clients.left(call.client)

    async def telemetry(self, _: Any, context: Any) -> None:
        """Telemetry: settings come and are answered, and checks of transactions go out.

        It goes on until the client or the service ends the stream.
        """
        call = self.call(context)
        call.caller(counted=False)  # first: who has no token takes nobody's place
        if self._streams >= STREAMS_MAX:
            raise CallError(Code.TOO_MANY_REQUESTS, f"more than {STREAMS_MAX} Telemetry streams")
        stream = Stream(call, self._engine)
        self._streams += 1
        stopping = asyncio.create_task(self.stopping.wait())
        asking = asyncio.create_task(self.producers.write_checks(stream))
        try:
            while await self._obey(stream, stopping, asking):
                pass
        finally:
            self._streams -= 1
            self.producers.ended(stream)
            stopping.cancel()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _obey(self, stream: Stream, stopping: asyncio.Task[Any], asking: asyncio.Task[None]) -> bool:
        """Do what the next command says, and keep nothing of it; returns False when the stream ends."""
        command = await self._read(stream.call.context, stopping, asking)
        if command is None:
            return False
        stream.call.caller(counted=False)
        if command.WhichOneof("command") == "settings":
            await stream.write(self._settled(stream, command.settings))
        return True

    async def _read(self, context: Any, stopping: asyncio.Task[Any], asking: asyncio.Task[None]) -> Any:
        """Return the next command, or None when the stream ends; raises why checks cannot be written."""
        reading = asyncio.ensure_future(context.read())
        try:
            await asyncio.wait({reading, stopping, asking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not reading.done():
                reading.cancel()
        if asking.done():
            asking.result()
        if not reading.done() or reading.cancelled():
            return None  # the service stops
        command = _sound(reading.result())
        return command if isinstance(command, _Command) else None  # gRPC's end of the stream

    def _settled(self, stream: Stream, given: Any) -> Answer:
        client = self.clients.heard(stream.call.client)
        client.type, client.language = given.client_type, given.user_agent.language
        if given.WhichOneof("pub_sub") == "publishing":
            self.producers.publishes(stream, given.publishing.topics)
        if given.WhichOneof("pub_sub") == "subscription" and given.subscription.HasField(
            "long_polling_timeout"
        ):
            client.long_polling_ms = to_ms(given.subscription.long_polling_timeout)
        return client_settings.answer(self._engine, given, *client_settings.consumer_of(given))

    # ------------------------------------------------------------------ transactions and recalls

    async def end_transaction(self, call: Call, request: Any, _answer: Answer) -> None:
        """EndTransaction: commits or rolls back; an end that repeats the first one changes nothing."""
        topic, transaction_id = name_of(request.topic), request.transaction_id
        call.caller_for(Scope.SEND, topic)
        resolution = request.resolution
        if resolution not in (TransactionResolution.COMMIT, TransactionResolution.ROLLBACK):
            raise CallError(Code.BAD_REQUEST, f"resolution = {resolution}: give COMMIT or ROLLBACK")
        if not await self._is_of(topic, transaction_id):
            detail = f"no transaction {transaction_id[:40]!r} of topic {topic[:127]!r} is known"
            raise CallError(Code.INVALID_TRANSACTION_ID, detail)
        is_commit = resolution == TransactionResolution.COMMIT
        transactions = self._engine.transactions
        try:
            if is_commit:
                await transactions.commit(transaction_id)
            else:
                await transactions.rollback(transaction_id)
        except (AlreadyDeliveredError, NoOpenTransactionError):
            if not is_commit:
                raise
        except AlreadyRecalledError:
            if is_commit:
                raise

    async def _is_of(self, topic: str, message_id: str) -> bool:
        try:
            return (await self._engine.messages.current(message_id)).record.topic == topic
        except UnknownMessageError:
            return False

    async def recall_message(self, call: Call, request: Any, answer: Answer) -> None:
        """RecallMessage: ends a scheduled message; one that was delivered or recalled is refused."""
        topic = name_of(request.topic)
        call.caller_for(Scope.SEND, topic)
        handle = RecallHandle.decode(request.recall_handle)
        current = await self._engine.messages.current(handle.message_id)
        if not topic == handle.topic == current.record.topic:
            raise CallError(
                Code.BAD_REQUEST, f"the recall handle is not that of a message of topic {topic[:127]!r}"
            )
        await self._engine.recalls.recall(handle.message_id)
        answer.message_id = handle.uniq_key

    # ------------------------------------------------------------------ receives

    async def receive_message(self, requests: Any, context: Any) -> None:
        """ReceiveMessage: a status, the messages, and when they were sent out; waits for the first."""
        self._receives += 1
        try:
            call = self.call(context)
            await self._receive(call, await self.request(call, requests))
            self.count("ReceiveMessage", Code.OK)
        except Exception as error:  # noqa: BLE001 - whatever it is becomes an answer
            if context.done():
                return  # the client has gone
            answer = _Response()
            answer.status.code, answer.status.message = status_of(error)
            self.count("ReceiveMessage", answer.status.code)
            await context.write(answer)
        finally:
            self._receives -= 1

    async def _receive(self, call: Call, request: Any) -> None:
        if self._receives > RECEIVES_MAX:
            raise CallError(Code.TOO_MANY_REQUESTS, f"more than {RECEIVES_MAX} receives in progress")
        if (size_bytes := request.ByteSize()) > RECEIVE_REQUEST_BYTES_MAX:  # it is kept while it waits
            detail = f"the request has {size_bytes} bytes; at most {RECEIVE_REQUEST_BYTES_MAX} are allowed"
            raise CallError(Code.PAYLOAD_TOO_LARGE, detail)
        place = Place(name_of(request.message_queue.topic), name_of(request.group))
        call.caller_for(Scope.RECEIVE, place.topic)
        client = self.clients.heard(call.client)
        if request.batch_size < 1:
            raise CallError(Code.BAD_REQUEST, f"batch_size = {request.batch_size}: must be 1 or more")
        invisible_ms = _invisible_ms(request)
        terms = GroupTerms(_tags(request.filter_expression), create=True, backoff=Exponential(initial_ms=0))
        end_ms = self._clock.monotonic_ms() + _wait_ms(request, client, call.context.time_remaining())
        while True:
            bytes_max = max((self._bytes_max - self._receives_bytes) // 8, RECEIVE_BYTES_MIN)
            left_ms = max(end_ms - self._clock.monotonic_ms(), 0)
            receiving = self._engine.groups.receive(
                *place,
                terms,
                count_max=min(request.batch_size, BATCH_MAX),
                bytes_max=min(bytes_max, RECEIVE_BYTES_MAX),
                invisible_ms=invisible_ms,
                wait_ms=min(left_ms, LOOK_UP_MS),
                wanted=partial(self._is_wanted, call, place.topic),
            )
            found = await self._wait_for(receiving, place)
            if found or left_ms <= LOOK_UP_MS or call.context.done() or self.stopping.is_set():
                break
            terms = NO_TERMS
            call.caller_for(Scope.RECEIVE, place.topic, counted=False)
        if not found:
            raise CallError(Code.MESSAGE_NOT_FOUND, "no message")
        written = await self._deliver(call.context, request, place, found, invisible_ms)
        if request.auto_renew:
            self.clients.renew(client, place, written)

    def _is_wanted(self, call: Call, topic: str) -> bool:
        """Whether messages may be leased for a client; CallError if its token has ended."""
        if call.context.done() or self.stopping.is_set():
            return False
        call.caller_for(Scope.RECEIVE, topic, counted=False)
        return True

    async def _wait_for(self, receiving: Coroutine[Any, Any, list[Delivery]], place: Place) -> list[Delivery]:
        """Return the messages of a receive; none if the service stops while it waits."""
        task = asyncio.create_task(receiving)
        self._waiting.add(task)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:  # the client has gone
            if not task.cancel() and task.exception() is None:
                self._engine.groups.put_back(*place, [one.receipt for one in task.result()])
            raise
        finally:
            self._waiting.discard(task)
        return [] if task.cancelled() else task.result()

    async def _deliver(
        self, context: Any, request: Any, place: Place, found: list[Delivery], invisible_ms: int
    ) -> list[str]:
        """Write messages to their consumer; returns the receipts of those that it read in time.

        The others are taken back.
        """
        size_bytes = sum(len(one.message.body) for one in found)
        written: list[str] = []
        self._receives_bytes += size_bytes
        writing = asyncio.ensure_future(self._write(context, request, found, invisible_ms, written))
        try:
            await self._clock.wait_for(writing, SLOW_READER_MS)
            if writing.done():
                writing.result()
            return written
        finally:
            writing.cancel()
            self._receives_bytes -= size_bytes
            if left := [one.receipt for one in found if one.receipt not in written]:
                self._engine.groups.put_back(*place, left)

    async def _write(
        self,
        context: Any,
        request: Any,
        found: list[Delivery],
        invisible_ms: int,
        written: list[str],
    ) -> None:
        answer = _Response()
        answer.status.code, answer.status.message = Code.OK, "OK"
        await context.write(answer)
        for one in found:
            message = shown(one, request.message_queue.topic, invisible_ms, self._store_host)
            await context.write(_Response(message=message))
            written.append(one.receipt)
        answer = _Response()
        set_ms(answer.delivery_timestamp, self._clock.now_ms())
        await context.write(answer)

    # ------------------------------------------------------------------ what becomes of received messages

    async def ack_message(self, call: Call, request: Any, answer: Answer) -> None:
        """AckMessage: these messages are done; each entry has its own status."""
        place = Place(name_of(request.topic), name_of(request.group))
        call.caller_for(Scope.RECEIVE, place.topic)
        entries = request.entries
        if not 0 < len(entries) <= MESSAGES_MAX:
            raise CallError(Code.BAD_REQUEST, f"{len(entries)} entries; give 1 to {MESSAGES_MAX}")
        receipts = [one.receipt_handle for one in entries]
        results = await self._engine.groups.ack(*place, receipts)
        self._settled_by(call, place, receipts)
        for entry, result in zip(entries, results, strict=True):
            one = answer.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle)
            one.status.code, one.status.message = _status(result)
        codes = {one.status.code for one in answer.entries}
        if len(codes) > 1:
            answer.status.code = Code.MULTIPLE_RESULTS
        elif codes != {Code.OK}:
            answer.status.CopyFrom(answer.entries[0].status)

    async def change_invisible_duration(self, call: Call, request: Any, answer: Answer) -> None:
        """ChangeInvisibleDuration: holds a message for longer; of a push consumer it gives the message back.

        A push consumer calls it when it failed, with the delay until the next attempt. That is stored, and a
        restart does not shorten it. No message is delivered again before `redelivery_delay`.
        """
        place = Place(name_of(request.topic), name_of(request.group))
        call.caller_for(Scope.RECEIVE, place.topic)
        duration_ms = to_ms(request.invisible_duration)
        if not 0 <= duration_ms <= INVISIBLE_MS_MAX:
            raise CallError(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"invisible_duration = {duration_ms} ms: must be from 0 to {INVISIBLE_MS_MAX} ms",
            )
        receipts = [request.receipt_handle]
        groups, client = self._engine.groups, self.clients.heard(call.client)
        if client.type == ClientType.PUSH_CONSUMER:
            reason = "its consumer could not process it"
            results = await groups.nack(*place, receipts, delay_ms=duration_ms, reason=reason)
        else:
            least_ms = max(self._engine.settings.redelivery_delay_ms, 1)
            results = await groups.extend(*place, receipts, max(duration_ms, least_ms))
        self._settled_by(call, place, receipts)
        _raise_for(results[0])
        answer.receipt_handle = request.receipt_handle

    async def forward_message_to_dead_letter_queue(self, call: Call, request: Any, _answer: Answer) -> None:
        """ForwardMessageToDeadLetterQueue: the consumer gives a message up."""
        place = Place(name_of(request.topic), name_of(request.group))
        call.caller_for(Scope.RECEIVE, place.topic)
        receipts = [request.receipt_handle]
        reason = f"given up by its consumer after attempt {request.delivery_attempt}"
        results = await self._engine.groups.give_up(*place, receipts, reason)
        self._settled_by(call, place, receipts)
        _raise_for(results[0])

    def _settled_by(self, call: Call, place: Place, receipts: list[str]) -> None:
        self.clients.settled(self.clients.heard(call.client), place, receipts)


def _sound(request: Any) -> Any:
    """Return the request; CallError if its bytes were no message."""
    if request is None:
        raise CallError(Code.BAD_REQUEST, "the bytes are not a message of this call")
    return request


def _status(result: ReceiptResult) -> tuple[Code, str]:
    if result.ok:
        return Code.OK, "OK"
    code = result.code or ""
    return code_of(code), "the receipt is not valid" if code == "illegal_receipt" else "the receipt has ended"


def _raise_for(result: ReceiptResult) -> None:
    if not result.ok:
        raise CallError(*_status(result))


def _invisible_ms(request: Any) -> int:
    if request.auto_renew:
        return LEASE_MS
    duration_ms = to_ms(request.invisible_duration)
    if not INVISIBLE_MS_MIN <= duration_ms <= INVISIBLE_MS_MAX:
        raise CallError(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"invisible_duration = {duration_ms} ms: use {INVISIBLE_MS_MIN} to {INVISIBLE_MS_MAX} ms",
        )
    return duration_ms


def _tags(expression: Any) -> str:
    """Return the tag filter, `*` without one; CallError for SQL, IllegalFilterError.

    Tags that are empty, as between `||||`, are left out.
    """
    if expression.type == FilterType.SQL:
        raise CallError(Code.ILLEGAL_FILTER_EXPRESSION, "SQL expressions are not supported; filter by tag")
    text = "||".join([part for part in expression.expression.split("||") if part.strip()]) or "*"
    TagFilter.parse(text)
    return text


def _wait_ms(request: Any, client: Client, left_s: float | None) -> int:
    """Return how long a receive may wait: as the client asks, and not beyond its deadline."""
    if request.HasField("long_polling_timeout"):
        wait_ms = max(to_ms(request.long_polling_timeout), 0)
    else:
        wait_ms = LONG_POLLING_MS if client.long_polling_ms is None else client.long_polling_ms
    if left_s is not None:
        wait_ms = min(wait_ms, int(left_s * 1000) - MARGIN_MS)
    return max(wait_ms, 0)
