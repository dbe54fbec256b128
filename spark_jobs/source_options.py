"""Options that the data sources have in common: the paths that they read, and the columns of a query."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from pyspark.sql.types import StructType

from timerwheel.spark_jobs.errors import JobError


def paths_of(given: Mapping[str, str]) -> list[str]:
    """The paths of `load("one")`, `load(["one", "another"])`, which Spark passes as JSON, and of `paths`."""
    text = given.get("paths", "")
    try:
        listed = json.loads(text)
    except ValueError:
        listed = None
    if not isinstance(listed, list):
        listed = text.split(",")
    paths = [str(path).strip() for path in listed if str(path).strip()]
    return [*paths, given["path"]] if "path" in given else paths


def check_known(given: Collection[str], known: Sequence[str], what: str) -> None:
    """Raises JobError for an option that is not known, whatever its case."""
    names = {name.lower() for name in known}
    for name in given:
        if name.lower() not in names:
            raise JobError(f"no such option of {what}: {name}; choose from {', '.join(known)}")


def check_names(names: Sequence[str], known: Collection[str]) -> None:
    """Raises JobError for columns that a source does not have, or that are given twice."""
    if unknown := [name for name in names if name not in known]:
        raise JobError(f"no such columns: {', '.join(unknown)}; choose from {', '.join(known)}")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise JobError(f"columns that are given twice: {', '.join(twice)}")


def check_schema(schema: StructType, known: Mapping[str, str]) -> None:
    """Raises JobError for a column or a type that a source does not have; `known` has the type of each."""
    for field in schema:
        kind = field.dataType.simpleString()
        if known.get(field.name) != kind:
            columns = ", ".join(f"{name} {kind}" for name, kind in known.items())
            raise JobError(f"no such column: {field.name} {kind}; choose from {columns}")
    check_names(schema.names, known)
