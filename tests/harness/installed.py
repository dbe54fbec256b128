"""Environments that hold what the packages installed here give them: no registry and no network is asked.

A clean environment has none of this project's extras and cannot see the checkout. What it may use are the
distributions that a list of requirements asks for, with what those ask for: as links to the files of the
environment that the tests run in, which makes one in a second.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
# What is no part of the project: what tools keep, data, and what was built.
NOT_SOURCE = (
    ".git",
    ".venv",
    ".*_cache",
    ".hypothesis",
    "__pycache__",
    "data",
    "build",
    "dist",
    "*.egg-info",
)
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
# Few of the modules will be used: Python compiles these when they are.
PIP_VARIABLES = {"PIP_NO_COMPILE": "1"}


def project() -> dict:
    """The table `project` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def copy_source(to: Path) -> Path:
    """The project's files as a clone has them: what is built there leaves nothing in the checkout."""
    return shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(*NOT_SOURCE), symlinks=True)


def needed_by(requirements: Iterable[str]) -> dict[str, Distribution]:
    """The installed distributions that meet requirements, and theirs; by name."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(Requirement(text), "") for text in requirements]
    while todo:
        wanted, extra = todo.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        installed = found.setdefault(wanted.name, distribution(wanted.name))
        for asked in {"", *wanted.extras}:
            if (wanted.name, asked) not in seen:
                seen.add((wanted.name, asked))
                todo += [(Requirement(text), asked) for text in installed.requires or ()]
    return found


def links(requirements: Iterable[str], site: Path) -> list[Path]:
    """Link to what requirements need, in the directory of an environment's packages."""
    made = []
    for installed in needed_by(requirements).values():
        tops = {file.parts[0] for file in installed.files or ()}
        for top in sorted(tops - {"..", "__pycache__"}):
            link = site / top
            if top.endswith(".pth") or link.exists():
                continue
            link.symlink_to(installed.locate_file(top))
            made.append(link)
    return made


def site_of(environment: Path) -> Path:
    """Where an environment's packages are."""
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def make_clean(at: Path) -> Path:
    """An environment with what the core of the project needs, and nothing else, not even pip."""
    venv.create(at, with_pip=False, symlinks=True)
    links(project()["dependencies"], site_of(at))
    return at


def clean_variables(environment: Path, **changed: str) -> dict[str, str]:
    """The variables of a shell in which an environment is active, and nothing leads to the checkout."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TIMERWHEEL_", "PYTHON", "VIRTUAL_ENV", "PIP_"))
    }
    path = os.pathsep.join([str(environment / "bin"), os.defpath])
    return {**kept, "PATH": path, "TZ": "UTC", "LC_ALL": "C.UTF-8", "COLUMNS": "200", **changed}


def install(what: Path, environment: Path) -> None:
    """Have pip install a wheel; it fails if a requirement of the wheel is not met there."""
    subprocess.run(
        [*PIP, "--python", str(environment), "install", "--quiet", "--no-index", "--no-cache-dir", str(what)],
        check=True,
        env=clean_variables(environment, **PIP_VARIABLES),
        cwd=environment,
    )


def uninstall(environment: Path, name: str) -> None:
    """Have pip remove a distribution."""
    subprocess.run(
        [*PIP, "--python", str(environment), "uninstall", "--quiet", "--yes", name],
        check=True,
        env=clean_variables(environment, **PIP_VARIABLES),
        cwd=environment,
    )
