"""Generates the table of settings in `doc/operations.md` from their declarations in `timerwheel/settings.py`.

`python -m tests.harness.settings_table` writes it into the page.
"""

import re
from pathlib import Path

from timerwheel.cli.configuration import OPTIONS, Option

PAGE = Path(__file__).parents[2] / "doc/operations.md"
HEADER = "| setting | default | values | reload | description |"
match_table = re.compile(rf"^{re.escape(HEADER)}\n(?:\|.*\n)*", re.MULTILINE).search


def table() -> str:
    """The table as Markdown: a row per setting, in the order of their declaration."""
    return "".join(f"{line}\n" for line in (HEADER, "|---|---|---|---|---|", *map(_row, OPTIONS.values())))


def _row(option: Option) -> str:
    default = option.write(option.default)
    reload = "yes" if option.setting.reloadable else ""
    cells = (option.name, f"`{default}`" if default else "", _values(option), reload, option.setting.help)
    return f"| {' | '.join(cells)} |"


def _values(option: Option) -> str:
    if option.setting.ge is not None:
        return f"{option.write(option.setting.ge)} to {option.write(option.setting.le)}"
    return ", ".join(f"`{word}`" for word in option.words) or option.kind


if __name__ == "__main__":
    text = PAGE.read_text()
    found = match_table(text)
    assert found, f"{PAGE} has no table with the header {HEADER}"
    PAGE.write_text(text[: found.start()] + table() + text[found.end() :])
