"""A standalone Spark cluster of the PySpark package on loopback: a master, and workers on different hosts.

Unlike with `local-cluster`, its workers count as different hosts. Spark runs the second attempt of a task on
another host only.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.harness.ports import reserved_port
from tests.harness.processes import QUICK_JAVA, environment

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
HOSTS = ("127.0.0.2", "127.0.0.3")
ENDING_S = 60


@contextmanager
def standalone(work: Path) -> Iterator[list[str]]:
    """The options `--master` and `--conf` of a command that runs on it; one core for each of two workers."""
    port = reserved_port()
    address = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        master = ("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        stack.enter_context(_process(*master, log=work / "master.log"))
        for host in HOSTS:
            words = ("--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0")
            place = ("--work-dir", str(work / host))
            stack.enter_context(_process("worker.Worker", *words, *place, address, log=work / f"{host}.log"))
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            # The first task waits for both executors.
            "spark.cores.max": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
        }
        settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        yield ["--master", address, *settings]


@contextmanager
def _process(name: str, *words: str, log: Path) -> Iterator[None]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(SPARK_CLASS), f"org.apache.spark.deploy.{name}", *words],
            env=environment(**QUICK_JAVA, SPARK_LOCAL_IP="127.0.0.1", SPARK_NO_DAEMONIZE="1"),
            stdout=file,
            stderr=file,
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
