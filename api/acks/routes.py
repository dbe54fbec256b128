"""The calls with which a receiver acknowledges later.

They need no API token: the token in the path is what entitles to them, and to nothing else.
"""

from functools import partial

from timerwheel.api.acks.handlers import AckCalls
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http.needs import Need
from timerwheel.api.http.route import DELAY, ENGINE, JSON, JSON_BODY, STORE, Route
from timerwheel.wire.acks import AckAnswer, AckPath, GiveBack, Prolong

ACK = "/v1/acks/{token}"
SETTLING = (*ENGINE, "unknown_ack", "ack_ended", "topic_ending", *STORE)


def ack_routes(handle: EngineHandle) -> list[Route]:
    """Calls under `/v1/acks`."""
    calls = AckCalls(handle)
    one = partial(Route, method="POST", needs=Need.OPEN, path_type=AckPath, answer=AckAnswer)
    return [
        one(
            path=ACK,
            name="acknowledgeLater",
            summary="Acknowledge a pushed message or a task, with the token that its receiver was given",
            handler=calls.acknowledge,
            problems=SETTLING,
        ),
        one(
            path=f"{ACK}/nack",
            name="giveBackLater",
            summary="Give back a pushed message or a task: the attempt failed",
            handler=calls.give_back,
            bodies={JSON: GiveBack},
            body_required=False,
            problems=(*SETTLING, *JSON_BODY, *DELAY, "conflicting_delay"),
        ),
        one(
            path=f"{ACK}/extend",
            name="extendLater",
            summary="Have longer to acknowledge a pushed message or a task",
            handler=calls.extend,
            bodies={JSON: Prolong},
            problems=(*SETTLING, *JSON_BODY),
        ),
    ]
