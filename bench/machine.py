"""Facts about the machine that a figure was measured on."""

import os
import platform
import subprocess
from pathlib import Path
from time import perf_counter

RESULTS = ("bench/results", "bench/RESULTS.md")
LOOP_STEPS = 5_000_000
LOAD, LOOP = "load average before", "Python loop before"
VARYING = (LOAD, LOOP)
"""The facts that differ from run to run on one machine."""


def facts(work: Path) -> dict[str, str]:
    """Facts by name; `work` is the data directory of the systems."""
    return {
        "processor": f"{os.cpu_count()} cores, {_field('/proc/cpuinfo', 'model name')}",
        "memory": f"{int(_field('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.0f} GiB",
        "file system": _file_system(work),
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        LOOP: f"{_loop_rate() / 1e6:.0f} million/s",
        LOAD: " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def commit() -> str:
    """The commit of the project, with `+` if files but results differ from it; empty outside a checkout."""
    found = _git("rev-parse", "--short", "HEAD").stdout.strip()
    unlike = _git("diff", "--quiet", "HEAD", "--", ".", *(f":!{path}" for path in RESULTS)).returncode
    return found + "+" if found and unlike else found


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[1]
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)


def _loop_rate() -> float:
    """How fast Python counts, now: virtual machines of one name differ by factors, and so do their hours."""
    began = perf_counter()
    for _ in range(LOOP_STEPS):
        pass
    return LOOP_STEPS / (perf_counter() - began)


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def _file_system(path: Path) -> str:
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [(mount, kind) for mount, kind in mounts if path.resolve().is_relative_to(mount)]
    return max(inside, key=lambda found: len(found[0]))[1] if inside else "unknown"
