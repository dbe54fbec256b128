"""The calls on topics and their queues."""

from functools import partial

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http.needs import Need
from timerwheel.api.http.route import (
    ENGINE,
    JSON,
    JSON_BODY,
    STORE,
    Route,
)
from timerwheel.api.topics.handlers import TopicCalls
from timerwheel.model.messages import TopicDeletion, TopicInfo, TopicPurged
from timerwheel.wire.topics import (
    DeleteQuery,
    Delivered,
    NewPurge,
    QueuePath,
    ReadQuery,
    TopicChanges,
    TopicPath,
    Topics,
)

CHANGE = ("unknown_topic", "illegal_topic", "system_topic", "too_many_topics", "topic_ending")


def topic_routes(handle: EngineHandle) -> list[Route]:
    """Calls under `/v1/topics`, but for those on messages and groups."""
    calls = TopicCalls(handle)
    change = partial(
        Route,
        method="POST",
        needs=Need.ADMIN,
        audited=True,
        answer=TopicInfo,
        path_type=TopicPath,
        problems=(*ENGINE, *CHANGE, *STORE),
    )
    return [
        Route(
            method="GET",
            path="/v1/topics",
            name="listTopics",
            summary="List all topics with their queues and counts",
            needs=Need.EITHER,
            handler=calls.all,
            answer=Topics,
            problems=ENGINE,
        ),
        Route(
            method="GET",
            path="/v1/topics/{topic}",
            name="getTopic",
            etag=True,
            summary="Get a topic with its queues and counts",
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
            summary="Read delivered messages from an offset, and wait for one if there is none",
            needs=Need.RECEIVE,
            handler=calls.delivered,
            answer=Delivered,
            answers_arrow=True,
            path_type=QueuePath,
            query_type=ReadQuery,
            problems=(*ENGINE, "unknown_topic", "unknown_queue", "offset_out_of_range"),
        ),
        Route(
            method="PATCH",
            path="/v1/topics/{topic}",
            name="changeTopic",
            etag=True,
            summary="Set the number of queues of a topic, or whether it is ordered by sharding key",
            needs=Need.ADMIN,
            audited=True,
            handler=calls.change,
            answer=TopicInfo,
            path_type=TopicPath,
            bodies={JSON: TopicChanges},
            problems=(
                *ENGINE,
                *JSON_BODY,
                *CHANGE,
                "queues_shrink",
                "keys_move",
                *STORE,
            ),
        ),
        change(
            path="/v1/topics/{topic}/pause",
            name="pauseTopic",
            summary="Pause a topic: deliver none of its messages to consumers until it is resumed",
            handler=calls.pause,
        ),
        change(
            path="/v1/topics/{topic}/resume",
            name="resumeTopic",
            summary="Resume a paused topic",
            handler=calls.resume,
        ),
        change(
            path="/v1/topics/{topic}/purge",
            name="purgeTopic",
            summary="Take away the scheduled or delivered messages of a topic, or both; all else stays",
            handler=calls.purge,
            answer=TopicPurged,
            bodies={JSON: NewPurge},
            problems=(*ENGINE, *JSON_BODY, "unknown_topic", "system_topic", "topic_ending", *STORE),
        ),
        Route(
            method="DELETE",
            path="/v1/topics/{topic}",
            name="deleteTopic",
            etag=True,
            summary="Delete a topic with its messages, groups, schedules and subscriptions",
            needs=Need.ADMIN,
            audited=True,
            also=(202,),
            handler=calls.delete,
            answer=TopicDeletion,
            path_type=TopicPath,
            query_type=DeleteQuery,
            problems=(*ENGINE, "unknown_topic", "system_topic", *STORE),
        ),
    ]
