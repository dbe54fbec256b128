"""Apache RocketMQ 5: one broker with its timer wheel; with a name server if its own clients will come.

For gRPC clients its proxy is in the process of the broker (`-pm local`).

Properties of its wheel that matter for comparisons (`HookUtils`, `TimerMessageStore` in its source):

- A due time goes into a slot of 100 ms, its finest precision, and the slot fires once it has fully passed.
  So nothing is early, and messages are 0 to 100 ms late even without load.
- A send is acknowledged when it is in the commit log (on disk, if `sync`); one thread then reads the log and
  puts it into the wheel. The wheel is in memory, and copied to its file once a second.
- After SIGKILL, messages sent in the last second may be delivered twice. We did not see that after SIGTERM.
- A due message is written to the log again without waiting for the disk.
- It is slow until its code is compiled: send tens of thousands of messages before measuring.
- A slot takes any number of messages: `timerCongestNumEachSlot` is 2^31 - 1 unless it is set.
- The longest delay is set to 32 days here; by default it is 3.
- A pull that finds nothing may miss a message that arrives just then; it gets that message with the next
  one, or within 5 s.

Its settings are in `broker.conf`, with reasons. It listens on loopback, except for its port for replicas.
"""

import asyncio
import contextlib
import json
import shutil
import socket
import xml.etree.ElementTree as ET
from pathlib import Path
from string import Template

from bench.peers.system import HOST, System, answers, free_port
from bench.wires.rocketmq import Answer, Answers, frame
from bench.wires.rocketmq_pop import POP_MAX, QUEUES
from bench.wires.wire import RefusedError

POM = Path(__file__).with_name("pom.xml")
TEMPLATE = Path(__file__).with_name("broker.conf")
VERSION = ET.parse(POM).findtext(".//{*}dependency/{*}version") or ""
LIBRARIES = Path.home() / ".cache" / "timerwheel-bench" / f"rocketmq-{VERSION}" / "lib"
HEAP = "1g"
NAME_SERVER_HEAP = "128m"
CLUSTER = "bench"
"""The name in `broker.conf`."""

_UPDATE_AND_CREATE_TOPIC = 17
_GET_BROKER_RUNTIME_INFO = 28
_GET_ROUTE = 105
_TEMPLATE_TOPIC = "TBW102"
_READ_AND_WRITE = 6
_CALL_TIMEOUT_S = 10
_FAST_PORT_BELOW = 2
"""The broker listens there too: at this distance below its port."""


class RocketMQ(System):
    """One broker; `flush` is sync or async."""

    wire, work_wire = "rocketmq", "rocketmq_pop"
    max_delay_ms = 32 * 86_400_000
    work_max = POP_MAX
    warm_up_s = 20.0

    def __init__(self, directory: Path, flush: str = "sync") -> None:
        super().__init__(directory)
        self.name = f"RocketMQ 5 {flush}"
        self.settings = {
            "flushDiskType": f"{flush.upper()}_FLUSH",
            "heap": HEAP,
            "timerPrecisionMs": "100",
            "in consume": f"POP and ACK over remoting, at most {POP_MAX} at once; {QUEUES} queues",
            "others": "bench/peers/rocketmq/broker.conf",
        }
        self.port = _free_pair()

    @classmethod
    def missing(cls) -> str | None:
        """The command that installs Java, Maven or the jars if they are missing."""
        if shutil.which("java") is None:
            return "apt-get install openjdk-17-jre-headless"
        if not any(LIBRARIES.glob("rocketmq-proxy-*.jar")):
            maven = "" if shutil.which("mvn") else "apt-get install maven && "
            return f"{maven}python -m bench.peers.rocketmq fetch"
        return None

    def version(self) -> str:
        """The version of the broker's jar."""
        return VERSION

    async def start(self) -> float:
        """Wait until the broker answers, after it has recovered its log and started its timers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        filled = Template(TEMPLATE.read_text()).substitute(
            port=self.port,
            replica_port=free_port(),
            store=self.directory / "store",
            flush=self.settings["flushDiskType"],
        )
        configuration = self.directory / "broker.conf"
        configuration.write_text(filled)
        if self.name_server:
            address, port = self.name_server.split(":")
            named = self.directory / "name-server.conf"
            named.write_text(f"bindAddress={address}\nlistenPort={port}\n")
            self._launch(NAME_SERVER_HEAP, "namesrv.NamesrvStartup", "-c", str(named))
        addresses = ("-n", self.name_server) if self.name_server else ()
        if self.grpc_port:
            ports = {"grpcServerPort": self.grpc_port, "remotingListenPort": free_port()}
            proxy = self.directory / "proxy.json"
            proxy.write_text(json.dumps({"rocketMQClusterName": CLUSTER, "proxyMode": "LOCAL", **ports}))
            mode = ("-pm", "local", "-pc", str(proxy), "-bc", str(configuration))
            self._launch(HEAP, "proxy.ProxyStartup", *mode, *addresses)
        else:
            self._launch(HEAP, "broker.BrokerStartup", "-c", str(configuration), *addresses)
        return await self.ready(self._answers)

    def _launch(self, heap: str, main: str, *arguments: str) -> None:
        self.launch(
            [
                "java",
                *(f"-Xms{heap}", f"-Xmx{heap}"),
                *("-Djava.net.preferIPv4Stack=true", "-Dtls.server.mode=disabled"),
                # Responses in the compact form that the wire parses.
                "-Drocketmq.serialize.type=ROCKETMQ",
                # Its own logs go here.
                *(f"-Duser.home={self.directory}", f"-Drocketmq.home.dir={self.directory}"),
                *("-cp", f"{LIBRARIES}/*", f"org.apache.rocketmq.{main}"),
                *arguments,
            ]
        )

    async def _answers(self) -> bool:
        """Whether the broker answers, and its name server knows of it."""
        with contextlib.suppress(RefusedError):
            await self._call(_GET_BROKER_RUNTIME_INFO, {})
            if self.name_server:
                port = int(self.name_server.partition(":")[2])
                await self._call(_GET_ROUTE, {"topic": _TEMPLATE_TOPIC}, port)
            return not self.grpc_port or await answers(self.grpc_port)
        return False

    async def prepare(self, topic: str) -> None:
        """Create the topic with one queue."""
        await self._create(topic, queues=1)

    async def prepare_work(self, topic: str) -> None:
        """Create the topic with several queues. The first pop creates the group."""
        await self._create(topic, QUEUES)

    async def _create(self, topic: str, queues: int) -> None:
        await self._call(
            _UPDATE_AND_CREATE_TOPIC,
            {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": queues,
                "writeQueueNums": queues,
                "perm": _READ_AND_WRITE,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": "false",
            },
        )

    async def _call(self, code: int, fields: dict[str, str | int], port: int | None = None) -> Answer:
        """Send one request on a new connection, to the broker unless a port is given. Raises RefusedError."""
        reader, writer = await asyncio.open_connection(HOST, port or self.port)
        answers = Answers()
        try:
            writer.write(frame(code, fields))
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                while data := await reader.read(65_536):
                    for answer in answers.feed(data):
                        answer.must_be_success()
                        return answer
            raise ConnectionResetError(f"{self.name} closed the connection")
        finally:
            writer.close()


def _free_pair() -> int:
    """A free port whose neighbour for the fast listener is free too."""
    while True:
        port = free_port()
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port - _FAST_PORT_BELOW))
            return port
