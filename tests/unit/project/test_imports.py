import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PACKAGES = ("timerwheel", "store", "api", "rocketmq", "spark_jobs", "bench")
PUBLIC = ("timerwheel", "client")  # what users import from
HEAVY = ("lmdb", "aiohttp", "asyncio", "uvloop", "pyspark", "dateparser", "typer", "rich")


def init_files() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py"))


def test_every_top_level_package_has_an_init_file():
    assert {path.parent.name for path in init_files()} >= set(PACKAGES)


@pytest.mark.parametrize("path", init_files(), ids=lambda path: path.parent.name)
def test_package_init_holds_a_docstring_and_nothing_else(path):
    if path.parent.name in PUBLIC:
        return
    body = ast.parse(path.read_text()).body
    assert len(body) == 1
    assert isinstance(body[0], ast.Expr)
    assert isinstance(body[0].value, ast.Constant)
    assert isinstance(body[0].value.value, str)


def modules_after_importing(names: str) -> set[str]:
    code = f"import sys, {names}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        ".".join(name.split(".")[: 2 if name.startswith("timerwheel.") else 1])
        for name in done.stdout.split()
    }


@pytest.mark.parametrize(
    "module", ["record", "table", "segment", "sidecar", "log", "files", "errors", "keys", "pages"]
)
def test_reading_a_log_pulls_in_no_index_and_no_event_loop(module):
    found = modules_after_importing(f"timerwheel.store.{module}")
    assert not found & set(HEAVY)
    assert {name for name in found if name.startswith("timerwheel.")} == {"timerwheel.store"}


@pytest.mark.parametrize(
    "module",
    [
        "wheel.geometry",
        "model.delay_levels",
        "model.messages",
        "model.ids",
        "model.admission",
        "errors",
        "settings",
    ],
)
def test_pure_modules_pull_in_no_index_and_no_event_loop(module):
    found = modules_after_importing(f"timerwheel.{module}")
    assert not found & {*HEAVY, "timerwheel.store", "timerwheel.api"}


def test_the_shapes_of_the_api_pull_in_neither_server_nor_index():
    modules = sorted((ROOT / "timerwheel" / "wire").glob("[a-z]*.py"))
    found = modules_after_importing(", ".join(f"timerwheel.wire.{path.stem}" for path in modules))
    assert not found & {"numpy", "lmdb", "uvloop", "aiohttp", "timerwheel.engine", "timerwheel.api"}


@pytest.mark.parametrize("name", ["timerwheel", "timerwheel.client"])
def test_the_client_pulls_in_nothing_that_only_the_server_needs(name):
    code = f"import {name}; from timerwheel import Client; import sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"numpy", "lmdb", "uvloop", "aiohttp.web", "timerwheel.engine"}


def test_the_client_needs_only_the_packages_that_the_installation_page_names():
    """An environment with these five and what they need themselves runs it; see doc/install.md."""
    named = re.search(r"pip install 'aiohttp[^']*' ([a-z ]+)", (ROOT / "doc" / "install.md").read_text())
    assert named is not None
    allowed = {"aiohttp", *named[1].split()}
    known = importlib.metadata.packages_distributions()
    before, after = (
        set(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split())
        for code in (LOADED, f"from timerwheel import Client; {LOADED}")
    )
    tops = {name.partition(".")[0] for name in after - before}
    loaded = {canonicalize_name(known[top][0]) for top in tops & known.keys()}
    assert loaded - with_needs(allowed) == {"timerwheel"}


LOADED = "import sys; print(*sys.modules)"


def with_needs(packages: set[str]) -> set[str]:
    """These packages and all that they require, without extras."""
    found: set[str] = set()
    left = list(packages)
    while left:
        name = canonicalize_name(left.pop())
        if name in found:
            continue
        found.add(name)
        requires = map(Requirement, importlib.metadata.requires(name) or ())
        left += [one.name for one in requires if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def test_engine_pulls_in_no_http_and_no_command_line():
    found = modules_after_importing("timerwheel.engine")
    assert not found & {"aiohttp", "timerwheel.api", "timerwheel.spark_jobs", "typer", "rich", "dateparser"}
