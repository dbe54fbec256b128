"""Carries out a Dockerfile without Docker, in directories.

Each stage is a directory that stands for its file system: absolute paths of the image lead into it, in
instructions and in commands. The stage that is being made is at `root`, so that paths which programs write
into files are right there; finished ones are moved aside, and what is copied from them comes to where it was
made. Of the base image there are `python` and `pip`, this machine's; what pip would download, it gets from
the environment that the tests run in.

What only a container can have, such as a user, is left out.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.installed import PIP, PIP_VARIABLES, ROOT, clean_variables, links, project, site_of

# Where the image keeps what the Dockerfile puts into it; all else, such as /bin, is this machine's.
_OF_THE_IMAGE = re.compile(r"(?<![\w./-])/(opt|src|var)\b")
_FLAG = re.compile(r"--([\w-]+)=(\S+)\s+")
NOT_CARRIED_OUT = ("LABEL", "USER", "VOLUME", "EXPOSE")
_COMMENT = re.compile(r"^\s*#.*\n", re.MULTILINE)
_PIP = """#!{python}
import sys
sys.path.insert(0, {root!r})
from tests.harness.dockerfile import pip
sys.exit(pip(sys.argv[1:]))
"""


@dataclass
class Image:
    """A stage, and how it is run."""

    root: Path
    env: dict[str, str]
    workdir: str = "/"
    healthcheck: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def here(self, text: str) -> str:
        """A text in which paths of the image lead into its directory."""
        return _OF_THE_IMAGE.sub(lambda found: f"{self.root}{found[0]}", text)

    def argv(self, *arguments: str) -> list[str]:
        """How a container with these arguments, or the image's own, is started."""
        return self._found([*self.entrypoint, *(arguments or self.command)])

    def healthcheck_argv(self) -> list[str]:
        """How its health is asked for."""
        return self._found(self.healthcheck)

    def _found(self, words: list[str]) -> list[str]:
        program = shutil.which(words[0], path=self.env["PATH"])
        assert program, f"{words[0]} is not in the image"
        return [program, *map(self.here, words[1:])]


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Each instruction with what follows it, continued lines joined; comments are left out."""
    text = _COMMENT.sub("", dockerfile.read_text()).replace("\\\n", " ")
    found = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(name, value.strip()) for name, value in found]


def carry_out(dockerfile: Path, context: Path, scratch: Path) -> Image:
    """Make the image of a Dockerfile; fails at an instruction that fails, or that is not known here."""
    builder = _Builder(context, scratch)
    for name, value in instructions(dockerfile):
        builder.step(name, value)
    return builder.image


class _Builder:
    """Knows what each instruction does that the Dockerfile has."""

    def __init__(self, context: Path, scratch: Path) -> None:
        self.context = context
        self.root = scratch / "root"
        self.finished: dict[str, tuple[Path, Image]] = {}
        self.name = ""
        tools = scratch / "tools"
        tools.mkdir(parents=True)
        (tools / "python").symlink_to(sys.executable)
        (tools / "pip").write_text(_PIP.format(python=sys.executable, root=str(ROOT)))
        (tools / "pip").chmod(0o755)
        self.base_env = {**clean_variables(tools), "PATH": os.pathsep.join([str(tools), os.defpath])}
        self.image = Image(self.root, dict(self.base_env))
        self._does: dict[str, Callable[[str], None]] = {
            "FROM": self._begin,
            "WORKDIR": self._go,
            "COPY": self._copy,
            "RUN": self._run,
            "ARG": self._set,
            "ENV": self._set,
            "HEALTHCHECK": self._check_health_by,
            "ENTRYPOINT": self._enter_by,
            "CMD": self._run_by_default,
        }

    def step(self, name: str, value: str) -> None:
        """Carry out one instruction."""
        if name in NOT_CARRIED_OUT:
            return
        assert name in self._does, f"{name}: say in tests/harness/dockerfile.py what it does"
        self._does[name](value)

    def _begin(self, value: str) -> None:
        if self.root.exists():
            aside = self.root.with_name(f"stage-{len(self.finished)}")
            self.root.rename(aside)
            self.finished[self.name] = (aside, self.image)
        source, _, self.name = value.partition(" AS ")
        self.image = Image(self.root, dict(self.base_env))
        if source in self.finished:
            directory, before = self.finished[source]
            shutil.copytree(directory, self.root, symlinks=True)
            self.image.env |= before.env
        else:
            self.root.mkdir()

    def _go(self, value: str) -> None:
        self.image.workdir = value
        Path(self.image.here(value)).mkdir(parents=True, exist_ok=True)

    def _copy(self, value: str) -> None:
        flags, value = dict(_FLAG.findall(value)), _FLAG.sub("", value)
        assert flags.keys() <= {"from"}, flags
        *sources, target_text = shlex.split(value)
        base = self.finished[flags["from"]][0] if "from" in flags else self.context
        target = Path(self.image.here(str(Path(self.image.workdir) / target_text)))
        for source in sources:
            path = base / source.lstrip("/")
            if path.is_dir():
                shutil.copytree(path, target, symlinks=True, dirs_exist_ok=True)
            else:
                into = target / path.name if target_text.endswith("/") else target
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, into)

    def _run(self, value: str) -> None:
        # Whoever runs the tests stands for the image's user.
        command = re.sub(r"--(owner|group)=\w+ ", "", self.image.here(value))
        done = subprocess.run(
            ["sh", "-ec", command],
            cwd=self.root if self.image.workdir == "/" else self.image.here(self.image.workdir),
            env=self.image.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"

    def _set(self, value: str) -> None:
        for word in shlex.split(value):
            name, _, text = word.partition("=")
            self.image.env[name] = self._filled(self.image.here(text))

    def _filled(self, text: str) -> str:
        """A text with the variables that it names put in."""
        return re.sub(r"\$\{?(\w+)\}?", lambda found: self.image.env[found[1]], text)

    def _check_health_by(self, value: str) -> None:
        self.image.healthcheck = json.loads(value.partition("CMD ")[2])

    def _enter_by(self, value: str) -> None:
        self.image.entrypoint = json.loads(value)

    def _run_by_default(self, value: str) -> None:
        self.image.command = json.loads(value)


def pip(arguments: list[str]) -> int:
    """The base image's pip: what is asked for comes from here, build tools go when all is built."""
    python = Path(arguments[arguments.index("--python") + 1])
    site = site_of(python.parent.parent)
    links(project()["dependencies"], site)
    build_tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    tools = links(build_tools, site)
    try:
        offline = ["--no-index", "--no-build-isolation"]
        variables = {**os.environ, **PIP_VARIABLES}
        return subprocess.run([*PIP, *arguments, *offline], env=variables, check=False).returncode
    finally:
        for tool in tools:
            tool.unlink()
