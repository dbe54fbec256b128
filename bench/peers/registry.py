"""All systems that the benchmark can measure, by the names in its tables."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.peers.beanstalkd import Beanstalkd
from bench.peers.redis import Redis
from bench.peers.rocketmq.broker import RocketMQ
from bench.peers.system import System
from bench.peers.timerwheel import Timerwheel, TimerwheelOnKafka


class Known(NamedTuple):
    """How to create a system in a directory, and whether it can start here."""

    make: Callable[[Path], System]
    missing: Callable[[], str | None]


OURS = "timerwheel sync"
OURS_ASYNC = "timerwheel async"
OURS_GROUP = "timerwheel sync, group"
OURS_KAFKA = "timerwheel, log in Kafka"

SYSTEMS: dict[str, Known] = {
    OURS: Known(lambda place: Timerwheel(place, "sync"), Timerwheel.missing),
    OURS_ASYNC: Known(lambda place: Timerwheel(place, "async"), Timerwheel.missing),
    OURS_GROUP: Known(lambda place: Timerwheel(place, "sync", grouped=True), Timerwheel.missing),
    OURS_KAFKA: Known(TimerwheelOnKafka, TimerwheelOnKafka.missing),
    "beanstalkd -f 0": Known(lambda place: Beanstalkd(place, 0), Beanstalkd.missing),
    "beanstalkd -f 50": Known(lambda place: Beanstalkd(place, 50), Beanstalkd.missing),
    "Redis AOF always": Known(lambda place: Redis(place, "always"), Redis.missing),
    "Redis AOF everysec": Known(lambda place: Redis(place, "everysec"), Redis.missing),
    "RocketMQ 5 sync": Known(lambda place: RocketMQ(place, "sync"), RocketMQ.missing),
    "RocketMQ 5 async": Known(lambda place: RocketMQ(place, "async"), RocketMQ.missing),
}
