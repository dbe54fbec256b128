"""Messages as columns, for tests that send the same in both forms."""

from collections.abc import Sequence

import numpy as np

from timerwheel.engine import Engine
from timerwheel.model.columns import AFTER, AT, NOW, MessageColumns
from timerwheel.model.messages import Outgoing, Receipt


def columns_of(messages: Sequence[Outgoing]) -> MessageColumns:
    """These messages as columns."""
    topics = list(dict.fromkeys(message.topic for message in messages))
    sets = list({tuple(message.properties.items()): message.properties for message in messages}.values())
    ends = np.cumsum([len(message.body) for message in messages], dtype=np.int64)
    hows = [AFTER if one.after_ms is not None else AT if one.at_ms is not None else NOW for one in messages]
    return MessageColumns(
        topics,
        np.array([topics.index(message.topic) for message in messages], np.int64),
        memoryview(b"".join(message.body for message in messages)),
        ends - np.array([len(message.body) for message in messages], np.int64),
        ends,
        [dict(one) for one in sets],
        np.array([sets.index(message.properties) for message in messages], np.int64),
        np.array(hows, np.uint8),
        np.array([one.after_ms or one.at_ms or 0 for one in messages], np.int64),
        [one.dedup_key for one in messages] if any(one.dedup_key for one in messages) else None,
    )


async def send_in_columns(engine: Engine, messages: Sequence[Outgoing]) -> list[Receipt]:
    """Send as columns; the receipts as those of messages one by one."""
    receipts = await engine.column_sender.send(columns_of(messages))
    return receipts.receipts(slice(0, len(messages)))
