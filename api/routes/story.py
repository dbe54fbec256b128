"""The call on the story of a message."""

from timerwheel.api.gate import Gate
from timerwheel.api.routes.route import ENGINE, Route
from timerwheel.api.security.needs import Need
from timerwheel.api.story import StoryCalls
from timerwheel.api.wire import MessagePath
from timerwheel.history.history import Story


def story_routes(gate: Gate) -> list[Route]:
    """What was done with one message, from its sending on."""
    return [
        Route(
            method="GET",
            path="/v1/messages/{id}/story",
            name="getStory",
            summary="The story of one message: what happened to it and when",
            needs=Need.EITHER,
            handler=StoryCalls(gate).story,
            answer=Story,
            path_type=MessagePath,
            problems=(*ENGINE, "unknown_message"),
        ),
    ]
