"""Messages that arrived together, over any connections: they are stored in batches of one write each.

One that is refused holds back no other.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from timerwheel.engine import Engine
from timerwheel.errors import RefusedError
from timerwheel.model.messages import Outgoing
from timerwheel.runtime.sender import PendingSend
from timerwheel.runtime.steps import AT_ONCE_MAX

_Send = TypeVar("_Send")
_Place = TypeVar("_Place")


class Gathered(Generic[_Send, _Place]):
    """Stores the one message of each send, and calls `stored` or `failed`. Event loop only.

    `places_of` is the sender's `receipts` or `offsets`, whichever the answers need.
    """

    def __init__(
        self,
        engine: Engine,
        message_of: Callable[[_Send], Outgoing],
        places_of: Callable[[PendingSend], list[_Place]],
        stored: Callable[[PendingSend, list[_Send], list[_Place]], None],
        failed: Callable[[_Send, Exception], None],
    ) -> None:
        self._engine = engine
        self._message_of = message_of
        self._places_of = places_of
        self._stored = stored
        self._failed = failed

    def send(self, arrived: Sequence[_Send]) -> None:
        """Begin to store these."""
        part: list[_Send] = []
        part_bytes = 0
        for one in arrived:
            size_bytes = len(self._message_of(one).body)
            part_bytes += size_bytes
            if part and (len(part) == AT_ONCE_MAX or part_bytes > self._engine.settings.batch_bytes_max):
                self._begin(part)
                part, part_bytes = [], size_bytes
            part.append(one)
        self._begin(part)

    def _begin(self, part: list[_Send]) -> None:
        try:
            pending = self._engine.sender.begin(list(map(self._message_of, part)), separate=True)
        except RefusedError as error:
            wrong = {fault.index: fault for fault in error.faults}
            for place, fault in wrong.items():
                self._failed(part[place], RefusedError([fault]))
            if rest := [one for place, one in enumerate(part) if place not in wrong]:
                self._begin(rest)
        except Exception as error:  # noqa: BLE001 - those who wait get it
            if len(part) == 1:
                self._failed(part[0], error)
            else:  # perhaps one of them alone is the reason
                for one in part:
                    self._begin([one])
        else:
            pending.stored.add_done_callback(lambda _: self._done(pending, part))

    def _done(self, pending: PendingSend, part: list[_Send]) -> None:
        try:
            places = self._places_of(pending)
        except Exception as error:  # noqa: BLE001 - as above
            for one in part:
                self._failed(one, error)
        else:
            self._stored(pending, part, places)
