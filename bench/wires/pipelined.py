"""Requests in flight on a connection whose protocol answers every message of an array on its own."""

from collections import deque


class InFlight:
    """The requests that are not answered in whole yet, in their order."""

    def __init__(self) -> None:
        self._messages: deque[int] = deque()
        self._answered = 0

    def sent(self, messages: int) -> None:
        """A request with so many messages was written; at least one."""
        self._messages.append(messages)

    def answered(self, messages: int) -> int:
        """So many more messages were answered: how many requests that finished."""
        self._answered += messages
        finished = 0
        while self._messages and self._answered >= self._messages[0]:
            self._answered -= self._messages.popleft()
            finished += 1
        return finished
