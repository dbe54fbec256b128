"""Delivered messages as clients see them: many at once are what each is."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.model.admission import DOMAIN_PROPERTY, HASH_PROPERTY
from timerwheel.model.ids import Ids
from timerwheel.model.messages import State
from timerwheel.runtime.message_views import delivered_views, id_of, message_view
from timerwheel.store.record import NO_OFFSET, Kind, decode, encode

IDS = Ids(bytes(16))
OFFSETS = st.one_of(st.just(NO_OFFSET), st.integers(0, 1 << 50))
NAMES = st.sampled_from(["TAGS", "KEYS", "colour", HASH_PROPERTY, DOMAIN_PROPERTY])
RECORDS = st.builds(
    encode,
    st.just(Kind.MESSAGE),
    st.sampled_from([b"orders", b"t", b"a" * 127]),
    st.dictionaries(NAMES, st.text(max_size=5), max_size=4).map(
        lambda one: orjson.dumps(one) if one else b""
    ),
    st.binary(max_size=40),
    *[st.integers(0, 1 << 42)] * 3,
    level=st.integers(0, 18),
    queue=st.integers(0, 9),
    rolls=st.integers(0, 3),
    root=OFFSETS,
    root_crc=st.integers(0, (1 << 32) - 1),
    origin=OFFSETS,
)


@given(st.lists(RECORDS, max_size=5))
def test_the_views_of_many_are_the_views_of_each(records):
    roots = list(range(100, 100 + len(records)))
    expected = []
    for place, data in enumerate(records):
        record = decode(data)
        identity = record.header.identity(roots[place])
        expected.append(
            message_view(
                record,
                IDS.encode(roots[place], identity.root_crc),
                State.DELIVERED,
                delivered_ms=record.header.store_ms,
                queue_offset=place,
            )
        )
    assert delivered_views(IDS, records, roots, range(len(records))) == expected
    assert [view.id for view in expected] == [
        id_of(IDS, decode(data), root) for data, root in zip(records, roots, strict=True)
    ]
