"""Every call in one table, from which both the router and the OpenAPI document are made."""

from timerwheel.api.acks.handlers import AckCalls
from timerwheel.api.console.page import Pages
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.groups.dead_letters import DeadLetterCalls
from timerwheel.api.groups.handlers import GroupCalls
from timerwheel.api.groups.stream import StreamCalls
from timerwheel.api.groups.window import Windows
from timerwheel.api.http.route import Route, Tag, calls_of
from timerwheel.api.messages.handlers import Messages
from timerwheel.api.messages.recalls import RecallCalls
from timerwheel.api.messages.transactions import TransactionCalls
from timerwheel.api.schedules.handlers import ScheduleCalls
from timerwheel.api.service.figures import FigureKeeper
from timerwheel.api.service.handlers import ServiceCalls
from timerwheel.api.service.live import LiveCalls
from timerwheel.api.service.metrics import Metrics
from timerwheel.api.subscriptions.handlers import SubscriptionCalls
from timerwheel.api.tasks.handlers import TaskCalls
from timerwheel.api.topics.handlers import TopicCalls


def routes(handle: EngineHandle, metrics: Metrics, windows: Windows, figures: FigureKeeper) -> list[Route]:
    """All calls, with handlers that work on the engine behind `handle`."""
    return [
        *calls_of(Messages(handle), Tag.MESSAGES),
        *calls_of(RecallCalls(handle), Tag.MESSAGES),
        *calls_of(TransactionCalls(handle), Tag.MESSAGES),
        *calls_of(TopicCalls(handle), Tag.TOPICS),
        *calls_of(GroupCalls(handle, windows), Tag.GROUPS),
        *calls_of(StreamCalls(handle, windows), Tag.GROUPS),
        *calls_of(DeadLetterCalls(handle), Tag.DEAD_LETTERS),
        *calls_of(ScheduleCalls(handle), Tag.SCHEDULES),
        *calls_of(SubscriptionCalls(handle), Tag.SUBSCRIPTIONS),
        *calls_of(TaskCalls(handle), Tag.TASKS),
        *calls_of(AckCalls(handle), Tag.ACKS),
        *calls_of(ServiceCalls(handle), Tag.SERVICE),
        *calls_of(metrics, Tag.SERVICE),
        *calls_of(LiveCalls(handle, figures), Tag.SERVICE),
        *calls_of(figures, Tag.SERVICE),
        *calls_of(Pages()),
    ]
