"""Receipts: what cannot be made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.groups.receipts import Receipts

SECRET = bytes(range(16))
ROOTS = st.integers(0, (1 << 64) - 2)


@given(root=ROOTS, group=st.sampled_from(("orders/g", "a/b|c", "%DLQ%g/h")))
def test_a_receipt_leads_back_to_its_lease(root, group):
    receipt = Receipts(SECRET).encode(group, root)
    assert len(receipt) == 32
    assert Receipts(SECRET).root_of(group, receipt) == root


@given(root=ROOTS)
def test_a_receipt_is_good_for_one_group_of_one_log(root):
    receipt = Receipts(SECRET).encode("orders/g", root)
    assert Receipts(SECRET).root_of("orders/h", receipt) is None
    assert Receipts(SECRET).root_of("order/sg", receipt) is None
    assert Receipts(SECRET[::-1]).root_of("orders/g", receipt) is None


@given(root=ROOTS)
def test_every_flipped_bit_makes_it_no_receipt(root):
    receipts = Receipts(SECRET)
    raw = bytes.fromhex(receipts.encode("orders/g", root))
    for bit in range(128):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert receipts.root_of("orders/g", flipped.hex()) is None


@pytest.mark.parametrize(
    "text",
    ["", "0" * 32, "0" * 31, "0" * 33, "g" * 32, "\u0660" * 32, " " * 32, "0x" + "0" * 30, "-" * 32, "\n"],
)
def test_what_is_no_receipt_at_all_is_told_apart(text):
    assert Receipts(SECRET).root_of("orders/g", text) is None


def test_a_receipt_has_one_spelling():
    receipt = Receipts(SECRET).encode("orders/g", 0xABCDEF)
    for other in (receipt.upper(), receipt + "\n", " " + receipt):
        assert Receipts(SECRET).root_of("orders/g", other) is None
