"""Every call in one table, from which both the router and the OpenAPI document are made."""

import msgspec

from timerwheel.api.acks.routes import ack_routes
from timerwheel.api.console.routes import page_routes
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.groups.routes import consuming_routes, dead_letter_routes, group_routes
from timerwheel.api.groups.window import Windows
from timerwheel.api.http.route import Route, Tag
from timerwheel.api.messages.routes import (
    history_routes,
    message_routes,
    topic_message_routes,
    transaction_routes,
)
from timerwheel.api.schedules.routes import schedule_routes
from timerwheel.api.service.figures import FigureKeeper
from timerwheel.api.service.metrics import Metrics
from timerwheel.api.service.routes import (
    cluster_routes,
    health_routes,
    live_routes,
    metrics_routes,
    token_routes,
    wheel_routes,
)
from timerwheel.api.subscriptions.routes import subscription_routes
from timerwheel.api.tasks.routes import task_routes
from timerwheel.api.topics.routes import topic_routes


def routes(handle: EngineHandle, metrics: Metrics, windows: Windows, figures: FigureKeeper) -> list[Route]:
    """All calls, with handlers that work on the engine behind `handle`."""
    return [
        *_about(Tag.MESSAGES, message_routes(handle)),
        *_about(Tag.MESSAGES, history_routes(handle)),
        *_about(Tag.MESSAGES, topic_message_routes(handle)),
        *_about(Tag.MESSAGES, transaction_routes(handle)),
        *_about(Tag.TOPICS, topic_routes(handle)),
        *_about(Tag.GROUPS, consuming_routes(handle, windows)),
        *_about(Tag.GROUPS, group_routes(handle, windows)),
        *_about(Tag.DEAD_LETTERS, dead_letter_routes(handle)),
        *_about(Tag.SCHEDULES, schedule_routes(handle)),
        *_about(Tag.SUBSCRIPTIONS, subscription_routes(handle)),
        *_about(Tag.TASKS, task_routes(handle)),
        *_about(Tag.ACKS, ack_routes(handle)),
        *_about(Tag.SERVICE, wheel_routes(handle)),
        *_about(Tag.SERVICE, token_routes()),
        *_about(Tag.SERVICE, health_routes(handle)),
        *_about(Tag.SERVICE, cluster_routes(handle)),
        *_about(Tag.SERVICE, metrics_routes(metrics)),
        *_about(Tag.SERVICE, live_routes(handle, figures)),
        *page_routes(),
    ]


def _about(tag: Tag, routes: list[Route]) -> list[Route]:
    """Return the routes, with this tag on those that have none."""
    return [msgspec.structs.replace(route, tag=route.tag or tag) for route in routes]
