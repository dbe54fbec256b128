"""What is built is whole, and runs where there is nothing but what it says it needs.

The source distribution and, from it, the wheel are built from a copy of the checkout. The wheel is installed
by pip into an environment that has only the core's requirements: see `tests.harness.installed`.
"""

import contextlib
import email
import re
import shlex
import signal
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest
from packaging.metadata import Metadata

from tests.harness.installed import (
    ROOT,
    clean_variables,
    copy_source,
    install,
    links,
    make_clean,
    project,
    site_of,
    uninstall,
)
from tests.harness.processes import PATIENCE_S, QUICK_JAVA, Result
from timerwheel.cli.main import USAGE

LINKED = ("api", "rocketmq", "spark_jobs", "store")
"""Folders of the project that are packages of `timerwheel` by links in its folder."""
NO_PACKAGE_FILES = ("__pycache__", ".DS_Store")
SYSTEMD = ROOT / "packaging" / "systemd"


class Built(NamedTuple):
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    root = tmp_path_factory.mktemp("built")
    copy_source(root / "source")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", root / "dist", root / "source"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "SetuptoolsDeprecationWarning" not in done.stderr
    [sdist] = (root / "dist").glob("*.tar.gz")
    [wheel] = (root / "dist").glob("*.whl")
    return Built(sdist, wheel)


