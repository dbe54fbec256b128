"""The mutants fit the code, and their runner tells the outcomes apart."""

from pathlib import Path

import pytest

from tests.mutants.all_mutants import ALL
from tests.mutants.mutant import Mutant
from tests.mutants.runner import Outcome, PatchError, Runner, check, copy_of, patched

ROOT = Path(__file__).parents[3]
CODE = "def double(n):\n    return n + n\n"
TESTS = """
from code_of_it import double

def test_two(): assert double(2) == 4
def test_three(): assert double(3) == 6
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    # Most of the time of so small a run is taken by plugins that it has no use for.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    root = tmp_path / "project"
    (root / "tests").mkdir(parents=True)
    (root / "code_of_it.py").write_text(CODE)
    (root / "tests" / "test_it.py").write_text(TESTS)
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    return root


def mutant(new: str, test: str = "tests/test_it.py", old: str = "n + n", **more: str) -> Mutant:
    return Mutant("m", "code_of_it.py", "doubles", old, new, (test,), **more)


def test_every_mutant_fits_the_code_once_and_has_tests_that_are_there():
    assert check(ROOT, ALL) == []


def test_every_mutant_says_which_claim_it_breaks():
    assert all(one.claim and len(one.name.split()) == 1 for one in ALL)


def test_each_outcome_is_distinguished_and_the_code_is_as_before(project, tmp_path):
    one = "tests/test_it.py::test_two"
    cases = {
        Outcome.KILLED: mutant("n * n"),
        Outcome.SURVIVED: mutant("n * n", one),
        Outcome.ACCEPTED: mutant("n * n", one, accepted="two is all that is asked"),
        Outcome.UNEXPECTED: mutant("n * 3", accepted="wrong"),
        Outcome.BROKEN: mutant("n * n", "tests/nothing.py"),
    }
    with copy_of(project, tmp_path) as tree:
        runner = Runner(tree, 300)
        assert runner.baseline([cases[Outcome.KILLED]])[0]
        found = [verdict.outcome for verdict in runner.run(list(cases.values()))]
        assert (tree / "code_of_it.py").read_text() == CODE
    assert found == list(cases)
    assert (project / "code_of_it.py").read_text() == CODE


def test_a_mutant_that_never_ends_is_a_hang_and_its_processes_are_ended(project, tmp_path):
    with copy_of(project, tmp_path) as tree:
        endless = mutant("n + n\n\nimport time\nwhile True: time.sleep(60)")
        assert [v.outcome for v in Runner(tree, 3).run([endless])] == [Outcome.HANG]


def test_a_test_that_fails_without_a_mutant_is_noticed_first(project, tmp_path):
    (project / "code_of_it.py").write_text("def double(n):\n    return n\n")
    with copy_of(project, tmp_path) as tree:
        assert not Runner(tree, 300).baseline([mutant("x")])[0]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (mutant("n * n", old="n - n"), "occurs 0 times"),
        (mutant("m", old="n"), "occurs 4 times"),
        (mutant("n +* n"), "no Python"),
        (mutant("n + n"), "changes nothing"),
        (mutant("n * n", "tests/test_it.py::test_four"), "no test tests/test_it.py::test_four"),
        (mutant("n * n", "tests/test_other.py"), "no test tests/test_other.py"),
    ],
)
def test_a_mutant_that_does_not_fit_is_an_error(project, bad, said):
    assert said in "".join(check(project, [bad]))


def test_two_mutants_of_one_name_are_an_error(project):
    assert check(project, [mutant("n * n"), mutant("n - n")]) == ["m: the name occurs twice"]


def test_a_text_that_does_not_fit_changes_no_file():
    with pytest.raises(PatchError):
        patched(CODE, mutant("x", old="y"))
