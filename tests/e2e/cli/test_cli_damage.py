"""A message that cannot be read any more is shown as one, and never taken for an empty one."""

import shutil
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


def sent(data, *bodies):
    """A service that took these messages and was killed; returns the one segment of its log."""
    with serving(data) as service:
        for body in bodies:
            assert timerwheel("send", "t", body, "--url", service.url).code == 0
        service.end(signal.SIGKILL)
    [segment] = (data / "log").glob("*.log")
    return segment


def damage(segment, body):
    content = segment.read_bytes()
    assert content.count(body.encode()) == 1
    segment.write_bytes(content.replace(body.encode(), body.upper().encode()))


BODIES = ("first", BODY, "third", "fourth")


def refused(data):
    """A start on a log that is damaged in its middle, with its index lost."""
    segment = sent(data, *BODIES)
    damage(segment, BODY)
    shutil.rmtree(data / "index")
    before = segment.read_bytes()
    done = timerwheel("serve", "--data", data, "--port", 0)
    assert done.code == 1
    assert segment.read_bytes() == before
    return segment, done.err


def bodies_of(service):
    received = timerwheel("receive", "t", "--json", "--url", service.url)
    return [message["body"] for message in received.lines]


def test_a_log_damaged_in_its_middle_is_refused_with_its_place_and_two_ways_out(tmp_path):
    segment, told = refused(tmp_path / "d")
    assert f"{segment}: damaged at log offset " in told
    assert "--salvage" in told
    assert "--cut" in told
    listed = timerwheel("fsck", "--data", tmp_path / "d")
    assert listed.code == 1
    assert "log_damaged" in listed.out


def test_salvage_starts_with_every_whole_message_on_both_sides_and_is_needed_once(tmp_path):
    data = tmp_path / "d"
    refused(data)
    with serving(data, "--salvage") as service:
        assert bodies_of(service) == ["first", "third", "fourth"]
        assert timerwheel("send", "t", "fifth", "--url", service.url).code == 0
        service.end(signal.SIGKILL)
    with serving(data) as service:
        assert bodies_of(service) == ["first", "third", "fourth", "fifth"]


def test_cut_starts_with_what_lies_before_the_damage_and_the_rest_can_be_read(tmp_path):
    data = tmp_path / "d"
    refused(data)
    with serving(data, "--cut") as service:
        assert bodies_of(service) == ["first"]
        assert timerwheel("send", "t", "fifth", "--url", service.url).code == 0
        service.end(signal.SIGTERM)
    with serving(data) as service:
        assert bodies_of(service) == ["first", "fifth"]
        checked = timerwheel("fsck", "--data", data)
        assert (checked.code, "log_quarantined" in checked.out) == (0, True)
        shown = timerwheel("log", "--data", data, "--quarantined", "--json", "--body")
        assert [record["body"] for record in shown.lines] == ["third", "fourth"]
        assert "are damaged: the CRC does not match" in shown.err


def test_salvage_and_cut_together_are_a_mistake(tmp_path):
    done = timerwheel("serve", "--data", tmp_path / "d", "--salvage", "--cut")
    assert done.code == 2
    assert "not both" in done.err
    assert not (tmp_path / "d").exists()


def test_a_damaged_message_that_waits_is_recalled_unread_if_that_is_asked_for(tmp_path):
    data = tmp_path / "d"
    with serving(data, "--segment-size", "4KiB") as service:
        sent = timerwheel("send", "t", BODY, "--delay", "1h", "--json", "--url", service.url).json
        for body in ("other", "x" * 3_000, "y" * 3_000):  # so that the damage is in a sealed segment
            assert timerwheel("send", "t", body, "--delay", "1h", "--url", service.url).code == 0
        assert service.end(signal.SIGTERM).code == 0
    segment = next(path for path in (data / "log").glob("*.log") if BODY.encode() in path.read_bytes())
    damage(segment, BODY)
    with serving(data) as service:
        refused = timerwheel("recall", sent["id"], "--url", service.url)
        assert refused.code == 1
        both = timerwheel("recall", sent["id"], sent["id"], "--damaged", "--url", service.url)
        assert both.code == 2
        ended = timerwheel("recall", sent["id"], "--damaged", "--json", "--url", service.url)
        assert ended.code == 0
        assert (ended.json["id"], ended.json["topic"], ended.json["state"]) == (sent["id"], "t", "recalled")
        assert ended.json["problem"]
        again = timerwheel("recall", sent["id"], "--damaged", "--url", service.url)
        assert again.code == 1
        assert "already" in again.err
        waiting = timerwheel("messages", "list", "--json", "--url", service.url).json["messages"]
        assert [message["body"][:5] for message in waiting] == ["other", "xxxxx", "yyyyy"]
