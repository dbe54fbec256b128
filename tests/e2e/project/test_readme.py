"""The commands of README.md, run as they are, and what they print.

Fenced blocks with the info string `sh` are run top to bottom in one bash with `set -e`, in an empty
directory with a service beside it, whose data is `./data` there; `localhost:8686` and `127.0.0.1:8686` stand
for that service. A block with the info string `json` after it shows what it prints, one document a line:
fields may be left out, and ids, receipts and times differ. The block `python` is run too. Others are not.
"""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.harness.processes import PATIENCE_S, ROOT, environment, serving
from tests.harness.shell import commands_in

README = ROOT / "README.md"
RESULTS = ROOT / "bench" / "RESULTS.md"
FAST = ROOT / "bench" / "results" / "epyc-fast" / "RESULTS.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ADDRESS = re.compile(r"\b(localhost|127\.0\.0\.1):8686\b")
_END = "---- the end of a block ----"
VARYING = {"id", "due_ms", "receipt"}
"""Fields whose values differ from run to run."""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    with serving("data", cwd=folder) as service:
        yield folder, service


def blocks() -> list[tuple[str, str]]:
    return _BLOCK.findall(README.read_text())


def run(command: list[str], given: str, service) -> str:
    """What a program prints whose input stands in the README."""
    folder, running = service
    address = running.url.removeprefix("http://")
    with commands_in(folder / f".commands-{command[0].rpartition('/')[2]}", PATIENCE_S) as path:
        done = subprocess.run(
            command,
            input=_ADDRESS.sub(address, given),
            capture_output=True,
            text=True,
            cwd=folder,
            env=environment(PATH=path, TIMERWHEEL_URL=running.url),
            timeout=2 * PATIENCE_S,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def documents(text: str) -> list[Any]:
    """The JSON documents of a text, whatever stands between them."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (at := text.find("{", at)) >= 0:
        document, at = decoder.raw_decode(text, at)
        found.append(document)
    return found


def shows(shown: Any, printed: Any) -> bool:
    """Whether a document of the README is what was printed, but for what varies and what it leaves out."""
    if isinstance(shown, dict):
        return isinstance(printed, dict) and all(
            name in printed and (name in VARYING or shows(value, printed[name]))
            for name, value in shown.items()
        )
    if isinstance(shown, list):
        return len(shown) == len(printed) and all(map(shows, shown, printed))
    return shown == printed


def test_the_commands_of_the_readme_work_as_they_are_and_print_what_it_shows(service):
    listed = blocks()
    commands = [text for kind, text in listed if kind == "sh"]
    assert commands, "README.md has no ```sh block"
    script = "".join(f"{text}echo; echo '{_END}'\n" for text in commands)
    printed = run(["bash", "-e", "-x", "-o", "pipefail"], script, service).split(_END)[:-1]
    expected = [
        after[1] if after[0] == "json" else ""
        for (kind, _), after in zip(listed, [*listed[1:], ("", "")], strict=True)
        if kind == "sh"
    ]
    assert any(expected)
    for command, wanted, found in zip(commands, expected, printed, strict=True):
        if wanted:
            assert shows(documents(wanted), documents(found)), f"{command}\n{wanted}\n{found}"


def test_the_python_of_the_readme_works_as_it_is(service):
    [program] = [text for kind, text in blocks() if kind == "python"]
    assert run([sys.executable, "-"], program, service) == "hello from a second ago\n"


def test_a_document_of_the_readme_is_compared_but_for_what_varies_and_what_it_leaves_out():
    printed = {"id": "2", "state": "scheduled", "topic": "orders"}
    assert shows({"id": "1", "state": "scheduled"}, printed)
    assert not shows({"state": "recalled"}, printed)
    assert not shows({"status": "scheduled"}, printed)
    assert not shows([printed, printed], [printed])


def test_the_figures_of_the_readme_are_those_of_the_reports():
    now, before = (claims(rows(page.read_text())) for page in (RESULTS, FAST))
    figures = [row for row in rows(README.read_text()) if len(row) == 3 and row[0] in now]
    assert len(figures) == 5
    assert figures == [[claim, now[claim], before[claim]] for claim, *_ in figures]


@pytest.mark.parametrize("page", [RESULTS, FAST])
def test_the_readme_says_how_fast_bare_aiohttp_was_on_each_machine(page):
    table = rows(page.read_text())
    rate = next(row for row in table if {"/s", "MiB/s", "messages/s"} <= {*row}).index("messages/s")
    [first] = [row for row in table if row[0].startswith("bare aiohttp, 64") and len(row) > rate][:1]
    assert first[rate] in README.read_text()


def claims(table: list[list[str]]) -> dict[str, str]:
    """What was measured of each claim."""
    return {row[0]: row[2] for row in table if len(row) == 5 and row[4].startswith("`python -m bench")}


def test_the_memory_that_the_faq_names_is_that_of_its_page():
    heads = ("", "---")
    table = [row for row in rows(FAST.read_text()) if row[0] not in heads]
    [backlog] = [row for row in table if row[0] == "100,000,000 pending" and len(row) == 10]
    memory_mib, disk_bytes = backlog[3], int(backlog[8])
    said = " ".join((ROOT / "doc" / "faq.md").read_text().split())
    assert f"{memory_mib} MiB, because" in said
    assert f"100 million took {disk_bytes / 10:.1f} GB of it, {disk_bytes} bytes each" in said


def rows(text: str) -> list[list[str]]:
    """The rows of all tables of a text."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
