"""Conditions of a query that a source applies itself: to whole segments, and to rows before it decodes them.

Spark gives a Python source the conditions of a `where` that are joined by `and` (`pushFilters`), if
`spark.sql.python.filterPushdown.enabled` is set, and refuses a source that takes them if it is not. Spark
applies all of them to the rows again, so a source may ignore any condition, and here all are ignored that
are not clear: of another column or another type. Pure.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from timerwheel.spark_jobs.columns import KINDS
from timerwheel.store.table import Table

_ORDERS: dict[type[Filter], Callable[[Any, Any], Any]] = {
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


class Condition(NamedTuple):
    """One condition on one column: `test` gives the mask of an array of its values, or says so of one."""

    column: str
    filter: Filter

    def holds(self, value: str | int) -> bool:
        """Whether it holds for one value."""
        return _holds(self.filter, value)

    def mask(self, values: np.ndarray) -> np.ndarray:
        """The mask of the whole numbers for which it holds."""
        return _mask(self.filter, values)


def _holds(found: Filter, value: Any) -> bool:  # noqa: ANN401 - text or a number
    if isinstance(found, Not):
        return not _holds(found.child, value)
    if isinstance(found, In):
        return value in found.value
    if isinstance(found, StringStartsWith):
        return str(value).startswith(found.value)
    if isinstance(found, EqualTo | EqualNullSafe):
        return bool(value == found.value)
    return bool(_ORDERS[type(found)](value, found.value))  # type: ignore[attr-defined]


def _mask(found: Filter, values: np.ndarray) -> np.ndarray:
    if isinstance(found, Not):
        return ~_mask(found.child, values)
    if isinstance(found, In):
        return np.isin(values, np.array(found.value, np.int64))
    if isinstance(found, EqualTo | EqualNullSafe):
        equal: np.ndarray = values == found.value
        return equal
    ordered: np.ndarray = _ORDERS[type(found)](values, found.value)  # type: ignore[attr-defined]
    return ordered


def conditions_of(filters: Iterable[Filter], columns: Mapping[str, type]) -> list[Condition]:
    """The filters on these columns that are clear; a column is of `int` or `str`, and never null."""
    found = []
    for one in filters:
        inner = one.child if isinstance(one, Not) else one
        name = ".".join(getattr(inner, "attribute", ()))
        if name in columns and _is_clear(inner, columns[name]):
            found.append(Condition(name, one))
    return found


def _is_clear(found: Filter, kind: type) -> bool:
    values: Sequence[object] = [getattr(found, "value", None)]
    if isinstance(found, In):
        values = found.value
    # Of numbers only whole ones, and Python's truth values are whole numbers as well. Spark orders text by
    # its bytes, which is not Python's order of all text.
    if not values or any(type(value) is not kind for value in values):
        return False
    if isinstance(found, In | EqualTo | EqualNullSafe):
        return True
    return isinstance(found, StringStartsWith) if kind is str else type(found) in _ORDERS


def may_hold(conditions: Iterable[Condition], fixed: Mapping[str, str | int]) -> bool:
    """Whether rows with these values may fulfil all conditions; those on other columns are ignored."""
    return all(one.holds(fixed[one.column]) for one in conditions if one.column in fixed)


def mask_of(conditions: Iterable[Condition], table: Table, columns: Mapping[str, str]) -> np.ndarray:
    """The mask of the rows for which all conditions hold.

    `columns` gives the table's name of a column. A condition on another column is ignored.
    """
    rows = table.rows
    mask = np.ones(len(rows), bool)
    for condition in conditions:
        name = columns.get(condition.column)
        if name == "topic":
            mask &= np.array([condition.holds(topic) for topic in table.topics], bool)[rows["topic"]]
        elif name == "kind":
            mask &= np.array([condition.holds(kind) for kind in KINDS], bool)[rows["kind"]]
        elif name is not None:
            mask &= condition.mask(rows[name].astype(np.int64))
    return mask
