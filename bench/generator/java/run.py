"""Builds the Java generator and runs its loads.

A load is a process of its own. It says when measuring begins and ends, so the CPU time of the system counts
from then until then, and then what it measured; see `Load.java`.
"""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from hashlib import blake2s
from pathlib import Path

import msgspec

from bench.generator.run import LINE_MAX_BYTES, LoadFailedError

SOURCE = Path(__file__).parent
CACHE = Path.home() / ".cache" / "timerwheel-bench"
HEAP = "512m"


class Result(msgspec.Struct, frozen=True):
    """What a load measured; `latency` of requests and `lateness` of messages in microseconds, unordered."""

    measured: int = 0
    took_us: int = 0
    latency: list[int] = []
    lost: int = 0
    twice: int = 0
    early: int = 0
    lateness: list[int] = []
    stored_late_ms: int = 0
    """How much later than the due time the last message of a burst was stored: then it was none."""

    @property
    def fault(self) -> str | None:
        """What was wrong, as text."""
        found = {"lost": self.lost, "twice": self.twice, "early": self.early}
        said = [f"{count:,} {name}" for name, count in found.items() if count]
        if self.stored_late_ms:
            said.append(f"the last was stored {self.stored_late_ms} ms after its due time")
        return ", ".join(said) or None


class _Line(msgspec.Struct, frozen=True):
    event: str
    cpu_ns: int = 0


def libraries() -> Path:
    """Where the built generator and what it needs are; another source has another place."""
    digest = blake2s(digest_size=6)
    for path in sorted([SOURCE / "pom.xml", *SOURCE.rglob("*.java")]):
        digest.update(path.read_bytes())
    return CACHE / f"java-{digest.hexdigest()}" / "lib"


def missing() -> str | None:
    """The command that installs Java or Maven, or builds the generator, if that is still to do."""
    if shutil.which("java") is None:
        return "apt-get install openjdk-17-jdk-headless"
    if not libraries().is_dir():
        maven = "" if shutil.which("mvn") else "apt-get install maven && "
        return f"{maven}python -m bench.generator.java build"
    return None


def build() -> Path:
    """Compile the generator and copy what it needs; returns the directory of the jars."""
    place = libraries()
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as made:
        project, partial = Path(made) / "project", Path(made) / "lib"
        shutil.copytree(SOURCE, project, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        goals = ["package", "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(project / "pom.xml"), *goals], check=True)
        shutil.move(project / "target" / "load.jar", partial)
        shutil.rmtree(place, ignore_errors=True)
        partial.rename(place)
    return place


async def run(
    name_server: str,
    load: str,
    numbers: dict[str, int],
    home: Path,
    began: Callable[[], None],
    ended: Callable[[float], None],
) -> Result:
    """Run a load. Raises LoadFailedError with the last output of the process.

    `began` and `ended` are called when measuring begins and ends, `ended` with the CPU seconds that the
    generator used in between.
    """
    process = await asyncio.create_subprocess_exec(
        *("java", f"-Xms{HEAP}", f"-Xmx{HEAP}", "-Djava.net.preferIPv4Stack=true", f"-Duser.home={home}"),
        *("-cp", f"{libraries()}/*", "load.Load", name_server, load),
        *(f"{name}={value}" for name, value in numbers.items()),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LINE_MAX_BYTES,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    cpu_ns = 0
    try:
        async for text in process.stdout:
            line = msgspec.json.decode(text, type=_Line)
            if line.event == "measuring":
                cpu_ns = line.cpu_ns
                began()
            elif line.event == "measured":
                ended((line.cpu_ns - cpu_ns) / 1e9)
            else:
                return msgspec.json.decode(text, type=Result)
        raise LoadFailedError((await errors).decode(errors="replace")[-2000:].strip())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        errors.cancel()
