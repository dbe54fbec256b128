"""The calls on topics, their queues and their keys."""

from api.gate import Gate
from api.keys import KeyCalls
from api.messages import Messages
from api.routes.route import (
    ADMISSION,
    ANY,
    BODY,
    DELAY,
    ENGINE,
    JSON,
    JSON_BODY,
    KEY,
    RAW_CONFLICTS,
    SETTLED,
    STORE,
    Route,
)
from api.security.needs import Need
from api.topics import TopicCalls
from api.wire import (
    Accepted,
    Delivered,
    KeyPath,
    Message,
    NewTime,
    QueuePath,
    RawQuery,
    ReadQuery,
    TopicChanges,
    TopicPath,
    Topics,
)
from timerwheel.message import TopicInfo


def topic_routes(gate: Gate) -> list[Route]:
    """Calls under `/v1/topics`, but for those on groups."""
    messages, calls, keys = Messages(gate), TopicCalls(gate), KeyCalls(gate)
    return [
        Route(
            method="POST",
            path="/v1/topics/{topic}/messages",
            name="sendRaw",
            summary="Store the request's body as a message; other query parameters are its properties",
            needs=Need.SEND,
            handler=messages.send_raw,
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
        Route(
            method="GET",
            path="/v1/topics",
            name="listTopics",
            summary="All topics with queues and counts",
            needs=Need.EITHER,
            handler=calls.all,
            answer=Topics,
            problems=ENGINE,
        ),
        Route(
            method="GET",
            path="/v1/topics/{topic}",
            name="getTopic",
            summary="One topic with queues and counts",
            needs=Need.EITHER,
            handler=calls.one,
            answer=TopicInfo,
            path_type=TopicPath,
            problems=(*ENGINE, "unknown_topic"),
        ),
        Route(
            method="GET",
            path="/v1/topics/{topic}/queues/{queue}/messages",
            name="readQueue",
            summary="Delivered messages from an offset on, waiting for the first if there is none",
            needs=Need.RECEIVE,
            handler=calls.delivered,
            answer=Delivered,
            path_type=QueuePath,
            query_type=ReadQuery,
            problems=(*ENGINE, "unknown_topic", "unknown_queue", "offset_out_of_range"),
        ),
        Route(
            method="PATCH",
            path="/v1/topics/{topic}",
            name="changeTopic",
            summary="Deliver the messages of one sharding key in order, or no longer",
            needs=Need.ADMIN,
            audited=True,
            handler=calls.change,
            answer=TopicInfo,
            path_type=TopicPath,
            bodies={JSON: TopicChanges},
            problems=(*ENGINE, *JSON_BODY, "illegal_topic", "system_topic", *STORE),
        ),
        Route(
            method="GET",
            path="/v1/topics/{topic}/keys/{key}",
            name="getKeyedMessage",
            summary="The message that a deduplication key stands for",
            needs=Need.EITHER,
            handler=keys.get,
            answer=Message,
            path_type=KeyPath,
            problems=(*ENGINE, "unknown_message"),
        ),
        Route(
            method="DELETE",
            path="/v1/topics/{topic}/keys/{key}",
            name="recallKeyedMessage",
            summary="Recall the waiting message that a deduplication key stands for",
            needs=Need.SEND,
            handler=keys.recall,
            answer=Message,
            path_type=KeyPath,
            problems=(*ENGINE, *SETTLED, *STORE),
        ),
        Route(
            method="PATCH",
            path="/v1/topics/{topic}/keys/{key}",
            name="rescheduleKeyedMessage",
            summary="Give the waiting message that a deduplication key stands for another due time",
            needs=Need.SEND,
            handler=keys.reschedule,
            answer=Accepted,
            path_type=KeyPath,
            bodies={JSON: NewTime},
            problems=(*ENGINE, *JSON_BODY, *DELAY, "conflicting_delay", *SETTLED, *STORE),
        ),
    ]
