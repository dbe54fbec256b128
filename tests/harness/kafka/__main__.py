"""`python -m tests.harness.kafka fetch`: Kafka's jars from Maven Central, and an archive of their classes.

`python -m tests.harness.kafka cluster`: brokers and nodes on this machine, until Ctrl-C.

`python -m tests.harness.kafka broker`: one broker on this machine, until Ctrl-C, for the benchmark.
"""

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.harness.kafka.broker import ARCHIVE, HOME, LIBRARIES, POM, Broker
from tests.harness.kafka.cluster import run


def fetch() -> None:
    """Copy the jars to LIBRARIES: all of them, or none if Maven fails. Then make the archive."""
    partial = HOME / "lib.part"
    shutil.rmtree(partial, ignore_errors=True)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(POM), *goal], check=True)
    shutil.rmtree(LIBRARIES, ignore_errors=True)
    partial.rename(LIBRARIES)
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker(Path(directory))
        broker.start(f"-XX:ArchiveClassesAtExit={ARCHIVE}")
        broker.kill(signal.SIGTERM)
    print(f"{len(list(LIBRARIES.glob('*.jar')))} jars in {LIBRARIES}")


def broker() -> None:
    """Run one broker; its address is the first line of the output."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as directory:
        made = Broker(Path(directory))
        try:
            made.start()
            print(made.address, flush=True)
            signal.pause()
        except KeyboardInterrupt:
            pass
        finally:
            made.kill()


if __name__ == "__main__":
    if sys.argv[1:] == ["cluster"]:
        run()
    elif sys.argv[1:] == ["broker"]:
        broker()
    elif sys.argv[1:] == ["fetch"]:
        fetch()
    else:
        raise SystemExit(__doc__)
