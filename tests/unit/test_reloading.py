from pathlib import Path

from timerwheel.settings import Serving, Settings, take_over


def test_what_can_change_is_taken_over_by_all_who_hold_the_settings_and_the_rest_waits():
    held = Settings(data=Path("d"))
    elsewhere = held
    wanted = Settings(data=Path("d"), retention_ms=5, topics_max=7, disk_reserve_bytes=9)
    assert take_over(held, wanted) == (["retention_ms", "disk_reserve_bytes"], ["topics_max"])
    assert (elsewhere.retention_ms, elsewhere.disk_reserve_bytes) == (5, 9)
    assert elsewhere.topics_max == Settings(data=Path("d")).topics_max


def test_no_change_is_reported_as_none():
    assert take_over(Serving(), Serving()) == ([], [])
