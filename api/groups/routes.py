"""The calls on consumer groups and their dead letters."""

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.groups.dead_letters import DeadLetterCalls
from timerwheel.api.groups.handlers import GroupCalls
from timerwheel.api.groups.stream import StreamCalls
from timerwheel.api.groups.window import Windows
from timerwheel.api.http.needs import Need
from timerwheel.api.http.route import ENGINE, EVENTS, JSON, JSON_BODY, STORE, Route
from timerwheel.groups.config import GroupConfig
from timerwheel.wire.groups import (
    Ack,
    Chosen,
    ChosenOfTopics,
    DeadPath,
    DeadQuery,
    DroppedCount,
    Extend,
    Group,
    GroupPath,
    Groups,
    Letters,
    Nack,
    Receive,
    Received,
    RedrivenCount,
    Rewind,
    SettledAll,
    StreamQuery,
)
from timerwheel.wire.topics import TopicPath

GROUP = "/v1/topics/{topic}/groups/{group}"
DEAD = f"{GROUP}/dead-letters"
DEAD_OF_NAME = "/v1/groups/{group}/dead-letters"

# Receiving may create the group.
MAKING = (
    *("illegal_group", "illegal_topic", "system_topic", "topic_ending", "illegal_filter", "too_many_groups"),
    *STORE,
)
SETTLING = (*ENGINE, *JSON_BODY, "illegal_group", "unknown_group", *STORE)


def consuming_routes(handle: EngineHandle, windows: Windows) -> list[Route]:
    """Return the routes to receive, acknowledge, return and extend."""
    calls, streams = GroupCalls(handle, windows), StreamCalls(handle, windows)
    return [
        Route(
            method="POST",
            path=f"{GROUP}/receive",
            name="receive",
            summary="Receive messages for a consumer of the group, and wait for one if there is none",
            needs=Need.RECEIVE,
            handler=calls.receive,
            answer=Received,
            answers_arrow=True,
            path_type=GroupPath,
            bodies={JSON: Receive},
            body_required=False,
            problems=(*ENGINE, *JSON_BODY, *MAKING, "group_not_found", "group_differs"),
        ),
        Route(
            method="POST",
            path=f"{GROUP}/ack",
            name="acknowledge",
            summary="Acknowledge messages",
            needs=Need.RECEIVE,
            handler=calls.ack,
            answer=SettledAll,
            path_type=GroupPath,
            bodies={JSON: Ack},
            problems=SETTLING,
        ),
        Route(
            method="POST",
            path=f"{GROUP}/nack",
            name="giveBack",
            summary="Return messages to the group, to be redelivered after a delay",
            needs=Need.RECEIVE,
            handler=calls.nack,
            answer=SettledAll,
            path_type=GroupPath,
            bodies={JSON: Nack},
            problems=(*SETTLING, "illegal_delay", "delay_too_long", "conflicting_delay"),
        ),
        Route(
            method="POST",
            path=f"{GROUP}/extend",
            name="extend",
            summary="Extend the leases of messages",
            needs=Need.RECEIVE,
            handler=calls.extend,
            answer=SettledAll,
            path_type=GroupPath,
            bodies={JSON: Extend},
            problems=SETTLING,
        ),
        Route(
            method="GET",
            path=f"{GROUP}/stream",
            name="stream",
            summary="Stream messages to a consumer of the group, as server-sent events",
            needs=Need.RECEIVE,
            handler=streams.stream,
            head=streams.head,
            answer=str,
            answer_kind=EVENTS,
            changes_state=True,
            path_type=GroupPath,
            query_type=StreamQuery,
            problems=(*ENGINE, *MAKING, "group_not_found", "group_differs", "header_required"),
        ),
    ]


