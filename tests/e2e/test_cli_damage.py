"""A message that cannot be read any more is shown as one, and never taken for an empty one."""

import signal

from tests.harness.processes import serving, timerwheel

BODY = "a body that is found by its bytes"


def test_a_damaged_message_is_named_where_it_is_read_and_is_not_acknowledged(tmp_path):
    with serving(tmp_path / "d", "--segment-size", "4KiB") as service:
        for body in ("first", BODY, "x" * 3_000, "y" * 3_000):  # so that the damage is in a sealed segment
            assert timerwheel("send", "t", body, "--url", service.url).code == 0
        assert service.end(signal.SIGTERM).code == 0
    [segment] = [
        path for path in (tmp_path / "d" / "log").glob("*.log") if BODY.encode() in path.read_bytes()
    ]
    segment.write_bytes(segment.read_bytes().replace(BODY.encode(), BODY.upper().encode()))
    with serving(tmp_path / "d") as service:
        shown = timerwheel("receive", "t", "--url", service.url)
        assert shown.code == 1
        first, damaged, *rest = shown.out.splitlines()
        assert first.endswith("first")
        assert "damaged: " in damaged
        assert segment.name in damaged
        assert len(rest) == 2
        given = timerwheel("groups", "receive", "t", "g", "--max", 4, "--ack", "--url", service.url)
        assert given.code == 1
        assert sum("damaged: " in line for line in given.out.splitlines()) == 1
        held = timerwheel("groups", "show", "t", "g", "--json", "--url", service.url).json
        assert held["in_flight"] == 1
        log = service.end(signal.SIGTERM).err
    assert "ERROR" in log
    assert segment.name in log
