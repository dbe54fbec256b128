"""Apache Kafka as one process on the loopback: broker and controller, with its data in one directory.

The jars come from Maven Central by `python -m tests.harness.kafka fetch`, which also makes the archive of
classes that halves the start. Ready is when the broker answers: 2 s after the start on an idle machine.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
import xml.etree.ElementTree as ET
from pathlib import Path

POM = Path(__file__).with_name("pom.xml")
VERSION = ET.parse(POM).findtext(".//{*}dependency/{*}version") or ""
HOME = Path.home() / ".cache" / "timerwheel-test" / f"kafka-{VERSION}"
LIBRARIES = HOME / "lib"
ARCHIVE = HOME / "classes.jsa"
HOST = "127.0.0.1"
GIVEN = "TIMERWHEEL_TEST_KAFKA"
"""Environment variable with the HOST:PORT of a broker to use instead of an own one."""
READY_S = 120.0

_CLUSTER = "4L6g3nShT-eMCtK--X86sw"
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=2
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""
_LEAN = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:disable", "-Xlog:all=error:stderr")
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
    """One broker; `kill` and `start` may follow each other, its data stays."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data = directory / "data"
        self.port = _free_port()
        self.address = f"{HOST}:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._settings = directory / "server.properties"
        self._settings.write_text(
            _SETTINGS.format(host=HOST, port=self.port, controller=_free_port(), data=self._data)
        )
        tool = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._settings)]
        with (directory / "format.txt").open("wb") as out:
            command = ["java", *_LEAN, *_CLASS_PATH, *tool, "--ignore-formatted"]
            subprocess.run(command, stdout=out, stderr=out, check=True)

    def start(self, *flags: str) -> None:
        """Start it, and wait until it listens."""
        archive = flags or (f"-XX:SharedArchiveFile={ARCHIVE}",)
        command = ["java", *_LEAN, *archive, *_CLASS_PATH, "kafka.Kafka", str(self._settings)]
        with (self._directory / "broker.txt").open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)
        until = time.monotonic() + READY_S
        while not _listens(self.port):
            assert self._process.poll() is None, (self._directory / "broker.txt").read_text()[-2000:]
            assert time.monotonic() < until, "the broker does not listen"
            time.sleep(0.05)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, and wait for the end."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
