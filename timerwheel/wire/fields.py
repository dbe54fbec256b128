"""The kinds of fields that many shapes have, and the query that takes no parameters."""

from typing import Annotated

import msgspec
from msgspec import Meta

INT64_MAX = 2**63 - 1
Int64 = Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
Natural = Annotated[int, Meta(ge=0, le=INT64_MAX)]


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No query parameters are taken."""
