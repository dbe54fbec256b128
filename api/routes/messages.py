"""The calls on messages."""

from timerwheel.api.gate import Gate
from timerwheel.api.messages import Messages
from timerwheel.api.recall_wire import NewRecall, RecalledIds, RecalledWhere
from timerwheel.api.recalls import RecallCalls
from timerwheel.api.routes.route import (
    ADMISSION,
    CONFLICTS,
    DELAY,
    ENGINE,
    JSON,
    JSON_BODY,
    KEY,
    NDJSON,
    SETTLED,
    STORE,
    Route,
)
from timerwheel.api.security.needs import Need
from timerwheel.api.wire import Accepted, Message, MessagePath, NewMessage, NewTime, Pending, PendingQuery

ONE = r"/v1/messages/{id:(?!recall$)[^/]+}"  # no id is written like that


def message_routes(gate: Gate) -> list[Route]:
    """Calls under `/v1/messages`."""
    calls = Messages(gate)
    one_or_many = NewMessage | list[NewMessage]
    return [
        Route(
            method="POST",
            path="/v1/messages",
            name="sendMessages",
            summary="Store one message, or an array as one durable unit",
            needs=Need.SEND,
            handler=calls.send,
            status=201,
            also=(200,),
            compresses=False,
            answer=Accepted | list[Accepted],
            takes_key=True,
            takes_context=True,
            bodies={JSON: one_or_many, NDJSON: NewMessage},
            problems=(
                *(*ENGINE, *JSON_BODY, *ADMISSION, *CONFLICTS, *KEY, *STORE),
                *("refused", "too_many_messages"),
            ),
        ),
        Route(
            method="GET",
            path="/v1/messages",
            name="listPending",
            summary="Waiting messages in due order, a page at a time",
            needs=Need.EITHER,
            handler=calls.pending,
            answer=Pending,
            query_type=PendingQuery,
            problems=(*ENGINE, "illegal_cursor", "illegal_topic"),
        ),
        Route(
            method="GET",
            path="/v1/messages/{id}",
            pattern=ONE,
            name="getMessage",
            summary="One message as it stands",
            needs=Need.EITHER,
            handler=calls.get,
            answer=Message,
            path_type=MessagePath,
            problems=(*ENGINE, "unknown_message"),
        ),
        Route(
            method="DELETE",
            path="/v1/messages/{id}",
            pattern=ONE,
            name="recallMessage",
            summary="Recall a waiting message: it will not be delivered",
            needs=Need.SEND,
            handler=calls.recall,
            answer=Message,
            path_type=MessagePath,
            problems=(*ENGINE, *SETTLED, *STORE),
        ),
        Route(
            method="PATCH",
            path="/v1/messages/{id}",
            pattern=ONE,
            name="rescheduleMessage",
            summary="Give a waiting message another due time under the same id",
            needs=Need.SEND,
            handler=calls.reschedule,
            answer=Accepted,
            path_type=MessagePath,
            bodies={JSON: NewTime},
            problems=(*ENGINE, *JSON_BODY, *DELAY, "conflicting_delay", *SETTLED, *STORE),
        ),
        Route(
            method="POST",
            path="/v1/messages/recall",
            name="recallMessages",
            summary="Recall many waiting messages: by id, or all that meet conditions",
            needs=Need.SEND,
            audited=True,
            handler=RecallCalls(gate).recall,
            answer=(RecalledIds, RecalledWhere),
            bodies={JSON: NewRecall},
            problems=(
                *(*ENGINE, *JSON_BODY, *STORE),
                *("illegal_filter", "illegal_topic", "system_topic", "too_many_messages"),
            ),
        ),
    ]
