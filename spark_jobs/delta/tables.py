"""Delta tables as this package writes them: where they are, and what goes wrong with them."""

import contextlib
import os
from collections.abc import Iterator
from urllib.parse import urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from timerwheel.spark_jobs.storage import is_local, is_url, normal, shown
from timerwheel.store.errors import StoreError

SCHEMES = frozenset({"s3", "gs", "az", "abfs", "abfss"})
"""What both fsspec and the library for Delta Lake call by the same name, beside local paths."""


class DeltaTableError(StoreError):
    """A Delta table cannot be read or written; the message has its URL."""

    code = "delta_table"


def place_of_table(url: str) -> str:
    """The URL or absolute path of a table as the library takes it; raises DeltaTableError."""
    if is_url(url) and urlsplit(url).scheme in SCHEMES:
        return url
    if is_local(url):
        return normal(url)
    raise DeltaTableError(
        f"{shown(url)}: a Delta table is a local directory, or one of {', '.join(sorted(SCHEMES))}"
    )


def options_of(place: str) -> dict[str, str]:
    """What the library does not take from the environment by itself: that an endpoint has no TLS."""
    if place.startswith("s3://") and os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        return {"allow_http": "true"}
    return {}


def open_table(place: str) -> DeltaTable | None:
    """The table, None if there is none yet."""
    with delta_errors(place):
        try:
            return DeltaTable(place, storage_options=options_of(place))
        except TableNotFoundError:
            return None


@contextlib.contextmanager
def delta_errors(place: str) -> Iterator[None]:
    """Turns the library's errors in the block into a DeltaTableError of one line."""
    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        raise DeltaTableError(f"{shown(place)}: {' '.join(str(error).split())}") from error
