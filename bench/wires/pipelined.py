"""Counts requests in flight where the protocol answers every message of an array separately."""

from collections import deque


class InFlight:
    """The requests without a complete response, in order."""

    def __init__(self) -> None:
        self._messages: deque[int] = deque()
        self._answered = 0

    def sent(self, messages: int) -> None:
        """Record a written request with this many messages, at least one."""
        self._messages.append(messages)

    def answered(self, messages: int) -> int:
        """Record this many more answered messages; returns the number of finished requests."""
        self._answered += messages
        finished = 0
        while self._messages and self._answered >= self._messages[0]:
            self._answered -= self._messages.popleft()
            finished += 1
        return finished
