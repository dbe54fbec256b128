"""Java programs of the repository, compiled by Maven in directories of their own, each only once."""

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.harness.processes import PATIENCE_S, QUICK_JAVA_FLAGS

HOME = Path.home() / ".cache" / "timerwheel-test" / "maven"
"""What was compiled, by a hash of what it was compiled from."""
CLASS_PATH = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"


def is_missing() -> bool:
    return shutil.which("mvn") is None or shutil.which("java") is None


@functools.cache
def class_path(project: Path, *flags: str) -> str:
    """Compile a project, unless it was compiled before; skips the test if Maven cannot get what it needs."""
    compiled = HOME / _hash_of(project, flags)
    listed = compiled / "class-path"
    if not listed.exists() or not all(Path(jar).exists() for jar in listed.read_text().split(os.pathsep)):
        shutil.rmtree(compiled, ignore_errors=True)
        _compile(project, flags, compiled)
    return f"{compiled / 'classes'}{os.pathsep}{listed.read_text()}"


def _hash_of(project: Path, flags: tuple[str, ...]) -> str:
    found = hashlib.sha256(" ".join(flags).encode())
    for path in sorted(project.rglob("*")):
        inside = path.relative_to(project)
        if path.is_file() and inside.parts[0] != "target":
            found.update(f"{inside} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()[:32]


def _compile(project: Path, flags: tuple[str, ...], to: Path) -> None:
    """Compile in another directory, so that what is in `to` is whole."""
    HOME.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME) as name:
        made = Path(name) / "made"
        copy = shutil.copytree(project, Path(name) / "project", ignore=shutil.ignore_patterns("target"))
        made.mkdir()
        output = f"-Dmdep.outputFile={made / 'class-path'}"
        done = subprocess.run(
            ["mvn", "-q", "-B", *flags, "compile", CLASS_PATH, output],
            cwd=copy,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
            env={**os.environ, "MAVEN_OPTS": " ".join(QUICK_JAVA_FLAGS)},
        )
        if "Could not transfer" in done.stdout or "Unknown host" in done.stdout:
            pytest.skip("Maven cannot get RocketMQ's client")
        assert done.returncode == 0, done.stdout + done.stderr
        classes = copy / "target" / "classes"
        classes.mkdir(parents=True, exist_ok=True)  # a project may have no sources, only what it needs
        classes.rename(made / "classes")
        with contextlib.suppress(FileExistsError):  # another worker has compiled it, too
            made.rename(to)
