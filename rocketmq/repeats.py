"""Recent sends, to recognize those that a client repeats because it got no answer.

A client names each message by UNIQ_KEY and repeats a send with the same name when the connection breaks or
the answer is late. But programs also send the same message object twice on purpose, and it keeps its
UNIQ_KEY. So a send counts as a repeat only if it has the same content and the answer to the first may have
been missed: it is not written yet, it was written to a connection that is closed now, or it took
ANSWER_LATE_MS or longer.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from zlib import crc32

import msgspec

from timerwheel.rocketmq.request import Answer, Link, Request

ANSWER_LATE_MS: Final = 1_000
KEY_CHARACTERS_MAX: Final = 128
"""A longer UNIQ_KEY is none that a client made, and its send is not remembered."""
ANSWERS_CHARACTERS_MAX: Final = 64 << 20
"""Most characters of remembered answers; that to a batch names each of its messages."""


class Sent(msgspec.Struct):
    """A send; `answer` is None while it is in progress, `waiting` has the repeats that came since."""

    key: tuple[str, str]
    content: int
    began_ms: int
    link: Link
    answer: Answer | None = None
    is_late: bool = False
    waiting: list[Request] = []


class Repeats:
    """The last `count_max` sends. Event loop only."""

    def __init__(self, count_max: int, now_ms: Callable[[], int]) -> None:
        self._count_max = count_max
        self._now_ms = now_ms
        # Sends leave in any order, the oldest ones most often: a plain dict would search for these.
        self._sent: OrderedDict[tuple[str, str], Sent] = OrderedDict()
        self._characters = 0  # of the answers

    def begin(self, topic: str, uniq_key: str, request: Request) -> Sent | None:
        """Remember a send; None if it repeats an earlier one, and so gets the answer of that one."""
        fields = request.frame.fields
        text = fields.get("i") or fields.get("properties", "")
        content = crc32(request.frame.body, crc32(text.encode()))
        key = topic, uniq_key
        sent = Sent(key, content, self._now_ms(), request.link)
        if not is_key_of_client(uniq_key) or not self._count_max or request.is_one_way:
            return sent
        first = self._sent.get(key)
        if first is not None and first.content == content:
            if first.answer is None:
                first.waiting.append(request)
                return None
            if first.is_late or first.link.is_closed:
                request.answer(first.answer)
                return None
        self._forget(first)
        self._sent[key] = sent
        if len(self._sent) > self._count_max:
            self._forget_oldest()
        return sent

    def end(self, sent: Sent, answer: Answer, *, is_stored: bool) -> None:
        """The send is answered. If nothing was stored, a repeat of it is a new send."""
        sent.answer, sent.is_late = answer, self._now_ms() - sent.began_ms >= ANSWER_LATE_MS
        if self._sent.get(sent.key) is sent:
            self._characters += _characters_of(answer)
            if not is_stored:
                self._forget(sent)
            while self._characters > ANSWERS_CHARACTERS_MAX:
                self._forget_oldest()
        for request in sent.waiting:
            request.answer(answer)
        sent.waiting = []

    def _forget_oldest(self) -> None:
        self._forget(next(iter(self._sent.values())))

    def _forget(self, sent: Sent | None) -> None:
        if sent is not None:
            del self._sent[sent.key]
            self._characters -= 0 if sent.answer is None else _characters_of(sent.answer)


def is_key_of_client(uniq_key: str) -> bool:
    """Whether a client may have made this key."""
    return 0 < len(uniq_key) <= KEY_CHARACTERS_MAX and uniq_key.isascii() and uniq_key.isprintable()


def _characters_of(answer: Answer) -> int:
    return len(answer.fields.get("msgId", ""))