def group_routes(handle: EngineHandle, windows: Windows) -> list[Route]:
    """Return the routes of the groups themselves."""
    calls = GroupCalls(handle, windows)
    return [
        Route(
            method="GET",
            path="/v1/groups",
            name="listGroups",
            summary="List all groups",
            needs=Need.RECEIVE,
            handler=calls.all,
            answer=Groups,
            problems=ENGINE,
        ),
        Route(
            method="GET",
            path="/v1/topics/{topic}/groups",
            name="listGroupsOfTopic",
            summary="List the groups of a topic",
            needs=Need.RECEIVE,
            handler=calls.of_topic,
            answer=Groups,
            path_type=TopicPath,
            problems=ENGINE,
        ),
        Route(
            method="GET",
            path=GROUP,
            name="getGroup",
            etag=True,
            summary="Get a group: its configuration, position, lag and counts",
            needs=Need.RECEIVE,
            handler=calls.one,
            answer=Group,
            path_type=GroupPath,
            problems=(*ENGINE, "unknown_group"),
        ),
        Route(
            method="PUT",
            path=GROUP,
            name="putGroup",
            etag=True,
            summary="Create a group or change its configuration",
            needs=Need.ADMIN,
            audited=True,
            handler=calls.put,
            also=(201,),
            located=True,
            answer=Group,
            path_type=GroupPath,
            bodies={JSON: GroupConfig},
            problems=(*ENGINE, *JSON_BODY, *MAKING),
        ),
        Route(
            method="DELETE",
            path=GROUP,
            name="deleteGroup",
            etag=True,
            summary="Delete a group, with its position and leases",
            needs=Need.ADMIN,
            audited=True,
            handler=calls.delete,
            answer=Group,
            path_type=GroupPath,
            problems=(*ENGINE, "unknown_group", "group_in_use", *STORE),
        ),
        Route(
            method="POST",
            path=f"{GROUP}/rewind",
            name="rewindGroup",
            summary="Move a group to another position",
            needs=Need.ADMIN,
            audited=True,
            handler=calls.rewind,
            answer=Group,
            path_type=GroupPath,
            bodies={JSON: Rewind},
            problems=(*ENGINE, *JSON_BODY, "illegal_delay", "illegal_group", "unknown_group", *STORE),
        ),
    ]


def dead_letter_routes(handle: EngineHandle) -> list[Route]:
    """Return the routes of dead letters."""
    calls = DeadLetterCalls(handle)
    unknown = ("illegal_group", "unknown_group")
    return [
        Route(
            method="GET",
            path=DEAD,
            name="listGroupDeadLetters",
            summary="List the dead letters of a group, oldest first, in pages",
            needs=Need.RECEIVE,
            handler=calls.page,
            answer=Letters,
            path_type=GroupPath,
            query_type=DeadQuery,
            problems=(*ENGINE, *unknown),
        ),
        Route(
            method="POST",
            path=f"{DEAD}/redrive",
            name="redriveGroupDeadLetters",
            summary="Redrive dead letters: deliver them to their group again",
            needs=Need.ADMIN,
            audited=True,
            handler=calls.redrive,
            answer=RedrivenCount,
            path_type=GroupPath,
            bodies={JSON: Chosen},
            problems=(*ENGINE, *JSON_BODY, *unknown, *STORE),
        ),
        Route(
            method="POST",
            path=f"{DEAD}/drop",
            name="dropGroupDeadLetters",
            summary="Drop dead letters of a group",
            needs=Need.ADMIN,
            audited=True,
            handler=calls.drop,
            answer=DroppedCount,
            path_type=GroupPath,
            bodies={JSON: Chosen},
            problems=(*ENGINE, *JSON_BODY, *unknown, *STORE),
        ),
        Route(
            method="GET",
            path=DEAD_OF_NAME,
            name="listDeadLetters",
            summary="List the dead letters of all groups with this name, on every topic",
            needs=Need.RECEIVE,
            handler=calls.page_of_name,
            answer=Letters,
            path_type=DeadPath,
            query_type=DeadQuery,
            problems=(*ENGINE, *unknown),
        ),
        Route(
            method="POST",
            path=f"{DEAD_OF_NAME}/redrive",
            name="redriveDeadLetters",
            summary="Redrive the dead letters of all groups with this name",
            needs=Need.ADMIN,
            audited=True,
            handler=calls.redrive_of_name,
            answer=RedrivenCount,
            path_type=DeadPath,
            bodies={JSON: ChosenOfTopics},
            problems=(*ENGINE, *JSON_BODY, *unknown, *STORE),
        ),
        Route(
            method="POST",
            path=f"{DEAD_OF_NAME}/drop",
            name="dropDeadLetters",
            summary="Drop dead letters of all groups with this name",
            needs=Need.ADMIN,
            audited=True,
            handler=calls.drop_of_name,
            answer=DroppedCount,
            path_type=DeadPath,
            bodies={JSON: ChosenOfTopics},
            problems=(*ENGINE, *JSON_BODY, *unknown, *STORE),
        ),
    ]
