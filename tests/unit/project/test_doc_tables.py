"""Tables of the documents are whole: a head, a line below it, and as many cells in each row."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "doc").glob("*.md")])
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_BELOW_HEAD = re.compile(r"\|(?: *:?-+:? *\|)+")


def tables(text: str) -> list[list[str]]:
    """The lines of each table."""
    blocks = re.split(r"\n(?!\|)[^\n]*", "\n" + _FENCED.sub("", text))
    return [lines for block in blocks if (lines := [line for line in block.splitlines() if line])]


def cells(line: str) -> int:
    return len(re.split(r"(?<!\\)\|", line)) - 2


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_table_is_whole(path):
    for head, *rest in tables(path.read_text()):
        assert rest, f"a row of no table: {head}"
        assert _BELOW_HEAD.fullmatch(rest[0]), (
            f"no line below this head, or an empty line above this row: {head}"
        )
        for row in rest:
            assert cells(row) == cells(head), row


def test_a_row_behind_an_empty_line_is_found():
    text = "| a |\n|---|\n| b |\n\n| c |\n| d |\n"
    assert tables(text) == [["| a |", "|---|", "| b |"], ["| c |", "| d |"]]
