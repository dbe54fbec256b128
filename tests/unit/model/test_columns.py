"""Messages as columns: admitted as one by one, and their ids made many at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.columns import columns_of
from timerwheel.errors import AdmissionError
from timerwheel.model.admission import Rules, admit
from timerwheel.model.columns import ColumnReceipts, admit_sets, dues_of, faults_of, wrong_rows
from timerwheel.model.ids import Ids
from timerwheel.model.messages import Outgoing, Receipt, State
from timerwheel.settings import Settings

NOW_MS = 1_800_000_000_000
INT64 = 2**63
MS = st.one_of(st.integers(-INT64, INT64 - 1), st.sampled_from([0, 1, -1, NOW_MS, NOW_MS + 1, 10**13]))
PROPERTIES = st.dictionaries(
    st.sampled_from(["a", "TRAN_MSG", "TAGS", "REAL_TOPIC", "", "traceparent"]),
    st.sampled_from(["1", "true", "x" * 40]),
    max_size=3,
)
DELAYS = st.dictionaries(
    st.sampled_from(["DELAY", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"]),
    st.sampled_from(["0", "3", "-1", "99", "soon", str(NOW_MS + 5)]),
    max_size=2,
)
MESSAGES = st.lists(
    st.one_of(
        st.builds(Outgoing, st.sampled_from(["t", "no good", "%DLQ%x"]), st.binary(max_size=6), PROPERTIES),
        st.builds(lambda ms: Outgoing("t", b"", after_ms=ms), MS),
        st.builds(lambda ms: Outgoing("u", b"", {"a": "1"}, at_ms=ms), MS),
        st.builds(lambda one, other: Outgoing("t", b"", one | other), PROPERTIES, DELAYS),
    ),
    min_size=1,
    max_size=20,
)


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    limits = {"body_bytes_max": 5, "properties_max": 2, "properties_bytes_max": 50}
    return Rules.of(Settings(data=tmp_path_factory.mktemp("data"), **limits))


@given(messages=MESSAGES)
def test_columns_are_admitted_as_their_messages_are(rules, messages):
    columns = columns_of(messages)
    sets = admit_sets(columns.sets, NOW_MS, rules)
    due_ms, level = dues_of(columns, sets, NOW_MS, rules)
    wrong = wrong_rows(columns, sets, due_ms, NOW_MS, rules)
    faults = {fault.index: fault for fault in faults_of(columns, wrong, NOW_MS, rules)}
    for row, message in enumerate(messages):
        if row in faults:
            with pytest.raises(AdmissionError) as caught:
                admit(message, NOW_MS, rules)
            assert (faults[row].code, faults[row].detail) == (caught.value.code, caught.value.detail)
            continue
        plan = admit(message, NOW_MS, rules)
        assert (due_ms[row], level[row], due_ms[row] > NOW_MS) == (plan.due_ms, plan.level, plan.waits)
        found = sets[columns.properties[row]]
        assert found is not None
        assert found.properties == plan.properties


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), max_size=600))
def test_ids_of_many_are_the_ids_of_each(pairs):
    ids = Ids(b"k" * 16)
    roots, crcs = np.array([r for r, _ in pairs], np.uint64), np.array([c for _, c in pairs], np.uint32)
    each = [ids.encode(root, crc) for root, crc in pairs]
    assert ids.encode_many(roots, crcs) == "".join(each)
    assert ids.encode_each([root for root, _ in pairs], [crc for _, crc in pairs]) == each


def test_receipts_of_some_rows_are_theirs():
    receipts = ColumnReceipts(
        "a" * 24 + "b" * 24 + "c" * 24,
        ["t", "u"],
        np.array([0, 1, 0]),
        np.array([5, 6, 7]),
        np.array([True, False, True]),
    )
    assert receipts.receipts(slice(1, 3)) == [
        Receipt("b" * 24, "u", 6, State.DELIVERED),
        Receipt("c" * 24, "t", 7, State.SCHEDULED),
    ]
