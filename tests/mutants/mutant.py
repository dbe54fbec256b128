"""A mutant: one fault, as a piece of text in one file and what stands in its place."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """`old` must occur in `file` once. `tests` go to pytest; one of them must fail.

    `accepted` says why a mutant may survive: its tests are run all the same, and must then pass.
    """

    name: str
    file: str
    claim: str
    old: str
    new: str
    tests: tuple[str, ...]
    accepted: str = ""
