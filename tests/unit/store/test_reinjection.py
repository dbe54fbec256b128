from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.store.record import (
    FLAG_EARLY,
    FLAG_KEYED,
    FLAG_MORE,
    NO_OFFSET,
    Kind,
    decode,
    decode_header,
    encode,
    fault,
    padded,
    replace,
)
from timerwheel.store.reinjection import reinjected

MS = st.integers(0, 1 << 45)
OFFSET = st.integers(0, 1 << 50)
TIMER = st.fixed_dictionaries(
    {
        "topic": st.sampled_from([b"t", b"orders", b"x" * 127]),
        "properties": st.sampled_from([b"", b'{"TAGS":"a"}']),
        "body": st.binary(max_size=80),
        "store_ms": MS,
        "due_ms": MS,
        "enqueue_ms": MS,
        "flags": st.sampled_from([0, FLAG_MORE, FLAG_KEYED, FLAG_EARLY, FLAG_KEYED | FLAG_MORE]),
        "level": st.integers(0, 18),
        "queue": st.integers(0, 7),
        "rolls": st.integers(0, 3),
        "root": st.just(NO_OFFSET) | OFFSET,
        "root_crc": st.integers(0, (1 << 32) - 1),
        "origin": st.just(NO_OFFSET) | OFFSET,
        "prior_due_ms": MS,
        "prior_level": st.integers(0, 18),
    }
)


def one_by_one(timer: bytes, offset: int, root: int, due_ms: int, now_ms: int, flags: int) -> bytes:
    """What a batch must be equal to."""
    header = decode_header(timer)
    return replace(
        timer,
        header,
        kind=Kind.MESSAGE,
        origin=offset,
        root=root,
        root_crc=header.crc if header.root == NO_OFFSET else header.root_crc,
        store_ms=now_ms,
        due_ms=due_ms,
        rolls=header.rolls,
        level=header.level,
        flags=flags,
    )


@given(
    fields=st.lists(st.tuples(TIMER, OFFSET, OFFSET, MS), max_size=6),
    now_ms=MS,
    flags=st.sampled_from([0, FLAG_EARLY]),
    padding=st.sampled_from([0, 8, 504]),
)
def test_a_batch_is_what_its_timers_are_one_by_one(
    fields: list[tuple[dict[str, Any], int, int, int]], now_ms: int, flags: int, padding: int
) -> None:
    whole = [encode(Kind.TIMER, **timer) for timer, _, _, _ in fields]
    timers = [padded(timer, padding) for timer in whole]
    offsets, roots, dues_ms = ([row[place] for row in fields] for place in (1, 2, 3))
    made = reinjected(
        timers,
        np.array(offsets, np.uint64),
        np.array(roots, np.uint64),
        np.array(dues_ms, np.int64),
        now_ms=now_ms,
        flags=flags,
    )
    assert made == [
        one_by_one(*row, now_ms, flags) for row in zip(timers, offsets, roots, dues_ms, strict=True)
    ]
    for timer, message in zip(timers, made, strict=True):
        assert fault(message) is None
        assert decode(message)[1:] == decode(timer)[1:], "topic, properties and body stay"
    assert [len(message) for message in made] == [len(timer) for timer in whole], "padding does not"
