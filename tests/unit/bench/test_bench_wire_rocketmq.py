"""`bench.wires.rocketmq`, against frames put together by hand after RocketMQ's own source."""

import struct

import pytest

from bench.body import body
from bench.wires.rocketmq import Receiver, Sender
from bench.wires.wire import RefusedError

SPEC = {"wire": "rocketmq", "host": "127.0.0.1", "port": 1, "topic": "orders"}
DUE_MS = 1_800_000_000_123
NOW_MS = 1_799_999_999_000
STORED_FOUND, NOTHING_FOUND, OFFSET_MOVED, NOT_KNOWN = 0, 19, 21, 22


def answer(code, *, fields=None, carried=b"", remark=b"", flags=1):
    """A frame as the broker writes it."""
    extra = b"".join(
        struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value
        for name, value in (fields or {}).items()
    )
    header = struct.pack(">hbhii", code, 0, 513, 7, flags)
    header += struct.pack(">i", len(remark)) + remark + struct.pack(">i", len(extra)) + extra
    return struct.pack(">ii", 4 + len(header) + len(carried), 1 << 24 | len(header)) + header + carried


def stored(offset, content):
    """A message as it stands in the commit log."""
    host = bytes((127, 0, 0, 1)) + struct.pack(">i", 4711)
    record = struct.pack(">iiiiqqiq", -626_843_481, 99, 0, 0, offset, 4096, 0, NOW_MS) + host
    record += struct.pack(">q", NOW_MS) + host + struct.pack(">iq", 0, 0)
    record += struct.pack(">i", len(content)) + content + b"\x06orders" + struct.pack(">h", 3) + b"a\x01b"
    return struct.pack(">i", 4 + len(record)) + record


def found(*contents, following):
    return answer(
        STORED_FOUND,
        fields={b"nextBeginOffset": b"%d" % following, b"minOffset": b"0"},
        carried=b"".join(stored(number, content) for number, content in enumerate(contents)),
        remark=b"FOUND",
    )


def requests(data):
    """Code, fields and body of each request in these bytes."""
    decoded = []
    while data:
        length, kind = struct.unpack_from(">ii", data)
        frame, data = data[4 : 4 + length], data[4 + length :]
        assert kind >> 24 == 1
        header, carried = frame[4 : 4 + (kind & 0xFFFFFF)], frame[4 + (kind & 0xFFFFFF) :]
        code, flags, remark_bytes, extra_bytes = struct.unpack_from(">h7xiii", header)
        assert (flags, remark_bytes) == (0, 0)
        extra, fields = header[21:], {}
        assert len(extra) == extra_bytes
        while extra:
            name_end = 2 + struct.unpack_from(">h", extra)[0]
            value_end = name_end + 4 + struct.unpack_from(">i", extra, name_end)[0]
            fields[extra[2:name_end].decode()] = extra[name_end + 4 : value_end].decode()
            extra = extra[value_end:]
        decoded.append((code, fields, carried))
    return decoded


def begun():
    """A receiver that knows how far its group is: 5."""
    receiver = Receiver(SPEC)
    receiver.begin()
    receiver.feed(answer(0, fields={b"offset": b"5"}))
    return receiver


def test_each_message_is_a_send_with_its_due_time_and_body():
    bodies = [body(number, DUE_MS * 1000) for number in range(3)]
    data = Sender(SPEC).request(bodies, [DUE_MS, DUE_MS + 1, DUE_MS + 2], NOW_MS)
    sends = requests(data)
    assert [code for code, _, _ in sends] == [310, 310, 310]
    assert [carried for _, _, carried in sends] == bodies
    assert [fields["i"] for _, fields, _ in sends] == [
        f"TIMER_DELIVER_MS\x01{DUE_MS + number}\x02" for number in range(3)
    ]
    assert all(
        (fields["b"], fields["e"], fields["g"]) == ("orders", "0", str(NOW_MS)) for _, fields, _ in sends
    )


