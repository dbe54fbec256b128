"""Receipts: what cannot be made up."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timerwheel.groups.leases import Lease
from timerwheel.groups.receipts import RECEIPT_BYTES, Receipts, attempt_in, mark_in, place_in

SECRET = bytes(range(16))
ROOTS = st.integers(0, (1 << 64) - 2)
WORDS = st.integers(0, (1 << 32) - 1)
LEASES = st.builds(
    Lease,
    st.integers(0, (1 << 64) - 1),
    st.integers(1, (1 << 16) - 1),
    run=WORDS,
    number=WORDS,
    mark=st.none() | WORDS,
)
GROUPS = st.sampled_from(("orders/g", "a/b|c", "%DLQ%g/h"))
SINCE = st.one_of(st.integers(0, 3), st.integers(0, (1 << 63) - 1))
LEASE = Lease(0xFFFF << 48 | 7, 3, run=5, number=9, mark=0xC0FFEE)
UNMARKED = Lease(0xFFFF << 48 | 7, 3, run=5, number=9)


FORMATS = Path(__file__).parents[3] / "doc" / "log-format.md"


def named(lease):
    return lease.key, lease.attempt, lease.run, lease.number, lease.mark


def test_the_page_on_formats_says_how_long_a_receipt_is():
    assert len(Receipts(SECRET, "orders/g", 0).encode(LEASE)) == 2 * RECEIPT_BYTES
    assert f"A receipt has {RECEIPT_BYTES} bytes" in FORMATS.read_text(encoding="utf-8")


@given(lease=LEASES, group=GROUPS, since=SINCE)
def test_a_receipt_leads_back_to_its_lease(lease, group, since):
    receipt = Receipts(SECRET, group, since).encode(lease)
    assert len(receipt) == (60 if lease.mark is None else 68)
    found = Receipts(SECRET, group, since).decode(receipt)
    assert named(found) == named(lease)
    assert found.identity == lease.identity
    assert place_in(receipt) == (lease.queue, lease.queue_offset)
    assert (attempt_in(receipt), mark_in(receipt)) == (lease.attempt, lease.mark)


@given(leases=st.lists(LEASES, max_size=20), since=SINCE)
def test_the_receipts_of_many_leases_are_those_of_each(leases, since):
    receipts = Receipts(SECRET, "orders/g", since)
    assert receipts.encode_all(leases) == [receipts.encode(lease) for lease in leases]


@given(lease=LEASES, since=SINCE)
def test_a_receipt_is_good_for_one_group_of_one_log(lease, since):
    receipt = Receipts(SECRET, "orders/g", since).encode(lease)
    assert Receipts(SECRET, "orders/h", since).decode(receipt) is None
    assert Receipts(SECRET, "order/sg", since).decode(receipt) is None
    assert Receipts(SECRET[::-1], "orders/g", since).decode(receipt) is None


@given(lease=LEASES, since=SINCE, later=st.integers(1, (1 << 32) - 1))
def test_a_receipt_from_before_its_group_was_rewound_is_of_no_attempt(lease, since, later):
    receipt = Receipts(SECRET, "orders/g", since).encode(lease)
    found = Receipts(SECRET, "orders/g", since + later).decode(receipt)
    assert (found.key, found.attempt) == (lease.key, 0)


@given(lease=LEASES)
def test_every_flipped_bit_makes_it_no_receipt(lease):
    receipts = Receipts(SECRET, "orders/g", 77)
    raw = bytes.fromhex(receipts.encode(lease))
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert receipts.decode(flipped.hex()) is None


@given(one=LEASES, other=LEASES)
def test_two_leases_have_two_receipts(one, other):
    receipts = Receipts(SECRET, "orders/g", 77)
    assert (receipts.encode(one) == receipts.encode(other)) == (named(one) == named(other))


# ---------------------------------------------------------------------- of earlier versions


@given(root=ROOTS, group=GROUPS, since=SINCE)
def test_a_receipt_of_an_earlier_version_leads_to_the_root_of_its_lease(root, group, since):
    receipt = Receipts(SECRET, group, 0).encode_root(root)
    assert len(receipt) == 32
    assert Receipts(SECRET, group, since).decode(receipt) == root


def test_what_an_earlier_version_gave_out_is_read():
    """Made by the program of the version before."""
    assert Receipts(SECRET, "orders/g", 5).decode("0000000000abcdefaa3ea29fa649a861") == 0xABCDEF


def test_what_the_version_before_marks_gave_out_is_read_and_made_again():
    """Made by the program of that version."""
    given = "ffff0000000000070003000000050000000500000009b08cc40834c1072a"
    receipts = Receipts(SECRET, "orders/g", 5)
    assert named(receipts.decode(given)) == named(UNMARKED)
    assert receipts.encode(UNMARKED) == given


def test_no_part_of_a_receipt_is_one_of_another_form():
    receipts = Receipts(SECRET, "orders/g", 5)
    marked, unmarked = receipts.encode(LEASE), receipts.encode(UNMARKED)
    for text in (marked[:60], marked[:44] + marked[52:], unmarked[:44] + marked[44:52] + unmarked[44:]):
        assert receipts.decode(text) is None


@given(root=ROOTS)
def test_a_receipt_of_an_earlier_version_is_good_for_one_group_of_one_log(root):
    receipt = Receipts(SECRET, "orders/g", 0).encode_root(root)
    assert Receipts(SECRET, "orders/h", 0).decode(receipt) is None
    assert Receipts(SECRET, "order/sg", 0).decode(receipt) is None
    assert Receipts(SECRET[::-1], "orders/g", 0).decode(receipt) is None


@given(root=ROOTS)
def test_every_flipped_bit_makes_one_of_an_earlier_version_no_receipt(root):
    receipts = Receipts(SECRET, "orders/g", 0)
    raw = bytes.fromhex(receipts.encode_root(root))
    for bit in range(128):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert receipts.decode(flipped.hex()) is None


# ---------------------------------------------------------------------- spelling


@given(size=st.sampled_from((31, 32, 33, 59, 60, 61, 67, 68, 69)), text=st.data())
@example(size=32, text=None)
@example(size=60, text=None)
@example(size=68, text=None)
def test_what_is_no_receipt_at_all_has_another_error(size, text):
    letters = st.text("0123456789abcdef", min_size=size, max_size=size)
    assert Receipts(SECRET, "orders/g", 0).decode("0" * size if text is None else text.draw(letters)) is None


@pytest.mark.parametrize("size", [32, 60, 68])
@pytest.mark.parametrize("text", ["", "g", "\u0660", " ", "-", "\n"])
def test_what_is_not_hexadecimal_is_no_receipt(text, size):
    assert Receipts(SECRET, "orders/g", 0).decode(text * size) is None
    assert Receipts(SECRET, "orders/g", 0).decode("0x" + "0" * (size - 2)) is None


@pytest.mark.parametrize("form", ["marked", "unmarked", "root"])
def test_a_receipt_has_one_spelling(form):
    receipts = Receipts(SECRET, "orders/g", 0)
    forms = {
        "marked": receipts.encode(LEASE),
        "unmarked": receipts.encode(UNMARKED),
        "root": receipts.encode_root(0xABCDEF),
    }
    receipt = forms[form]
    assert receipts.decode(receipt) is not None
    for other in (receipt.upper(), receipt + "\n", " " + receipt, receipt + "0", receipt[:-1]):
        assert receipts.decode(other) is None
