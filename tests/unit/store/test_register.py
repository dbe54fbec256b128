"""Registers: what is found in them is what was put there, in memory and on disk, or damage is reported."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timerwheel.store import register
from timerwheel.store.files import DiskFiles
from timerwheel.store.register import (
    BLOCK_BYTES,
    KEY_DTYPE,
    RECALL_DTYPE,
    Draft,
    Found,
    Lookup,
    Register,
    RegisterDamagedError,
)

BASE, END = 4_096, 1 << 20
FILES = DiskFiles()
FAR = 1 << 62


def rows(dtype, pairs):
    found = np.zeros(len(pairs), dtype)
    for place, (key_hash, order) in enumerate(pairs):
        found[place] = (key_hash, order, *([place] * (len(dtype.names) - 2)))
    return found


def draft_of(*parts, recalls=()):
    draft = Draft(BASE, BASE + 64)
    for number, part in enumerate(parts):
        draft.add(Found(rows(KEY_DTYPE, part), rows(RECALL_DTYPE, recalls), number, number), END)
    return draft


def pairs_of(found):
    return list(zip(found["hash"].tolist(), found["order"].tolist(), strict=True))


PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=40)


@settings(deadline=None)
@given(
    st.lists(PAIRS, min_size=1, max_size=5),
    st.tuples(st.integers(0, 5), st.integers(0, 31), st.integers(0, 31), st.integers(1, 20), st.booleans()),
)
def test_a_file_and_a_draft_find_the_lowest_or_the_highest_entries_of_a_hash(tmp_path_factory, parts, wanted):
    path = tmp_path_factory.getbasetemp() / "x.keys"
    draft = draft_of(*parts)
    register.write(FILES, path, draft)
    stored = Register.open(FILES, path, BASE, END)
    key_hash, low, high, count, newest = wanted
    expected = sorted(
        pair for part in parts for pair in part if pair[0] == key_hash and low <= pair[1] < high
    )
    expected = expected[-count:] if newest else expected[:count]
    lookup = Lookup(key_hash, low, high, count, newest)
    for source in (draft, stored):
        assert pairs_of(source.find_keys(lookup)) == expected
        assert pairs_of(source.find_recalls(lookup)) == []


@pytest.mark.parametrize("count", [0, 1, 169, 170, 171, 5_000])
def test_tables_of_many_blocks_are_searched_whole(tmp_path, count):
    pairs = [(place % 7, place) for place in range(count)]
    draft = draft_of(pairs, recalls=pairs)
    register.write(FILES, tmp_path / "x.keys", draft)
    stored = Register.open(FILES, tmp_path / "x.keys", BASE, END)
    stored.check()
    for key_hash in range(8):
        own = [pair for pair in pairs if pair[0] == key_hash]
        for find in (stored.find_keys, stored.find_recalls):
            assert pairs_of(find(Lookup(key_hash, 0, FAR, 10_000))) == own
            assert pairs_of(find(Lookup(key_hash, 0, FAR, 3, newest=True))) == own[-3:]
            assert (
                pairs_of(find(Lookup(key_hash, 1_000, 2_000, 9)))
                == [pair for pair in own if 1_000 <= pair[1] < 2_000][:9]
            )
    assert (stored.first_ms, stored.last_ms) == (draft.first_ms, draft.last_ms)


@pytest.mark.parametrize(("base", "end"), [(BASE + 8, END), (BASE, END + 8)])
def test_the_register_of_another_segment_is_none(tmp_path, base, end):
    register.write(FILES, tmp_path / "x.keys", draft_of([(1, 1)]))
    assert Register.open(FILES, tmp_path / "x.keys", base, end) is None
    assert Register.open(FILES, tmp_path / "y.keys", BASE, END) is None


def test_every_flipped_byte_is_noticed_when_it_is_read(tmp_path):
    path = tmp_path / "x.keys"
    register.write(FILES, path, draft_of([(1, place) for place in range(20)], recalls=[(2, 3)]))
    sound = path.read_bytes()
    assert len(sound) == 64 + 2 * BLOCK_BYTES
    for place in [*range(64), *range(64, len(sound), 61)]:
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 0x20]) + sound[place + 1 :])
        found = Register.open(FILES, path, BASE, END)
        if found is not None:
            with pytest.raises(RegisterDamagedError):
                found.check()
    for size in (0, 63, 64, 65, len(sound) - 1):
        path.write_bytes(sound[:size])
        assert Register.open(FILES, path, BASE, END) is None


def test_a_block_in_the_place_of_another_is_damage(tmp_path):
    path = tmp_path / "x.keys"
    register.write(FILES, path, draft_of([(1, place) for place in range(400)]))
    sound = path.read_bytes()
    first, second = sound[64 : 64 + BLOCK_BYTES], sound[64 + BLOCK_BYTES : 64 + 2 * BLOCK_BYTES]
    path.write_bytes(sound[:64] + second + first + sound[64 + 2 * BLOCK_BYTES :])
    with pytest.raises(RegisterDamagedError, match="fails its CRC"):
        Register.open(FILES, path, BASE, END).find_keys(Lookup(1, 0, FAR, 10))


def test_a_register_that_was_removed_is_damaged(tmp_path):
    path = tmp_path / "x.keys"
    register.write(FILES, path, draft_of([(1, 1)]))
    found = Register.open(FILES, path, BASE, END)
    path.unlink()
    with pytest.raises(RegisterDamagedError):
        found.find_keys(Lookup(1, 0, FAR, 10))
