"""Java programs of the repository, compiled by Maven in a directory of their own."""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.harness.processes import PATIENCE_S

CLASS_PATH = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"


def is_missing() -> bool:
    return shutil.which("mvn") is None or shutil.which("java") is None


@functools.cache
def class_path(project: Path, *flags: str) -> str:
    """Compile a project; skips the test if Maven cannot get what it needs."""
    directory = Path(tempfile.mkdtemp(prefix="maven-"))
    copy = shutil.copytree(project, directory / "project", ignore=shutil.ignore_patterns("target"))
    listed = directory / "class-path"
    command = ["mvn", "-q", "-B", *flags, "compile", CLASS_PATH, f"-Dmdep.outputFile={listed}"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    if "Could not transfer" in done.stdout or "Unknown host" in done.stdout:
        pytest.skip("Maven cannot get RocketMQ's client")
    assert done.returncode == 0, done.stdout + done.stderr
    return f"{copy / 'target' / 'classes'}:{listed.read_text()}"
