"""`make cluster`: three brokers and two nodes of a service in three shards, on this machine, until Ctrl-C."""

import contextlib
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

from tests.harness.kafka.broker import Brokers, missing
from tests.harness.processes import COMMAND, environment

SHARDS = 3
PORTS = (8686, 8786)
STOP_S_MAX = 40.0


def run() -> None:
    """Start all, and end all in order when a signal comes."""
    if (command := missing(own=True)) is not None:
        raise SystemExit(f"needs Kafka: {command}")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory() as directory:
        brokers = Brokers(Path(directory, "brokers"))
        nodes: list[subprocess.Popen[bytes]] = []
        try:
            print("starting three brokers", flush=True)
            brokers.start()
            for place, port in enumerate(PORTS):
                data = Path(directory, f"node{place + 1}")
                flags = ("--port", port, "--data", data, "--shards", SHARDS, "--host", "127.0.0.1")
                journal = ("--journal", f"kafka://{brokers.address}/shop")
                nodes.append(
                    subprocess.Popen(
                        [*COMMAND, "serve", *map(str, (*flags, *journal))],
                        env=environment(),
                        start_new_session=True,  # Ctrl-C is for this process, which ends the others in order
                    )
                )
            while not stop.wait(0.5):
                ended = [node.args for node in nodes if node.poll() is not None]
                if ended:
                    raise SystemExit(f"a node ended by itself: {ended[0]}")
        finally:
            for node in nodes:
                node.send_signal(signal.SIGTERM)
            for node in nodes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    node.wait(STOP_S_MAX)
                node.kill()
            brokers.kill()