def run(environment: Path, *command: object, cwd: Path) -> Result:
    """Run a command of an environment to its end."""
    done = subprocess.run(
        [environment / "bin" / str(command[0]), *map(str, command[1:])],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=clean_variables(environment, **QUICK_JAVA),
        timeout=PATIENCE_S,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def clean(built, tmp_path_factory) -> Path:
    """An environment into which the wheel was installed."""
    environment = make_clean(tmp_path_factory.mktemp("clean") / "environment")
    install(built.wheel, environment)
    return environment


class Running(NamedTuple):
    url: str
    cwd: Path
    """Where its data is, in `data`."""


@pytest.fixture(scope="module")
def service(clean, tmp_path_factory) -> Iterator[Running]:
    """The installed service; stopped in order when the last test is done with it."""
    cwd = tmp_path_factory.mktemp("service")
    with serving_in(clean, cwd) as url:
        yield Running(url, cwd)


@contextlib.contextmanager
def serving_in(environment: Path, cwd: Path) -> Iterator[str]:
    """A service of an environment, its data in `cwd`; the URL."""
    flags = ["--port", "0", "--disk-reserve", "0", "--log-level", "warning", "--json"]
    with subprocess.Popen(
        [environment / "bin" / "timerwheel", "serve", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=clean_variables(environment),
    ) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield orjson.loads(line)["url"]
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_S)
            assert (process.returncode, out, err) == (0, "", "")
        finally:
            process.kill()


# ---------------------------------------------------------------------- what is built


def names_in_wheel(built: Built) -> set[str]:
    with zipfile.ZipFile(built.wheel) as wheel:
        return set(wheel.namelist())


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(built):
    inside = {name for name in names_in_wheel(built) if ".dist-info/" not in name}
    package = ROOT / "timerwheel"
    assert {link.name: link.readlink() for link in package.iterdir() if link.is_symlink()} == {
        name: Path("..", name) for name in LINKED
    }
    files = {
        f"timerwheel/{path.relative_to(top)}"
        for top in (package, ROOT)
        for folder in ([package] if top == package else [ROOT / name for name in LINKED])
        for path in folder.rglob("*")
        if path.is_file() and not set(path.parts) & set(NO_PACKAGE_FILES)
    }
    assert inside == files
    assert "timerwheel/py.typed" in inside


def test_the_wheel_says_what_it_is(built):
    with zipfile.ZipFile(built.wheel) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        raw = wheel.read(name)
        folder = name.removesuffix("METADATA")
        inside = wheel.namelist()
        entry_points = wheel.read(f"{folder}entry_points.txt").decode()
    metadata = Metadata.from_email(raw, validate=True)
    told = project()
    assert (metadata.name, str(metadata.version)) == (told["name"], told["version"])
    assert metadata.summary == told["description"]
    assert metadata.license_expression == "Apache-2.0"
    assert f"{folder}licenses/LICENSE" in inside
    assert set(metadata.license_files or ()) == {
        file.removeprefix(f"{folder}licenses/") for file in inside if file.startswith(f"{folder}licenses/")
    }
    assert metadata.description_content_type == "text/markdown"
    assert email.message_from_bytes(raw).get_payload().startswith("# timerwheel")
    assert "timerwheel = timerwheel.__main__:main" in entry_points


def test_the_source_distribution_is_the_project(built):
    with tarfile.open(built.sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "CHANGELOG.md",
        "Dockerfile",
        "LICENSE",
        "Makefile",
        "compose.yaml",
        "doc/install.md",
        "examples/worker.py",
        "packaging/systemd/timerwheel.service",
        "tests/conftest.py",
        "tests/unit/golden/record-v1-timer.hex",
        "bench/__main__.py",
    ):
        assert name in inside
    assert not [name for name in inside if "__pycache__" in name or name.endswith(".pyc")]


# ---------------------------------------------------------------------- what runs


def test_nothing_of_the_checkout_is_used(clean, tmp_path):
    code = "import sys, timerwheel; print(timerwheel.__file__, *sys.path, sep='\\n')"
    told = run(clean, "python", "-c", code, cwd=tmp_path)
    assert told.code == 0, told.err
    timerwheel, *path = told.out.splitlines()
    assert Path(timerwheel).is_relative_to(site_of(clean))
    assert not [entry for entry in path if Path(entry).is_relative_to(ROOT)]


USERS = {
    "api/__init__.py": "",
    "api/app.py": "HERS = 1",
    "store/index.py": "HERS = 2",
    "spark_jobs/x.py": "HERS = 3",
}
SEND = """
import api.app, spark_jobs.x, store.index, sys
from timerwheel.client import Client
import asyncio
async def main():
    async with Client(sys.argv[1]) as client:
        await client.send("orders", "17")
        await client.send("orders", "18", delay="1h")
asyncio.run(main())
print(api.app.HERS, store.index.HERS, spark_jobs.x.HERS)
"""


class Hers(NamedTuple):
    """An environment with packages of a user's own, and the folder in which she runs it, with the same."""

    environment: Path
    cwd: Path
    before: set[str]

    def sent(self) -> str:
        """What her program, which sends two messages by the client, says of her own packages."""
        with serving_in(self.environment, self.cwd) as url:
            done = run(self.environment, "python", "-c", SEND, url, cwd=self.cwd)
            assert done.code == 0, done.err
            words = ("receive", "orders", "--json", "--url", url)
            came = run(self.environment, "timerwheel", *words, cwd=self.cwd)
            assert [line["body"] for line in came.lines] == ["17"]
        return done.out


@pytest.fixture
def hers(built, tmp_path):
    environment, cwd = make_clean(tmp_path / "environment"), tmp_path / "hers"
    links(project()["optional-dependencies"]["spark"], site_of(environment))
    for folder in (site_of(environment), cwd):
        for name, text in USERS.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    before = {path.name for path in site_of(environment).iterdir()}
    install(built.wheel, environment)
    return Hers(environment, cwd, before)


def test_it_leaves_a_users_own_packages_of_the_same_names_alone(hers):
    """In her site-packages, and in the folder in which she runs it."""
    site = site_of(hers.environment)
    added = {path.name for path in site.iterdir()} - hers.before
    assert {name for name in added if not name.endswith(".dist-info")} == {"timerwheel"}
    assert hers.sent() == "1 2 3\n"
    uninstall(hers.environment, "timerwheel")
    assert {path.name for path in site.iterdir()} - {"__pycache__"} == hers.before
    for folder in (site, hers.cwd):
        assert {name: (folder / name).read_text() for name in USERS} == USERS


@pytest.mark.torture
def test_its_jobs_on_spark_run_beside_a_users_own_packages_of_the_same_names(hers):
    hers.sent()
    forecast = run(hers.environment, "timerwheel", "forecast", "--data", "data", "--json", cwd=hers.cwd)
    assert forecast.json["waiting"] == 1, forecast.err


def test_the_command_tells_its_version(clean, tmp_path):
    assert run(clean, "timerwheel", "--version", cwd=tmp_path) == (
        0,
        f"timerwheel {project()['version']}\n",
        "",
    )


def test_it_serves_sends_delivers_and_draws_the_wheel(clean, service):
    def timerwheel(*arguments: object) -> Result:
        return run(clean, "timerwheel", *arguments, cwd=service.cwd)

    url = ("--url", service.url)
    waiting = timerwheel("send", "orders", "later", "--delay", "1h", "--json", *url).json
    assert waiting["state"] == "scheduled"
    assert timerwheel("send", "orders", "close order 17", "--delay", "50ms", *url).code == 0
    [came] = timerwheel("receive", "orders", "--follow", "--max", "1", "--json", *url).lines
    assert came["body"] == "close order 17"
    assert "1 scheduled" in timerwheel("slots").out


def test_its_page_and_all_that_the_page_names_come_with_it(service):
    def fetched(path: str) -> str:
        connection = HTTPConnection(service.url.removeprefix("http://"), timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200, path
            return answer.read().decode()

    named = re.findall(r'(?:src|href)="(/?[\w./-]+\.(?:js|css|svg|png|ico))"', fetched("/"))
    assert named
    for path in named:
        assert fetched("/" + path.lstrip("/"))


def test_what_needs_an_extra_says_which(clean, tmp_path):
    told = run(clean, "timerwheel", "forecast", cwd=tmp_path)
    assert told.code == USAGE
    assert "pip install 'timerwheel[spark]'" in told.err
    assert "Traceback" not in told.err


# ---------------------------------------------------------------------- under systemd


def test_the_unit_starts_it_hears_when_it_is_ready_reloads_its_settings_and_stops_it(clean, tmp_path):
    unit = dict(
        line.split("=", 1)
        for line in (SYSTEMD / "timerwheel.service").read_text().splitlines()
        if "=" in line
    )
    settings = tmp_path / "timerwheel.toml"
    text = (SYSTEMD / settings.name).read_text()
    data = f'"{tmp_path / "data"}"\nport = 0\ndisk_reserve = 0'
    settings.write_text(text.replace('"/var/lib/timerwheel"', data))
    command = unit["ExecStart"].replace("/opt/timerwheel", str(clean))
    command = command.replace("/etc/timerwheel", str(tmp_path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE_S)
        variables = clean_variables(clean, NOTIFY_SOCKET=str(tmp_path / "notify"))
        with subprocess.Popen(
            shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables
        ) as process:
            try:
                assert systemd.recv(100) == b"READY=1"
                settings.write_text(settings.read_text().replace('# retention = "3d"', 'retention = "4d"'))
                reload = unit["ExecReload"].replace("$MAINPID", str(process.pid))
                subprocess.run(shlex.split(reload), check=True)
                log = iter(process.stderr.readline, "")
                assert next(line for line in log if "changed: retention" in line)
                process.send_signal(signal.Signals[unit["KillSignal"]])
                process.communicate(timeout=PATIENCE_S)
                assert process.returncode == 0
            finally:
                process.kill()


# ---------------------------------------------------------------------- completion

ASK_BASH = """
source <(timerwheel --show-completion bash)
complete -p timerwheel
while read -r -a COMP_WORDS; do
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _timerwheel_completion timerwheel
    printf '%s\\n' "${COMPREPLY[*]}"
done
"""
OFFERED = {
    "timerwheel resch": "reschedule",
    "timerwheel serve --retention-in": "--retention-interval",
}


def test_bash_completes_commands_and_flags(clean, tmp_path):
    (tmp_path / "ask.sh").write_text(ASK_BASH)
    done = subprocess.run(
        ["bash", "--norc", "ask.sh"],
        input="\n".join([*OFFERED, ""]),
        cwd=tmp_path,
        env=clean_variables(clean),
        capture_output=True,
        text=True,
        check=True,
    )
    asked, *found = done.stdout.splitlines()
    assert asked.endswith("-F _timerwheel_completion timerwheel")
    assert found == list(OFFERED.values()), done.stderr
