"""The calls on messages."""

from functools import partial

import msgspec

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http.needs import Need
from timerwheel.api.http.route import (
    ADMISSION,
    ANY,
    ARROW,
    BODY,
    CONFLICTS,
    DELAY,
    ENGINE,
    JSON,
    JSON_BODY,
    KEY,
    NDJSON,
    RAW_CONFLICTS,
    SETTLED,
    STORE,
    Route,
)
from timerwheel.api.messages.handlers import Messages
from timerwheel.api.messages.history import HistoryCalls
from timerwheel.api.messages.recalls import RecallCalls
from timerwheel.api.messages.transactions import TransactionCalls
from timerwheel.history.history import MessageHistory
from timerwheel.model.messages import OpenTransaction
from timerwheel.wire.messages import (
    Accepted,
    KeyPath,
    Message,
    MessagePath,
    NewMessage,
    NewTime,
    Pending,
    PendingQuery,
    RawQuery,
    SendQuery,
    SentPart,
)
from timerwheel.wire.recalls import (
    NewRecall,
    NewTimes,
    RecalledIds,
    RecalledWhere,
    RescheduledIds,
    RescheduledWhere,
)
from timerwheel.wire.topics import TopicPath
from timerwheel.wire.transactions import OpenQuery, OpenTransactions

ONE = r"/v1/messages/{id:(?!(?:recall|reschedule)$)[^/]+}"  # no id is written like that


def message_routes(handle: EngineHandle) -> list[Route]:
    """Calls under `/v1/messages`."""
    calls = Messages(handle)
    one = partial(Route, path="/v1/messages/{id}", pattern=ONE, path_type=MessagePath)
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
            partly=list[SentPart],
            query_type=SendQuery,
            takes_key=True,
            takes_context=True,
            bodies={JSON: one_or_many, NDJSON: NewMessage, ARROW: bytes},
            answers_arrow=True,
            problems=(
                *(*ENGINE, *JSON_BODY, *ADMISSION, *CONFLICTS, *KEY, *STORE),
                *("refused", "too_many_messages", "malformed_arrow", "several_shards"),
            ),
        ),
        Route(
            method="GET",
            path="/v1/messages",
            name="listPending",
            summary="List waiting messages in due order, in pages",
            needs=Need.EITHER,
            handler=calls.pending,
            answer=Pending,
            query_type=PendingQuery,
            problems=(*ENGINE, "illegal_cursor", "illegal_topic"),
        ),
        one(
            method="GET",
            name="getMessage",
            etag=True,
            summary="Get a message",
            needs=Need.EITHER,
            handler=calls.get,
            answer=Message,
            problems=(*ENGINE, "unknown_message", "message_deleted"),
        ),
        one(
            method="DELETE",
            name="recallMessage",
            etag=True,
            summary="Recall a waiting message: it will not be delivered",
            needs=Need.SEND,
            handler=calls.recall,
            answer=Message,
            problems=(*ENGINE, *SETTLED, "open_transaction", *STORE),
        ),
        one(
            method="PATCH",
            name="rescheduleMessage",
            etag=True,
            summary="Reschedule a waiting message; its id stays",
            needs=Need.SEND,
            handler=calls.reschedule,
            answer=Accepted,
            bodies={JSON: NewTime},
            problems=(
                *(*ENGINE, *JSON_BODY, *DELAY, "conflicting_delay"),
                *(*SETTLED, "open_transaction", "topic_ending", *STORE),
            ),
        ),
        Route(
            method="POST",
            path="/v1/messages/recall",
            name="recallMessages",
            summary="Recall many waiting messages: by id, or all that match conditions",
            needs=Need.SEND,
            audited=True,
            handler=RecallCalls(handle).recall,
            answer=(RecalledIds, RecalledWhere),
            bodies={JSON: NewRecall},
            problems=(
                *(*ENGINE, *JSON_BODY, *STORE),
                *("illegal_filter", "illegal_topic", "system_topic", "too_many_messages"),
            ),
        ),
        Route(
            method="POST",
            path="/v1/messages/reschedule",
            name="rescheduleMessages",
            summary="Reschedule many waiting messages: by id, or all that match conditions",
            needs=Need.SEND,
            audited=True,
            handler=RecallCalls(handle).reschedule,
            answer=(RescheduledIds, RescheduledWhere),
            bodies={JSON: NewTimes},
            problems=(
                *(*ENGINE, *JSON_BODY, *DELAY, "conflicting_delay", *STORE),
                *("illegal_filter", "illegal_topic", "system_topic", "too_many_messages"),
            ),
        ),
    ]