def test_a_percent_sign_in_a_topic_stays_one():
    data = Sender(SPEC | {"topic": "50%d"}).request([b"x"], [DUE_MS], NOW_MS)
    assert requests(data)[0][1]["b"] == "50%d"


def test_answers_are_counted_wherever_they_are_cut():
    data = b"".join(answer(0, fields={b"msgId": b"%032d" % number}) for number in range(5))
    for cut in range(len(data) + 1):
        sender = Sender(SPEC)
        sender.request([b"a", b"b"], [DUE_MS] * 2, NOW_MS)
        sender.request([b"c"] * 3, [DUE_MS] * 3, NOW_MS)
        assert sender.feed(data[:cut]) + sender.feed(data[cut:]) == 2
    sender.request([b"d"], [DUE_MS], NOW_MS)
    assert [sender.feed(data[at : at + 1]) for at in range(len(data) // 5)][-1] == 1


def test_what_the_broker_asks_of_its_clients_is_no_answer():
    sender = Sender(SPEC)
    sender.request([b"a"], [DUE_MS], NOW_MS)
    assert sender.feed(answer(40, flags=2)) == 0
    assert sender.feed(answer(0)) == 1


def test_a_refused_send_is_an_error_with_its_code_and_remark():
    sender = Sender(SPEC)
    sender.request([b"a"], [DUE_MS], NOW_MS)
    with pytest.raises(RefusedError, match=r"^2 too many requests$"):
        sender.feed(answer(2, remark=b"too many requests"))


def test_a_consumer_asks_how_far_its_group_is_and_pulls_from_there():
    receiver = Receiver(SPEC)
    [(code, fields, _)] = requests(receiver.begin())
    assert (code, fields) == (14, {"consumerGroup": "bench", "topic": "orders", "queueId": "0"})
    came = receiver.feed(answer(0, fields={b"offset": b"5"}))
    [(code, fields, _)] = requests(came.reply)
    assert not came.bodies
    assert (code, fields["topic"], fields["queueOffset"], fields["commitOffset"]) == (11, "orders", "5", "5")


def test_a_group_without_an_offset_begins_at_the_first_message():
    receiver = Receiver(SPEC)
    receiver.begin()
    [(_, fields, _)] = requests(receiver.feed(answer(NOT_KNOWN, remark=b"Not found")).reply)
    assert fields["queueOffset"] == "0"


def test_bodies_are_found_wherever_the_bytes_are_cut():
    contents = [body(number, DUE_MS * 1000) for number in range(2)]
    data = found(*contents, following=7) + found(b"short", following=8)
    for cut in range(len(data) + 1):
        receiver = begun()
        first, second = receiver.feed(data[:cut]), receiver.feed(data[cut:])
        assert first.bodies + second.bodies == [*contents, b"short"]
        pulls = requests(first.reply + second.reply)
        assert [(fields["queueOffset"], fields["commitOffset"]) for _, fields, _ in pulls] == [
            ("7", "7"),
            ("8", "8"),
        ]


def test_a_pull_that_waited_in_vain_is_repeated():
    came = begun().feed(answer(NOTHING_FOUND, fields={b"nextBeginOffset": b"5"}))
    [(_, fields, _)] = requests(came.reply)
    assert not came.bodies
    assert fields["queueOffset"] == "5"


@pytest.mark.parametrize("code", [1, OFFSET_MOVED])
def test_a_refused_pull_is_an_error(code):
    moved = {b"nextBeginOffset": b"9"}
    with pytest.raises(RefusedError, match=rf"^{code} moved$"):
        begun().feed(answer(code, fields=moved, remark=b"moved"))


def test_a_refused_offset_is_an_error():
    receiver = Receiver(SPEC)
    receiver.begin()
    with pytest.raises(RefusedError, match=r"^1 no$"):
        receiver.feed(answer(1, remark=b"no"))
