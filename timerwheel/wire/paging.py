"""Pages of lists on the wire, the same in every call that lists."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

LIMIT_DEFAULT = 100
"""Items of a page, if a call does not say."""
LIMIT_MAX = 1_000
"""Most items of a page."""

Limit = Annotated[
    int,
    Meta(
        ge=1,
        le=LIMIT_MAX,
        description="Most items of the page. It may have fewer, or none, and not be the last one",
    ),
]
Cursor = Annotated[
    str, Meta(description="`cursor` of the previous page, with the same other parameters; none for the first")
]
NextCursor = Annotated[str | None, Meta(description="Requests the next page; null on the last one")]
PagedCursor = NextCursor | UnsetType
"""The cursor of a list that is given whole to calls that do not ask for a page."""


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which page of a list that is sorted by name; without `limit`, all of it.

    An answer to a call with neither parameter has no `cursor`, as in earlier versions.
    """

    limit: Limit | UnsetType = UNSET
    cursor: Cursor | UnsetType = UNSET

    @property
    def count_max(self) -> int | None:
        """Most items of the page, None if there is no limit."""
        return None if self.limit is UNSET else self.limit

    def answered(self, cursor: str | None) -> str | UnsetType | None:
        """Return the `cursor` of the answer."""
        return UNSET if self.limit is UNSET and self.cursor is UNSET else cursor

    @property
    def after(self) -> str | None:
        """The cursor, None at the beginning."""
        return None if self.cursor is UNSET else self.cursor
