"""Pages of lists on the wire, the same in every call that lists."""

from typing import Annotated

from msgspec import Meta

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
