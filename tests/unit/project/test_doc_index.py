"""Every document is in `doc/index.md` and in the navigation of the site, under the same heading and name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
INDEX = (ROOT / "doc" / "index.md").read_text()
NAVIGATION = (ROOT / "packaging" / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
PARTS = ("Start", "Use", "Run", "Inside")


def indexed(part: str) -> list[str]:
    """The pages of a part of the index, from the root of the repository."""
    section = re.search(rf"^## {part}$(.*?)(?=^## |\Z)", INDEX, re.MULTILINE | re.DOTALL)[1]
    linked = re.findall(r"\(([\w./-]+\.md)\)", section)
    return [name.removeprefix("../") if name.startswith("../") else f"doc/{name}" for name in linked]


def navigated(part: str) -> list[str]:
    """The pages of a part of the navigation."""
    section = re.search(rf"^  - {part}:$(.*?)(?=^  - |\Z)", NAVIGATION, re.MULTILINE | re.DOTALL)[1]
    return re.findall(r"^      - (\S+)$", section, re.MULTILINE)


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "doc").glob("*.md")))
def test_every_document_is_in_the_index_and_in_the_navigation(page):
    if page != "index.md":
        assert f"doc/{page}" in {name for part in PARTS for name in indexed(part)}, "add it to doc/index.md"
    assert f"doc/{page}" in {name for part in PARTS for name in navigated(part)}, (
        "add it to packaging/mkdocs.yml"
    )


@pytest.mark.parametrize("part", PARTS)
def test_index_and_navigation_have_the_same_parts(part):
    assert set(navigated(part)) - {"doc/index.md"} == set(indexed(part))


def test_every_part_of_the_site_is_one_of_the_index():
    assert tuple(re.findall(r"^  - (\w+):$", NAVIGATION, re.MULTILINE)) == PARTS
    assert tuple(re.findall(r"^## (\w+)$", INDEX, re.MULTILINE)) == PARTS
