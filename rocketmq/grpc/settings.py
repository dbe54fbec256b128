"""The settings that a client gets over its Telemetry stream: how it polls, and when it tries again."""

from collections.abc import Sequence
from typing import Any, Final

from timerwheel.engine import Engine
from timerwheel.groups.config import GroupConfig, Ladder, config_of
from timerwheel.rocketmq.grpc.codes import ClientType, Code, Language
from timerwheel.rocketmq.grpc.messages import name_of, set_ms, to_ms
from timerwheel.rocketmq.grpc.schema import message_class
from timerwheel.state.config_table import ConfigTable
from timerwheel.state.groups import group_topic

BATCH_MAX: Final = 32
LONG_POLLING_MS: Final = 20_000
SEND_ATTEMPTS: Final = 3
SEND_INITIAL_MS, SEND_MAX_MS, SEND_FACTOR = 10, 1_000, 2.0
KNOW_NO_LIST: Final = frozenset({Language.NODE_JS})
"""Clients that do not understand a list of delays."""

_Command = message_class("TelemetryCommand")


def answer(engine: Engine, given: Any, consumer: str | None, topics: Sequence[str]) -> Any:
    """Return the answer to a client's settings; `consumer` is its group, for which it wants these topics."""
    command = _Command()
    command.status.code = Code.OK
    settings = command.settings
    settings.CopyFrom(given)
    settings.metric.on = False
    settings.ClearField("backoff_policy")
    policy = settings.backoff_policy
    if consumer is None:
        policy.max_attempts = SEND_ATTEMPTS
        set_ms(policy.exponential_backoff.initial, SEND_INITIAL_MS)
        set_ms(policy.exponential_backoff.max, SEND_MAX_MS)
        policy.exponential_backoff.multiplier = SEND_FACTOR
        settings.publishing.max_body_size = engine.settings.body_bytes_max
        settings.publishing.validate_message_type = True
        return command
    subscription = settings.subscription
    subscription.fifo = any(engine.topics.ordered(topic) for topic in topics)
    subscription.receive_batch_size = BATCH_MAX
    if not to_ms(subscription.long_polling_timeout):
        set_ms(subscription.long_polling_timeout, LONG_POLLING_MS)
    config = _config(engine, consumer, topics)
    delays_ms = retry_delays_ms(engine, config)
    policy.max_attempts = config.max_attempts
    if given.user_agent.language in KNOW_NO_LIST:
        set_ms(policy.exponential_backoff.initial, delays_ms[0])
        set_ms(policy.exponential_backoff.max, max(delays_ms))
        policy.exponential_backoff.multiplier = SEND_FACTOR
    else:
        for delay_ms in delays_ms:
            set_ms(policy.customized_backoff.next.add(), delay_ms)
    return command


def consumer_of(given: Any) -> tuple[str | None, list[str]]:
    """Return the group of a consumer and the topics that it wants; no group for a producer."""
    if given.client_type == ClientType.PRODUCER or given.WhichOneof("pub_sub") != "subscription":
        return None, []
    return name_of(given.subscription.group), [name_of(one.topic) for one in given.subscription.subscriptions]


def retry_delays_ms(engine: Engine, config: GroupConfig) -> list[int]:
    """Return how long each failed attempt of a push consumer waits for the next one.

    A group without a backoff of its own, as this protocol makes them, has RocketMQ's ladder.
    """
    levels = engine.rules.levels
    attempts = range(1, max(config.max_attempts, 2))
    if not config.backoff.delay_ms(1, levels):
        return [Ladder().delay_ms(attempt, levels) for attempt in attempts]
    return [config.backoff.delay_ms(attempt, levels) for attempt in attempts]


def _config(engine: Engine, group: str, topics: Sequence[str]) -> GroupConfig:
    for topic in topics:
        found = engine.control.get(ConfigTable.GROUP, group_topic(topic, group))
        if found is not None:
            return config_of(found)
    return GroupConfig()
