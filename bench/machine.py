"""Facts about the machine that a figure was measured on."""

import os
import platform
import subprocess
from pathlib import Path


def facts(work: Path) -> dict[str, str]:
    """Facts by name; `work` is the data directory of the systems."""
    return {
        "processor": f"{os.cpu_count()} cores, {_field('/proc/cpuinfo', 'model name')}",
        "memory": f"{int(_field('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.0f} GiB",
        "file system": _file_system(work),
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "load average before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def commit() -> str:
    """The commit of the project, with `+` if files differ from it; empty outside a checkout."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()


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
