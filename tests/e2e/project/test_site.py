"""The site of the documents: it is built without a warning, and says what a code host shows.

A code host reads CommonMark with tables, MkDocs another Markdown. Lists, tables and code that only one of
them reads as such are found by comparing the texts of both, and the counts of what they are made of.
"""

import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.harness.processes import PATIENCE_S, ROOT, environment

pytest.importorskip("mkdocs", reason="needs the extra docs")

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*(ROOT / "doc").glob("*.md"), ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md")
)
COUNTED = ("table", "tr", "td", "ul", "ol", "li", "pre", "h1", "h2", "h3", "blockquote")
LOADED = re.compile(r"<(?:script|img|link)\b[^>]*?\b(?:src|href)=[\"']?(https?:[^\s\"'>]+)")


class Shown(HTMLParser):
    """The words of a page, and how many elements of a kind it has; without the marks beside headings."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self._texts: list[str] = []
        self._in_mark = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self._in_mark = self._in_mark or (tag == "a" and ("class", "headerlink") in attrs)

    def handle_endtag(self, tag: str) -> None:
        self._in_mark = self._in_mark and tag != "a"

    def handle_data(self, data: str) -> None:
        if not self._in_mark:
            self._texts.append(data)

    @property
    def words(self) -> list[str]:
        return "".join(self._texts).split()


def shown(html: str) -> Shown:
    parser = Shown()
    parser.feed(html)
    return parser


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, ROOT / "packaging" / "site.py", "build", "--site-dir", folder / "site"],
        capture_output=True,
        text=True,
        env=environment(SITE_PAGES=str(folder / "pages")),
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_reads_the_same_in_the_site_and_on_a_code_host(site, page):
    built = (site / page).with_suffix(".html").read_text()
    article = shown(built[built.index("<article") : built.index("</article>")])
    host = shown(MarkdownIt("gfm-like", {"linkify": False}).render((ROOT / page).read_text()))
    assert article.words == host.words
    assert {tag: article.elements[tag] for tag in COUNTED} == {tag: host.elements[tag] for tag in COUNTED}


def test_the_site_begins_with_the_readme_and_its_picture(site):
    assert "doc/pictures/console.webp" in (site / "index.html").read_text()
    assert (site / "doc" / "pictures" / "console.webp").is_file()


def test_the_site_loads_nothing_from_elsewhere(site):
    found = {
        (path.name, address) for path in site.rglob("*.html") for address in LOADED.findall(path.read_text())
    }
    assert not found
