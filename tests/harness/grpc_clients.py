"""RocketMQ's own gRPC clients, each a program that is driven by lines of JSON.

A line `{"do": "send", ...}` is answered by a line `@{...}`, with `error` and `detail` if the client raised.
All programs know the same commands: send, recall, receive, ack, hide (change the invisible duration), push
(start a push consumer that fails so many times) and consumed (what it got, once there were so many). Those
for Python, Java, Go and Rust know transactions too: begin (with the outcome of checks), end, and checked
(what the client was asked about, once there was so much). The client for Go does not know recalls, nor does
it raise when the end of a transaction is refused. That for Rust knows neither recalls nor hide nor push, ends
a transaction once, and cannot be told which authority it is to trust.
"""

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness.processes import PATIENCE_S, ROOT

UNREACHED = (
    *("Could not transfer", "Could not resolve", "ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT"),
    *("dial tcp", "no such host"),
)
"""What Maven, npm, Go and Cargo say where there is no network."""
NO_RECALLS = frozenset({"go", "rust"})
PROGRAMS = ROOT / "tests" / "clients"
ENDING_S = 10
COMPILED = Path.home() / ".cache" / "timerwheel-test" / "rust"
"""What Cargo compiled, which takes it minutes the first time."""


class RefusedCallError(Exception):
    """The client got this code."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


class GrpcClient:
    """A client program that runs; each command waits for its answer."""

    def __init__(self, process: subprocess.Popen[str], language: str) -> None:
        self._process = process
        self.language = language
        self._answers: queue.Queue[str] = queue.Queue()
        self._log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            # The client's own log goes the same way, piece by piece: an answer may come within a line of it.
            said, is_answer, answer = line.partition("@{")
            if is_answer:
                self._answers.put("{" + answer)
            if said:
                self._log.append(said)
        self._answers.put("")

    def ended(self) -> None:
        """Read what the program, which has ended, said last."""
        self._reader.join(ENDING_S)

    def do(self, command: str, **given: Any) -> dict[str, Any]:
        """Run a command; RefusedCallError if the client raised."""
        self._process.stdin.write(json.dumps({"do": command, **given}) + "\n")
        self._process.stdin.flush()
        line = self._answers.get(timeout=PATIENCE_S)
        if not line:
            pytest.fail("the client program ended: " + "".join(self._log[-50:]))
        answer = json.loads(line)
        if "error" in answer:
            raise RefusedCallError(answer["error"], answer["detail"])
        return answer

    def send(self, topic: str, body: str, **given: Any) -> dict[str, Any]:
        """Send a message: its id, and a recall handle if it is delayed."""
        return self.do("send", topic=topic, body=body, **given)

    def receive(self, topic: str, group: str, **given: Any) -> list[dict[str, Any]]:
        """Receive messages."""
        return self.do("receive", topic=topic, group=group, **given)["messages"]

    def receive_all(self, topic: str, group: str, count: int, **given: Any) -> list[dict[str, Any]]:
        """Receive and acknowledge until there were so many."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            for message in self.receive(topic, group, **given):
                self.do("ack", message_id=message["id"])
                found.append(message)
        return found

    def consumed(self, topic: str, count: int) -> list[dict[str, Any]]:
        """What the push consumer got, once there were so many."""
        return self.do("consumed", topic=topic, count=count)["messages"]


def _python(_: Path) -> list[str]:
    pytest.importorskip("grpc", reason="needs the extra grpc")
    return [sys.executable, str(PROGRAMS / "rocketmq-grpc-python" / "client.py")]


def _node(scratch: Path) -> list[str]:
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("needs node and npm")
    folder = scratch / "node"
    if not (folder / "node_modules").exists():
        shutil.copytree(PROGRAMS / "rocketmq-grpc-node", folder, dirs_exist_ok=True)
        _install(["npm", "install", "--no-audit", "--no-fund", "--silent"], folder)
    return ["node", str(folder / "client.js")]


def _java(scratch: Path) -> list[str]:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("needs Maven and a JDK from 11 on")
    folder = scratch / "java"
    if not (folder / "target" / "classpath").exists():
        shutil.copytree(PROGRAMS / "rocketmq-grpc-java", folder, dirs_exist_ok=True)
        _install(["mvn", "-q", "-B", "compile", "dependency:build-classpath"], folder)
    classpath = f"{folder / 'target' / 'classes'}:{(folder / 'target' / 'classpath').read_text().strip()}"
    return ["java", "-XX:TieredStopAtLevel=1", f"-Duser.home={folder}", "-cp", classpath, "GrpcClient"]


def _go(scratch: Path) -> list[str]:
    go = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
    if go is None:
        pytest.skip("needs Go")
    folder = scratch / "go"
    if not (folder / "client").exists():
        shutil.copytree(PROGRAMS / "rocketmq-grpc-go", folder, dirs_exist_ok=True)
        _install([go, "build", "-mod=mod", "-o", "client", "."], folder)
    return [str(folder / "client")]


def _rust(scratch: Path) -> list[str]:
    cargo = shutil.which("cargo", path=f"{os.environ['PATH']}:{Path.home() / '.cargo' / 'bin'}")
    if cargo is None:
        pytest.skip("needs Cargo")
    project, program = PROGRAMS / "rocketmq-grpc-rust", scratch / "client"
    if not program.exists():
        _install([cargo, "build", "--quiet", "--locked", "--target-dir", str(COMPILED)], project)
        shutil.copy(COMPILED / "debug" / "client", program)
    return [str(program)]


def _install(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    said = done.stdout + done.stderr
    if done.returncode and any(sign in said for sign in UNREACHED):
        pytest.skip(f"{command[0]} reaches no registry: {said[-500:]}")
    assert not done.returncode, said


LANGUAGES: dict[str, Callable[[Path], list[str]]] = {
    "python": _python,
    "node": _node,
    "java": _java,
    "go": _go,
    "rust": _rust,
}


@contextmanager
def client_of(
    language: str, scratch: Path, endpoint: str, access_key: str = "", authority: Path | None = None
) -> Iterator[GrpcClient]:
    """A client of this language, over TLS if it trusts an authority; `scratch` keeps what it installs."""
    scratch.mkdir(exist_ok=True)
    command = [*LANGUAGES[language](scratch), endpoint, access_key, "tls" if authority else "plain"]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    trusted = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority)} if authority else {}
    # Outside of the repository, whose folder `rocketmq` is not the client's package.
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=scratch,
        env={**kept, **trusted, "HOME": str(scratch), "TZ": "UTC"},
    ) as process:
        client = GrpcClient(process, language)
        try:
            yield client
        finally:
            process.kill()
            client.ended()  # before what it reads is closed
