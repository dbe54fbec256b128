"""How many records a transaction has after others have failed, or taken long."""

import pytest

from timerwheel.kafka.transaction_size import RECORDS_MAX, TransactionSize

LASTS_MS = 60_000


def test_after_failures_there_are_fewer_and_at_least_one() -> None:
    size = TransactionSize(LASTS_MS)
    found = []
    for _ in range(6):
        size.failed()
        found.append(size.records_max)
    assert found == [625, 78, 9, 1, 1, 1]


@pytest.mark.parametrize("each_ms", [1, 1_500, 10_000])
def test_where_each_transaction_takes_as_long_whatever_it_has_they_grow_again(each_ms: int) -> None:
    size = TransactionSize(LASTS_MS)
    for _ in range(5):
        size.failed()
    for _ in range(13):
        size.ended(each_ms)
    assert size.records_max == RECORDS_MAX


@pytest.mark.parametrize("record_ms", [1, 7, 15, 100, 1_000, 14_000])
@pytest.mark.parametrize("lasts_ms", [1_000, LASTS_MS])
def test_where_they_take_longer_the_more_they_have_few_fail(record_ms: int, lasts_ms: int) -> None:
    size, failures = TransactionSize(lasts_ms), 0
    for _ in range(100):
        took_ms = size.records_max * record_ms
        if took_ms > lasts_ms and size.records_max > 1:
            failures += 1
            size.failed()
        else:
            size.ended(took_ms)
    assert failures <= 4
