"""The name server: which brokers have a topic. There is one broker, at the same address."""

import asyncio
import logging
import socket
from ipaddress import ip_address
from typing import NamedTuple

import orjson

from timerwheel.model.admission import RETRY_PREFIX
from timerwheel.rocketmq.codes import Result
from timerwheel.rocketmq.request import Answer, Link, RefusalError, Request
from timerwheel.rocketmq.stored_message import Host
from timerwheel.rocketmq.topics import Topics
from timerwheel.tokens import Scope

logger = logging.getLogger("timerwheel.rocketmq")

BROKER = "timerwheel"
CLUSTER = "DefaultCluster"
MASTER = "0"
"""The number of a broker that takes messages."""


class Advertised(NamedTuple):
    """Where clients are sent: `route` may have a name, but ids and messages have room for an address only.

    Without `numeric` these have the one at which a client reached the service.
    """

    route: Host
    numeric: Host | None

    @classmethod
    async def of(cls, route: Host) -> "Advertised":
        """Look up the address of a name; a warning is logged if it has none."""
        try:
            ip_address(route.address)
        except ValueError:
            return cls(route, await _looked_up(route))
        return cls(route, route)


async def _looked_up(host: Host) -> Host | None:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host.address, host.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        detail = "message ids will carry the address that each client used"
        logger.warning("rocketmq_address: cannot resolve %s (%s); %s", host.address, error, detail)
        return None
    by_family = {family: place for family, _, _, _, place in reversed(found)}
    return Host(str((by_family.get(socket.AF_INET) or found[0][4])[0]), host.port)


class NameServer:
    """Answers for routes. With `advertised`, clients are sent there; else to where they asked."""

    def __init__(self, topics: Topics, advertised: Advertised | None) -> None:
        self._topics = topics
        self._advertised = advertised

    def address(self, request: Request) -> Host:
        """Return the address of the broker in ids and messages, for this client."""
        return self.address_at(request.link)

    def address_at(self, link: Link) -> Host:
        """Return the address of the broker in ids and messages, for the client of this connection."""
        numeric = None if self._advertised is None else self._advertised.numeric
        return numeric or link.local

    def route(self, request: Request) -> Answer:
        """The queues of a topic; every legal name has some."""
        topic = request.text("topic")
        self._topics.must_have_route(topic)
        if topic.startswith(RETRY_PREFIX):  # which each reader may read, see `Topics.must_read`
            request.must_have(Scope.RECEIVE)
        elif not request.caller.may(topic):
            detail = f"the token {request.caller.name!r} has no access to topic {topic!r}"
            raise RefusalError(Result.NO_PERMISSION, detail)
        count = self._topics.queues_of(topic)
        body = {
            "brokerDatas": [self._broker(request)],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": BROKER,
                    "perm": self._topics.permissions(topic),
                    "readQueueNums": count,
                    "topicSysFlag": 0,
                    "writeQueueNums": count,
                }
            ],
        }
        return Answer(body=orjson.dumps(body))

    def cluster(self, request: Request) -> Answer:
        """The one broker of the one cluster."""
        body = {
            "brokerAddrTable": {BROKER: self._broker(request)},
            "clusterAddrTable": {CLUSTER: [BROKER]},
        }
        return Answer(body=orjson.dumps(body))

    def _broker(self, request: Request) -> dict[str, object]:
        host = request.link.local if self._advertised is None else self._advertised.route
        name = f"[{host.address}]" if ":" in host.address else host.address
        return {"brokerAddrs": {MASTER: f"{name}:{host.port}"}, "brokerName": BROKER, "cluster": CLUSTER}
