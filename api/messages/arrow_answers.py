"""Answers in Arrow: receipts, and delivered messages, as columns named as the fields of the JSON answer.

Times are timestamps in milliseconds, in UTC. A field that the JSON answer leaves out is null.
"""

from collections.abc import Sequence, Sized
from itertools import accumulate, chain
from typing import Any

import numpy as np
from msgspec.structs import astuple, fields

from timerwheel.api.http.arrow import Columns
from timerwheel.model.columns import ID_CHARACTERS, ColumnReceipts
from timerwheel.model.messages import Delivery, MessageView, Receipt, State
from timerwheel.model.properties import KEYS, TAGS


def of_columns(pa: Any, receipts: ColumnReceipts | None) -> Columns:  # noqa: ANN401 - pyarrow
    """Return the columns of the receipts of messages that were sent in columns; None if there are none."""
    if receipts is None:
        return of_receipts(pa, [])
    count = len(receipts.topic)
    ends = np.arange(count + 1, dtype=np.int32) * ID_CHARACTERS
    ids = pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(receipts.ids.encode())]
    )
    states = [State.DELIVERED.value, State.SCHEDULED.value]
    duplicate = np.zeros(count, bool) if receipts.duplicate is None else receipts.duplicate
    return [
        (pa.field("id", pa.string(), nullable=False), ids),
        _names(pa, "topic", receipts.topic, receipts.topics),
        (pa.field("due_ms", _time(pa), nullable=False), pa.array(receipts.due_ms).cast(_time(pa))),
        _names(pa, "state", receipts.waits.astype(np.int32), states),
        (pa.field("duplicate", pa.bool_(), nullable=False), pa.array(duplicate)),
    ]


def of_receipts(pa: Any, receipts: Sequence[Receipt]) -> Columns:  # noqa: ANN401 - pyarrow
    """Return the columns of receipts."""
    return [
        _column(pa, "id", pa.string(), [one.id for one in receipts]),
        _words(pa, "topic", [one.topic for one in receipts]),
        _column(pa, "due_ms", _time(pa), [one.due_ms for one in receipts]),
        _words(pa, "state", [one.state for one in receipts]),
        _column(pa, "duplicate", pa.bool_(), [one.duplicate for one in receipts]),
    ]


def of_messages(pa: Any, views: Sequence[MessageView]) -> Columns:  # noqa: ANN401 - pyarrow
    """Return the columns of delivered messages; each costs about what its JSON costs."""
    if views:  # one pass over the fields of each, in their order
        values: Sequence[Sequence[Any]] = list(zip(*map(astuple, views), strict=True))
    else:
        values = [()] * len(fields(MessageView))
    ids, topics, queues, states, dues_ms, levels, enqueues_ms, properties, bodies, *rest = values
    delivered_ms, offsets, _, problems, _ = rest
    text = pa.string()
    delivered, due = _whole(pa, delivered_ms), _whole(pa, dues_ms)
    known = set(chain.from_iterable(properties))

    def property_of(name: str) -> list[str | None]:
        return [one.get(name) for one in properties] if name in known else [None] * len(views)

    return [
        _column(pa, "id", text, ids),
        _words(pa, "topic", topics),
        _column(pa, "queue", pa.uint16(), queues),
        _column(pa, "offset", pa.int64(), offsets, nullable=True),
        _column(pa, "body", pa.binary(), bodies),
        _maps(pa, "properties", properties),
        _column(pa, "tags", text, property_of(TAGS), nullable=True),
        _lists(pa, "keys", property_of(KEYS)),
        _column(pa, "dedup_key", text, property_of("DEDUP_KEY"), nullable=True),
        _words(pa, "state", states),
        _column(pa, "level", pa.uint8(), levels),
        (pa.field("due_ms", _time(pa), nullable=False), due.view(_time(pa))),
        (pa.field("enqueue_ms", _time(pa), nullable=False), _whole(pa, enqueues_ms).view(_time(pa))),
        (pa.field("delivered_ms", _time(pa)), delivered.view(_time(pa))),
        (pa.field("lateness_ms", pa.int64()), pa.compute.subtract(delivered, due)),
        _column(pa, "problem", text, problems, nullable=True),
    ]


def of_deliveries(pa: Any, deliveries: Sequence[Delivery]) -> Columns:  # noqa: ANN401 - pyarrow
    """Return the columns of messages that were leased to a worker."""
    return [
        *of_messages(pa, [one.message for one in deliveries]),
        _column(pa, "receipt", pa.string(), [one.receipt for one in deliveries]),
        _column(pa, "attempt", pa.int32(), [one.attempt for one in deliveries]),
        _column(pa, "invisible_until_ms", _time(pa), [one.invisible_until_ms for one in deliveries]),
    ]


def _time(pa: Any) -> Any:  # noqa: ANN401 - pyarrow, a type
    return pa.timestamp("ms", tz="UTC")


def _whole(pa: Any, values: Sequence[int | None]) -> Any:  # noqa: ANN401 - pyarrow, an array
    return pa.array(values, pa.int64())


def _column(
    pa: Any,  # noqa: ANN401 - pyarrow
    name: str,
    kind: Any,  # noqa: ANN401 - a type
    values: Sequence[Any],
    *,
    nullable: bool = False,
) -> tuple[Any, Any]:
    return pa.field(name, kind, nullable=nullable), pa.array(values, kind)


def _words(pa: Any, name: str, values: Sequence[str]) -> tuple[Any, Any]:  # noqa: ANN401 - as above
    """Return a column of few distinct words."""
    places = {value: place for place, value in enumerate(dict.fromkeys(values))}
    numbers = np.fromiter(map(places.__getitem__, values), np.int32, len(values))
    return _names(pa, name, numbers, [str(value) for value in places])


def _names(pa: Any, name: str, places: np.ndarray, words: list[str]) -> tuple[Any, Any]:  # noqa: ANN401 - as above
    array = pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), pa.array(words, pa.string()))
    return pa.field(name, array.type, nullable=False), array


def _maps(pa: Any, name: str, values: Sequence[dict[str, str]]) -> tuple[Any, Any]:  # noqa: ANN401 - as above
    """Return a column of maps from text to text."""
    text = pa.string()
    keys = pa.array(list(chain.from_iterable(values)), text)
    items = pa.array(list(chain.from_iterable(map(dict.values, values))), text)
    array = pa.MapArray.from_arrays(_offsets(pa, values), keys, items)
    return pa.field(name, array.type, nullable=False), array


def _lists(pa: Any, name: str, values: Sequence[str | None]) -> tuple[Any, Any]:  # noqa: ANN401 - as above
    """Return a column of the words of each text."""
    words = [value.split() if value else () for value in values] if any(values) else [()] * len(values)
    flat = pa.array(list(chain.from_iterable(words)), pa.string())
    array = pa.ListArray.from_arrays(_offsets(pa, words), flat)
    return pa.field(name, array.type, nullable=False), array


def _offsets(pa: Any, values: Sequence[Sized]) -> Any:  # noqa: ANN401 - pyarrow, an array
    return pa.array(list(accumulate(map(len, values), initial=0)), pa.int32())
