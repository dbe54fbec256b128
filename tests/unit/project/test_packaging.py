"""What the project says of itself: what it needs, where it runs, what belongs into a release."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from trove_classifiers import classifiers

ROOT = Path(__file__).parents[3]
CORE = ("api", "rocketmq", "store", "timerwheel")
OWN = ("timerwheel", "bench", "tests")
# Data that others read: dateparser and zoneinfo look for it by themselves.
NEVER_IMPORTED = {"tzdata"}
# Brought by pyspark, which alone can say in which version.
BROUGHT = {"py4j"}
# The modules that are there for an extra only; whoever wants one imports it late.
FOR_AN_EXTRA = {
    *(f"rocketmq/grpc/{name}.py" for name in ("schema", "server")),
    *(
        f"timerwheel/kafka/{name}.py"
        for name in (
            "clients",
            "cluster",
            "consumer",
            "inlet",
            "election",
            "hanging",
            "journal",
            "journal_topic",
            "outlet",
            "positions",
            "producer",
        )
    ),
    "timerwheel/testing/plugin.py",
    "timerwheel/tracing/otel.py",
    *(f"spark_jobs/delta/{name}.py" for name in ("tables", "audits", "archive")),
}


@cache
def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def names_of(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


@cache
def core() -> set[str]:
    return names_of(pyproject()["project"]["dependencies"])


@cache
def extras() -> set[str]:
    """What users can ask for besides: not what developers need."""
    optional = pyproject()["project"]["optional-dependencies"]
    return set().union(*(names_of(optional[name]) for name in optional if name not in ("dev", "bench")))


@cache
def distributions() -> dict[str, set[str]]:
    """The distributions of each module that is installed."""
    return {
        module: {canonicalize_name(name) for name in names}
        for module, names in packages_distributions().items()
    }


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(node: ast.AST, *, late: bool = False) -> Iterator[tuple[str, bool]]:
    """The modules that code imports, and whether it does so within a function only."""
    for child in ast.iter_child_nodes(node):
        if is_for_types_only(child):
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name.partition(".")[0], late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield (child.module or "").partition(".")[0], late
        is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from imports(child, late=late or is_function)


@cache
def imported(packages: tuple[str, ...]) -> set[tuple[str, str, bool]]:
    """File, module and whether it is imported late, of all that is neither Python's nor ours."""
    return {
        (str(path.relative_to(ROOT)), module, late)
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        for module, late in imports(ast.parse(path.read_text()))
        if module not in sys.stdlib_module_names and module not in OWN
    }


def test_the_core_declares_all_that_it_imports():
    for path, module, late in imported(CORE):
        allowed = core() | extras() if late or path in FOR_AN_EXTRA else core()
        assert distributions().get(module, set()) & allowed, f"{path} imports {module}, which is not declared"


def test_the_jobs_need_no_more_than_the_extra_spark_before_they_look_for_another():
    spark = names_of(pyproject()["project"]["optional-dependencies"]["spark"])
    for path, module, late in imported(("spark_jobs",)):
        allowed = core() | spark | BROUGHT | (extras() if late or path in FOR_AN_EXTRA else set())
        assert distributions().get(module, set()) & allowed, f"{path} imports {module}"


def test_the_core_declares_nothing_that_it_does_not_import():
    used = set().union(*(distributions().get(module, set()) for _, module, _ in imported(CORE)))
    assert core() - used == NEVER_IMPORTED


@pytest.mark.parametrize("group", ["dependencies", *pyproject()["project"]["optional-dependencies"]])
def test_each_requirement_has_a_lower_bound(group):
    project = pyproject()["project"]
    texts = project["dependencies"] if group == "dependencies" else project["optional-dependencies"][group]
    for requirement in map(Requirement, texts):
        if requirement.name != project["name"]:
            assert {one.operator for one in requirement.specifier} & {">=", "=="}, requirement


def test_python_versions_are_the_same_everywhere():
    project = pyproject()["project"]
    told = [name for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)]
    supported = SpecifierSet(project["requires-python"])
    assert told
    for name in told:
        assert name.rpartition(" ")[2] in supported
    lowest = min(int(name.rpartition(".")[2]) for name in told)
    assert f">=3.{lowest}" == project["requires-python"]


def test_the_license_is_stated_once():
    project = pyproject()["project"]
    assert project["license"] == "Apache-2.0"
    assert not [name for name in project["classifiers"] if name.startswith("License ::")]
    for pattern in project["license-files"]:
        assert list(ROOT.glob(pattern)), pattern


def test_the_changelog_has_a_part_for_this_version():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version = pyproject()["project"]["version"]
    assert headings[0] == "Unreleased" or headings[0].startswith(version)


def test_every_classifier_is_one_that_there_is():
    assert set(pyproject()["project"]["classifiers"]) <= classifiers
