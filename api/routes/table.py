"""Every call in one table, from which both the router and the OpenAPI document are made."""

from api.gate import Gate
from api.metrics import Metrics
from api.routes.console import live_routes, page_routes
from api.routes.groups import consuming_routes, dead_letter_routes, group_routes
from api.routes.messages import message_routes
from api.routes.metrics import metrics_routes
from api.routes.route import Route
from api.routes.schedules import schedule_routes
from api.routes.service import health_routes, wheel_routes
from api.routes.story import story_routes
from api.routes.subscriptions import subscription_routes
from api.routes.topics import topic_routes
from api.window import Windows


def routes(gate: Gate, metrics: Metrics) -> list[Route]:
    """All calls, with handlers that work on the engine behind `gate`."""
    windows = Windows()
    return [
        *message_routes(gate),
        *story_routes(gate),
        *topic_routes(gate),
        *consuming_routes(gate, windows),
        *group_routes(gate, windows),
        *dead_letter_routes(gate),
        *schedule_routes(gate),
        *subscription_routes(gate),
        *wheel_routes(gate),
        *health_routes(gate),
        *metrics_routes(metrics),
        *live_routes(gate),
        *page_routes(),
    ]
