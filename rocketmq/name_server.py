"""The name server: which brokers have a topic. There is one broker, at the same address."""

import orjson

from timerwheel.rocketmq.codes import Result
from timerwheel.rocketmq.request import Answer, Link, RefusalError, Request
from timerwheel.rocketmq.stored_message import Host
from timerwheel.rocketmq.topics import Topics

BROKER = "timerwheel"
CLUSTER = "DefaultCluster"
MASTER = "0"
"""The number of a broker that takes messages."""


class NameServer:
    """Answers for routes. With `advertised`, clients are sent there; else to where they asked."""

    def __init__(self, topics: Topics, advertised: Host | None) -> None:
        self._topics = topics
        self._advertised = advertised

    def address(self, request: Request) -> Host:
        """Return the address of the broker, for this client."""
        return self.address_at(request.link)

    def address_at(self, link: Link) -> Host:
        """Return the address of the broker, for the client of this connection."""
        return self._advertised or link.local

    def route(self, request: Request) -> Answer:
        """The queues of a topic; every legal name has some."""
        topic = request.text("topic")
        self._topics.must_have_route(topic)
        if not request.caller.may(topic):
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
        host = self.address(request)
        name = f"[{host.address}]" if ":" in host.address else host.address
        return {"brokerAddrs": {MASTER: f"{name}:{host.port}"}, "brokerName": BROKER, "cluster": CLUSTER}
