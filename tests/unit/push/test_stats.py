import msgspec

from timerwheel.push.dispatcher import Slots
from timerwheel.push.outcome import Outcome, failed
from timerwheel.push.stats import LATENCIES_MAX, Stats


def delivered(latency_ms: int) -> Outcome:
    return Outcome("delivered", "HTTP 200", 200, None, latency_ms)


def test_nothing_is_said_of_latency_before_the_first_attempt():
    view = Stats().view(0)
    assert (view.latency_p50_ms, view.latency_p99_ms, view.last_attempt_ms) == (None, None, None)


def test_latencies_are_of_the_last_attempts_only():
    stats = Stats()
    for latency_ms in [10**6] * LATENCIES_MAX + list(range(1, LATENCIES_MAX + 1)):
        stats.record(delivered(latency_ms), 0)
    assert (stats.view(0).latency_p50_ms, stats.view(0).latency_p99_ms) == (500, 990)


def test_a_success_ends_the_row_of_failures_and_keeps_the_last_error():
    stats = Stats()
    stats.record(failed("no connection"), 1)
    stats.record(Outcome("gone", "HTTP 410", 410), 2)
    assert stats.view(3).failures_in_row == 2
    assert stats.view(3).last_status == 410
    stats.record(delivered(5), 3)
    assert msgspec.structs.asdict(stats.view(3)) == {
        "delivered": 1,
        "failed": 2,
        "in_flight": 3,
        "failures_in_row": 0,
        "last_status": 200,
        "last_error": "HTTP 410",
        "last_attempt_ms": 3,
        "latency_p50_ms": 0,
        "latency_p99_ms": 5,
    }


def test_slots_are_never_more_than_there_are():
    slots = Slots(5)
    assert [slots.take(3), slots.take(3), slots.take(1), slots.take(-1)] == [3, 2, 0, 0]
    slots.give(5)
    assert slots.free == 5
