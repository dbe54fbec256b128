"""Apache Kafka on the loopback: processes that are broker and controller, each with its data in a directory.

The jars come from Maven Central by `python -m tests.harness.kafka fetch`, which also makes the archive of
classes that halves the start. Ready is when the broker answers: 2 s after the start on an idle machine.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
import xml.etree.ElementTree as ET
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path

from tests.harness.ports import HOST, reserved_port

POM = Path(__file__).with_name("pom.xml")
VERSION = ET.parse(POM).findtext(".//{*}dependency/{*}version") or ""
HOME = Path.home() / ".cache" / "timerwheel-test" / f"kafka-{VERSION}"
LIBRARIES = HOME / "lib"
ARCHIVE = HOME / "classes.jsa"
FORMATTED = HOME / "formatted"
GIVEN = "TIMERWHEEL_TEST_KAFKA"
"""Environment variable with the HOST:PORT of a broker to use instead of an own one."""
READY_S = 120.0

_CLUSTER = "4L6g3nShT-eMCtK--X86sw"
_SETTINGS = """\
process.roles={roles}
node.id={number}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=2
offsets.topic.replication.factor={replicas}
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
share.coordinator.state.topic.num.partitions=2
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync}
group.initial.rebalance.delay.ms=0
"""
_OPEN = """\
listeners=PLAINTEXT://{host}:{port}{controls}
advertised.listeners=PLAINTEXT://{host}:{port}
"""
# Who comes by the listener INTERNAL may do everything: the broker itself, and the test that gives rights.
_GUARDED = """\
listeners=INTERNAL://{host}:{internal},CLIENTS://{host}:{port}{controls}
advertised.listeners=INTERNAL://{host}:{internal},CLIENTS://{host}:{port}
listener.security.protocol.map=INTERNAL:PLAINTEXT,CLIENTS:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=INTERNAL
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.clients.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={certificate}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
# Controllers of a cluster could not vote: they ask each other before the rules are read.
_AUTHORIZER = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""
_LEAN = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:disable", "-Xlog:all=error:stderr")
AS_SHIPPED = (
    *("-Xms1g", "-Xmx1g", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:TieredStopAtLevel=4"),
)
"""Flags of a broker as `kafka-server-start.sh` starts it, for measurements: a lean one pauses more often."""
_CLASS_PATH = ("-cp", f"{LIBRARIES}/*")


def missing(*, own: bool = False) -> str | None:
    """The command that installs what a broker needs, if there is none; with `own`, for one to kill."""
    if os.environ.get(GIVEN) and not own:
        return None
    if shutil.which("java") is None:
        return "apt-get install openjdk-17-jre-headless"
    if not ARCHIVE.is_file():
        maven = "" if shutil.which("mvn") else "apt-get install maven && "
        return f"{maven}python -m tests.harness.kafka fetch"
    return None


class Broker:
    """One broker; `kill` and `start` may follow each other, its data stays.

    It is the `number`th of a cluster whose controllers have these ports; by default a cluster of its own. One
    beyond the controllers is a broker only. `more` are further settings.
    With a certificate, it takes clients over TLS who log in with SCRAM, and do what an ACL lets them; at the
    address `internal` it lets everybody do everything.
    """

    def __init__(
        self,
        directory: Path,
        number: int = 1,
        controllers: Sequence[int] = (),
        certificate: Path | None = None,
        host: str = HOST,
        more: str = "",
    ) -> None:
        self._host = host
        self.controllers = controllers = controllers or (reserved_port(),)
        is_controller = number <= len(controllers)
        self._directory = directory
        self._data = directory / "data"
        self.port = reserved_port()
        self.address = f"{host}:{self.port}"
        internal = reserved_port() if certificate is not None else self.port
        self.internal = f"{host}:{internal}"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._settings = directory / "server.properties"
        self._settings.write_text(
            _SETTINGS.format(
                roles="broker,controller" if is_controller else "broker",
                number=number,
                voters=",".join(f"{at}@{host}:{port}" for at, port in enumerate(controllers, 1)),
                replicas=len(controllers),
                in_sync=max(len(controllers) - 1, 1),
                data=self._data,
            )
            + (_OPEN if certificate is None else _GUARDED).format(
                host=host,
                port=self.port,
                internal=internal,
                controls=f",CONTROLLER://{host}:{controllers[number - 1]}" if is_controller else "",
                certificate=certificate,
            )
            + (_AUTHORIZER if certificate is None and len(controllers) == 1 else "")
            + more
        )
        if not self._data.exists():
            self._format(number)

    def _format(self, number: int) -> None:
        """Make the data directory; by Kafka's tool, which takes a JVM's start, only for the first broker."""
        if not FORMATTED.exists():
            tool = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._settings)]
            with (self._directory / "format.txt").open("wb") as out:
                subprocess.run(["java", *_LEAN, *_CLASS_PATH, *tool], stdout=out, stderr=out, check=True)
            partial = FORMATTED.with_suffix(f".{os.getpid()}")
            shutil.copytree(self._data, partial)
            with contextlib.suppress(OSError):  # another process was faster
                partial.rename(FORMATTED)
            shutil.rmtree(partial, ignore_errors=True)
            return
        shutil.copytree(FORMATTED, self._data)
        name = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        lines = [f"node.id={number}", f"directory.id={name}", "version=1", f"cluster.id={_CLUSTER}"]
        (self._data / "meta.properties").write_text("\n".join(lines) + "\n")

    def start(self, *flags: str) -> None:
        """Start it, and wait until it listens."""
        self.launch(*flags)
        self.wait()

    def launch(self, *flags: str) -> None:
        """Start it. Of a cluster it listens once most of them are started."""
        archive = flags or (f"-XX:SharedArchiveFile={ARCHIVE}",)
        command = ["java", *_LEAN, *archive, *_CLASS_PATH, "kafka.Kafka", str(self._settings)]
        with (self._directory / "broker.txt").open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)

    def wait(self) -> None:
        """Wait until it listens."""
        assert self._process is not None
        until = time.monotonic() + READY_S
        while not _listens(self._host, self.port):
            assert self._process.poll() is None, (self._directory / "broker.txt").read_text()[-2000:]
            assert time.monotonic() < until, "the broker does not listen"
            time.sleep(0.05)

    def hang(self) -> None:
        """Have it answer nothing, with its connections open, until it is killed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, and wait for the end."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None


class Brokers:
    """A cluster; each broker may be killed and started again."""

    def __init__(self, directory: Path, count: int = 3) -> None:
        controllers = [reserved_port() for _ in range(count)]
        self.each = [Broker(directory / str(at), at, controllers) for at in range(1, count + 1)]
        self.address = ",".join(broker.address for broker in self.each)

    def start(self) -> None:
        """Start all, and wait until all listen."""
        for broker in self.each:
            broker.launch()
        for broker in self.each:
            broker.wait()

    def kill(self) -> None:
        """End all."""
        for broker in self.each:
            broker.kill()


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
