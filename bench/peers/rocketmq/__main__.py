"""`python -m bench.peers.rocketmq fetch`: the broker of `pom.xml` and what it needs, from Maven Central."""

import shutil
import subprocess
import sys

from bench.peers.rocketmq.broker import LIBRARIES, POM


def fetch() -> None:
    """Copy the jars to LIBRARIES: all of them, or none if Maven fails."""
    partial = LIBRARIES.with_suffix(".part")
    shutil.rmtree(partial, ignore_errors=True)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(POM), *goal], check=True)
    shutil.rmtree(LIBRARIES, ignore_errors=True)
    partial.rename(LIBRARIES)
    print(f"{len(list(LIBRARIES.glob('*.jar')))} jars in {LIBRARIES}")


if __name__ == "__main__":
    if sys.argv[1:] != ["fetch"]:
        raise SystemExit(__doc__)
    fetch()