class Story(MessageHistory, frozen=True):
    """The history of one message, as the OpenAPI document names it for the older path."""


def history_routes(handle: EngineHandle) -> list[Route]:
    """Return the routes of a message's history."""
    history = Route(
        method="GET",
        path="/v1/messages/{id}/history",
        name="getHistory",
        summary="Get the history of a message: what happened to it, and when",
        needs=Need.EITHER,
        handler=HistoryCalls(handle).history,
        answer=MessageHistory,
        path_type=MessagePath,
        problems=(*ENGINE, "unknown_message", "message_deleted"),
    )
    alias = "Get the history of a message, at its old path; use getHistory instead"
    story = msgspec.structs.replace(
        history, path="/v1/messages/{id}/story", name="getStory", summary=alias, answer=Story
    )
    return [history, story]


def transaction_routes(handle: EngineHandle) -> list[Route]:
    """Calls under `/v1/transactions`."""
    calls = TransactionCalls(handle)
    end = partial(Route, method="POST", needs=Need.SEND, path_type=MessagePath)
    return [
        Route(
            method="POST",
            path="/v1/transactions",
            name="beginTransaction",
            summary="Store a message that is delivered once it is committed",
            needs=Need.SEND,
            handler=calls.begin,
            status=201,
            answer=OpenTransaction,
            takes_context=True,
            bodies={JSON: NewMessage},
            problems=(*ENGINE, *JSON_BODY, *ADMISSION, *CONFLICTS, "illegal_key", *STORE),
        ),
        Route(
            method="GET",
            path="/v1/transactions",
            name="listTransactions",
            summary="List the open transactions, oldest first, in pages",
            needs=Need.EITHER,
            handler=calls.all,
            answer=OpenTransactions,
            query_type=OpenQuery,
            problems=(*ENGINE, "illegal_cursor", "illegal_topic"),
        ),
        end(
            path="/v1/transactions/{id}/commit",
            name="commitTransaction",
            summary="Commit a transaction: its message is delivered after its delay",
            handler=calls.commit,
            answer=Accepted,
            problems=(*ENGINE, *SETTLED, "no_open_transaction", "topic_ending", *STORE),
        ),
        end(
            path="/v1/transactions/{id}/rollback",
            name="rollBackTransaction",
            summary="Roll a transaction back: its message is never delivered",
            handler=calls.rollback,
            answer=Message,
            problems=(*ENGINE, *SETTLED, "no_open_transaction", *STORE),
        ),
    ]


def topic_message_routes(handle: EngineHandle) -> list[Route]:
    """Return the routes of messages by topic: send a raw body, and find by deduplication key."""
    calls = Messages(handle)
    keyed = partial(Route, path="/v1/topics/{topic}/keys/{key}", path_type=KeyPath)
    return [
        Route(
            method="POST",
            path="/v1/topics/{topic}/messages",
            name="sendRaw",
            summary="Store the request's body as a message; other query parameters are its properties",
            needs=Need.SEND,
            handler=calls.send_raw,
            status=201,
            also=(200,),
            compresses=False,
            answer=Accepted,
            path_type=TopicPath,
            query_type=RawQuery,
            takes_properties=True,
            takes_key=True,
            takes_context=True,
            bodies={ANY: bytes},
            body_required=False,  # raw bytes may be none at all: an empty body is a message
            problems=(*ENGINE, *BODY, *ADMISSION, *RAW_CONFLICTS, *KEY, *STORE),
        ),
        keyed(
            method="GET",
            name="getKeyedMessage",
            etag=True,
            summary="Get the message with this deduplication key",
            needs=Need.EITHER,
            handler=calls.get,
            answer=Message,
            problems=(*ENGINE, "unknown_message", "message_deleted"),
        ),
        keyed(
            method="DELETE",
            name="recallKeyedMessage",
            etag=True,
            summary="Recall the waiting message with this deduplication key",
            needs=Need.SEND,
            handler=calls.recall,
            answer=Message,
            problems=(*ENGINE, *SETTLED, *STORE),
        ),
        keyed(
            method="PATCH",
            name="rescheduleKeyedMessage",
            etag=True,
            summary="Reschedule the waiting message with this deduplication key",
            needs=Need.SEND,
            handler=calls.reschedule,
            answer=Accepted,
            bodies={JSON: NewTime},
            problems=(*ENGINE, *JSON_BODY, *DELAY, "conflicting_delay", *SETTLED, "topic_ending", *STORE),
        ),
    ]
