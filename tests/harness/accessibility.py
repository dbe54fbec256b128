"""What axe-core finds wrong with a page: see `tests/vendor/axe-core`."""

from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Page

AXE = Path(__file__).parents[1] / "vendor/axe-core/axe.min.js"
_RUN = """async (place) => {
  const found = await axe.run(place === null ? document : place, { resultTypes: ["violations"] });
  return found.violations.map(({ id, help, nodes }) => [id, help, nodes.map(({ target, failureSummary }) =>
    `${target.flat().join(" ")}: ${failureSummary}`)]);
}"""


class Violation(NamedTuple):
    """A rule that the page breaks, and where."""

    rule: str
    words: str
    places: list[str]


def violations(page: Page, place: str | None = None) -> list[Violation]:
    """Return what the page breaks, of all rules; only inside one element with a selector of it."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    return [Violation(*one) for one in page.evaluate(_RUN, place)]
