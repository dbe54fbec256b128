"""The documents as a site: `python packaging/site.py`, or with `serve` to look at it and follow changes.

The pages are the Markdown files of the repository, unchanged. A folder of links, `build/site-pages`, has them
at the same places as the repository, beside the files that they link to, so that every link holds in the site
too. MkDocs builds it into `./site`, and fails on a link or an anchor that leads nowhere. The site needs no
network: it uses the fonts of the system. Other arguments go to MkDocs; the variable `SITE_PAGES` moves the
folder of links.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = Path(os.environ.get("SITE_PAGES", ROOT / "build" / "site-pages"))
SITE = ROOT / "site"
CONFIGURATION = ROOT / "packaging" / "mkdocs.yml"
BUILD = ["build", "--clean"]
ALONE = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", "api/console/static/icon.svg")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
_WHOLE_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)\)")
_CELL_CODE = re.compile(r"(?<=<code>)[^<]*(?=</code>)")
_ELSEWHERE = re.compile(r"[a-z]+:").match


def pages() -> list[Path]:
    """Return the pages that the site begins with; the links of these lead to the others."""
    return [*(ROOT / name for name in ALONE), *sorted((ROOT / "doc").glob("*.md"))]


def linked(page: Path) -> set[Path]:
    """Return the files of the repository that a page links to."""
    found = set()
    for target in _LINK.findall(_FENCED.sub("", page.read_text())):
        if not _ELSEWHERE(target):
            file = (page.parent / target).resolve()
            if file.is_file() and file.is_relative_to(ROOT):
                found.add(file)
    return found


def gather() -> None:
    """Make the folder of links: the pages, and all that can be reached from them."""
    shutil.rmtree(PAGES, ignore_errors=True)
    waiting, seen = pages(), set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        place = PAGES / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file.resolve())
        if file.suffix == ".md":
            waiting += linked(file)


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:  # noqa: ANN401 - MkDocs is an extra
    """Replace links to folders by their text: a code host lists a folder, the site has nothing to show."""
    folder = (ROOT / page.file.src_uri).parent

    def without(link: re.Match[str]) -> str:
        is_folder = not _ELSEWHERE(link[2]) and (folder / link[2]).is_dir()
        return link[1] if is_folder else link[0]

    return _WHOLE_LINK.sub(without, markdown)


def on_page_content(html: str, **_: object) -> str:
    """Write a `|` in the code of a table as code hosts do: MkDocs leaves the backslash before it, too."""
    return _CELL_CODE.sub(lambda code: code[0].replace(r"\|", "|"), html)


def main() -> None:
    """Build the site, or serve it; ends with MkDocs' exit code."""
    gather()
    wanted = sys.argv[1:] or BUILD
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *wanted, "--strict", "--config-file", str(CONFIGURATION)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "SITE_PAGES": str(PAGES)},
        check=False,
    )
    if done.returncode == 0 and wanted == BUILD:
        sys.stdout.write(f"the site begins at {SITE / 'index.html'}\n")
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
