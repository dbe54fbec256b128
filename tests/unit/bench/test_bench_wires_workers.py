"""The wires of workers: what they write after each answer, and answers that come cut anywhere."""

import base64
import json
import struct
from collections.abc import Iterator

import pytest

from bench.body import body
from bench.wires import redis_stream, rocketmq_pop
from bench.wires.resp import command
from bench.wires.wire import Finished, RefusedError, WorkWire, sender, worker

SPEC = {"host": "127.0.0.1", "port": 1, "topic": "orders", "group": "bench", "count_max": 2}
BODIES = [body(number, 1_800_000_000_000_000) for number in range(4)]


def spec(wire: str, **changes: object) -> dict:
    return SPEC | {"wire": wire} | changes


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """In two at every byte, and all in single bytes."""
    for at in range(len(data)):
        yield [data[:at], data[at:]]
    yield [data[at : at + 1] for at in range(len(data))]


def fed(wire: WorkWire, data: bytes) -> Finished:
    """What a wire said of these bytes, in single bytes."""
    parts = [wire.feed(data[at : at + 1]) for at in range(len(data))]
    return Finished([one for part in parts for one in part.bodies], b"".join(part.reply for part in parts))


def assert_same_wherever_cut(wire_spec: dict, answers: list[bytes]) -> None:
    """Each answer has one meaning, wherever its bytes are cut."""
    whole = worker(wire_spec)
    expected = [whole.feed(answer) for answer in answers]
    wire = worker(wire_spec)
    assert [fed(wire, answer) for answer in answers] == expected
    for at, answer in enumerate(answers):
        for pieces in cuts(answer):
            wire = worker(wire_spec)
            for earlier in answers[:at]:
                wire.feed(earlier)
            found = [wire.feed(piece) for piece in pieces]
            assert [one for part in found for one in part.bodies] == expected[at].bodies
            assert b"".join(part.reply for part in found) == expected[at].reply


# timerwheel


def http(content: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)


def page(numbers: list[int], acknowledged: list[int] | None = None, *, ok: str = "true") -> bytes:
    """An answer to a receive; with results if it acknowledged."""
    messages = [
        b'{"id":"%024x","body":"%b","receipt":"%060x"}' % (number, BODIES[number], number)
        for number in numbers
    ]
    results = [b'{"receipt":"%060x","ok":%b}' % (number, ok.encode()) for number in acknowledged or []]
    said = b'{"messages":[%b]' % b",".join(messages)
    return http(said + (b',"results":[%b]' % b",".join(results) if acknowledged else b"") + b"}")


def settled(numbers: list[int], ok: str = "true") -> bytes:
    results = [b'{"receipt":"%060x","ok":%b}' % (number, ok.encode()) for number in numbers]
    return http(b'{"results":[%b]}' % b",".join(results))


def content_of(request: bytes) -> dict:
    head, _, content = request.partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(content) in head
    return json.loads(content)


def test_a_worker_of_ours_acknowledges_with_its_next_receive() -> None:
    wire = worker(spec("timerwheel", ack_with_next=True))
    assert wire.begin().startswith(b"POST /v1/topics/orders/groups/bench/receive ")
    assert content_of(wire.begin())["max"] == 2
    first = wire.feed(page([0, 1]))
    assert first.bodies == []
    assert first.reply.startswith(b"POST /v1/topics/orders/groups/bench/receive ")
    assert content_of(first.reply)["ack"] == [f"{number:060x}" for number in (0, 1)]
    second = wire.feed(page([2, 3], acknowledged=[0, 1]))
    assert [one[:12] for one in second.bodies] == [one[:12] for one in BODIES[:2]]
    assert content_of(second.reply)["ack"] == [f"{number:060x}" for number in (2, 3)]
    assert "ack" not in content_of(wire.feed(page([], acknowledged=[2, 3])).reply)


def test_a_worker_of_ours_receives_again_when_its_acknowledgement_is_answered() -> None:
    wire = worker(spec("timerwheel", ack_with_next=False))
    first = wire.feed(page([0, 1]))
    assert first.reply.startswith(b"POST /v1/topics/orders/groups/bench/ack ")
    assert content_of(first.reply) == {"receipts": [f"{number:060x}" for number in (0, 1)]}
    second = wire.feed(settled([0, 1]))
    assert len(second.bodies) == 2
    assert second.reply == wire.begin()


@pytest.mark.parametrize("ack_with_next", [False, True])
def test_a_receipt_that_ended_fails_a_worker_of_ours(ack_with_next: bool) -> None:
    wire = worker(spec("timerwheel", ack_with_next=ack_with_next))
    wire.feed(page([0, 1]))
    with pytest.raises(RefusedError, match="false"):
        wire.feed(page([2], acknowledged=[0, 1], ok="false") if ack_with_next else settled([0, 1], "false"))


def test_pages_of_ours_come_whole_wherever_they_are_cut() -> None:
    one_step = [page([0, 1]), page([2], acknowledged=[0, 1]), page([], acknowledged=[2])]
    assert_same_wherever_cut(spec("timerwheel", ack_with_next=True), one_step)
    two_steps = [page([0, 1]), settled([0, 1]), page([2])]
    assert_same_wherever_cut(spec("timerwheel", ack_with_next=False), two_steps)


# beanstalkd


def job(number: int) -> bytes:
    return b"RESERVED %d %d\r\n%b\r\n" % (number, len(BODIES[number]), BODIES[number])


def test_a_job_is_deleted_before_or_with_the_next_reserve() -> None:
    two_steps = worker(spec("beanstalk", count_max=1, ack_with_next=False))
    assert two_steps.begin() == b"watch orders\r\nignore default\r\nreserve\r\n"
    assert two_steps.feed(b"WATCHING 2\r\nWATCHING 1\r\n" + job(1)) == Finished([], b"delete 1\r\n")
    assert two_steps.feed(b"DELETED\r\n") == Finished([BODIES[1]], b"reserve\r\n")
    one_step = worker(spec("beanstalk", count_max=1, ack_with_next=True))
    assert one_step.feed(job(1)) == Finished([], b"delete 1\r\nreserve\r\n")
    assert one_step.feed(b"DELETED\r\n") == Finished([BODIES[1]], b"")
    assert one_step.feed(job(2)) == Finished([], b"delete 2\r\nreserve\r\n")
    assert one_step.feed(b"DELETED\r\n" + job(3)) == Finished([BODIES[2]], b"delete 3\r\nreserve\r\n")


@pytest.mark.parametrize("ack_with_next", [False, True])
def test_jobs_of_a_worker_come_whole_wherever_they_are_cut(ack_with_next: bool) -> None:
    answers = [b"WATCHING 2\r\nWATCHING 1\r\n" + job(1), b"DELETED\r\n", job(2), b"DELETED\r\n"]
    assert_same_wherever_cut(spec("beanstalk", count_max=1, ack_with_next=ack_with_next), answers)


@pytest.mark.parametrize("refusal", ["NOT_FOUND", "DEADLINE_SOON", "OUT_OF_MEMORY"])
def test_a_refused_reserve_or_delete_is_an_error(refusal: str) -> None:
    wire = worker(spec("beanstalk", count_max=1, ack_with_next=False))
    with pytest.raises(RefusedError, match=f"^{refusal}$"):
        wire.feed(job(1) + refusal.encode() + b"\r\n")


# Redis


def entries(*numbers: int) -> bytes:
    """An answer to XREADGROUP."""
    said = b"*1\r\n*2\r\n$13\r\nstream:orders\r\n*%d\r\n" % len(numbers)
    for number in numbers:
        entry_id, content = b"17-%d" % number, BODIES[number]
        said += b"*2\r\n$%d\r\n%b\r\n" % (len(entry_id), entry_id)
        said += b"*2\r\n$1\r\nb\r\n$%d\r\n%b\r\n" % (len(content), content)
    return said


def test_entries_are_acknowledged_together_before_or_with_the_next_read() -> None:
    ack = command(b"XACK", b"stream:orders", b"workers", b"17-0", b"17-1")
    two_steps = worker(spec("redis_stream", ack_with_next=False))
    read = two_steps.begin()
    assert read.startswith(b"*11\r\n$10\r\nXREADGROUP\r\n$5\r\nGROUP\r\n$7\r\nworkers\r\n")
    assert b"\r\nCOUNT\r\n$1\r\n2\r\n" in read
    assert two_steps.feed(entries(0, 1)) == Finished([], ack)
    assert two_steps.feed(b":2\r\n") == Finished(BODIES[:2], read)
    one_step = worker(spec("redis_stream", ack_with_next=True))
    assert one_step.feed(entries(0, 1)) == Finished([], ack + one_step.begin())
    assert one_step.feed(b":2\r\n").bodies == BODIES[:2]
    assert one_step.feed(entries(2)).reply.startswith(b"*4\r\n$4\r\nXACK\r\n")


def test_no_two_workers_of_a_group_have_one_name() -> None:
    assert len({worker(spec("redis_stream", ack_with_next=True)).begin() for _ in range(50)}) == 50


def test_entries_come_whole_wherever_they_are_cut() -> None:
    """Two workers differ in their names, so replies are compared by what they acknowledge."""
    two_steps = [entries(0, 1), b":2\r\n", entries(2), b":1\r\n"]
    one_step = [entries(0, 1), b":2\r\n" + entries(2), b":1\r\n"]
    for ack_with_next, answers in ((False, two_steps), (True, one_step)):
        for at, answer in enumerate(answers):
            for pieces in cuts(answer):
                wire = worker(spec("redis_stream", ack_with_next=ack_with_next))
                for earlier in answers[:at]:
                    wire.feed(earlier)
                found = [wire.feed(piece) for piece in pieces]
                bodies = [one for part in found for one in part.bodies]
                assert bodies == {b":2": BODIES[:2], b":1": BODIES[2:3]}.get(answer[:2], [])
                acks = sum(part.reply.count(b"XACK") for part in found)
                assert acks == answer.count(b"stream:orders")


@pytest.mark.parametrize("refusal", ["-NOGROUP No such key", "*-1"])
def test_a_refused_read_is_an_error(refusal: str) -> None:
    for pieces in cuts(refusal.encode() + b"\r\n"):
        wire = worker(spec("redis_stream", ack_with_next=True))
        with pytest.raises(RefusedError) as caught:
            [wire.feed(piece) for piece in pieces]
        assert str(caught.value) == refusal


def test_an_entry_that_was_acknowledged_before_is_an_error() -> None:
    wire = worker(spec("redis_stream", ack_with_next=True))
    wire.feed(entries(0, 1))
    with pytest.raises(RefusedError, match=r"^XACK of 2: :1$"):
        wire.feed(b":1\r\n")


def test_entries_are_added_in_one_write_and_counted_wherever_their_ids_are_cut() -> None:
    def made() -> tuple[object, bytes]:
        wire = sender(spec("redis_stream"))
        return wire, wire.request([b"x", b"yz"], [0, 0], 0) + wire.request([b"x"], [0], 0)

    assert made()[1].count(b"XADD") == 3
    answers = b"$4\r\n17-0\r\n$4\r\n17-1\r\n$4\r\n17-2\r\n"
    for pieces in cuts(answers):
        wire, _ = made()
        assert sum(wire.feed(piece) for piece in pieces) == 2
    wire, _ = made()
    with pytest.raises(RefusedError, match=r"^-OOM command not allowed$"):
        wire.feed(b"$4\r\n17-0\r\n-OOM command not allowed\r\n")


def test_a_group_begins_with_the_first_entry() -> None:
    assert b"\r\n$1\r\n0\r\n$8\r\nMKSTREAM\r\n" in redis_stream.create_group("orders")


# RocketMQ

POP, ACK = 1, 2
FOUND = {b"popTime": b"170", b"invisibleTime": b"600000", b"reviveQid": b"5", b"restNum": b"9"}


def answer(opaque: int, code: int = 0, fields: dict[bytes, bytes] | None = None, body: bytes = b"") -> bytes:
    """An answer of the broker, in its compact form."""
    extra = b"".join(
        struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value
        for name, value in (fields or {}).items()
    )
    header = struct.pack(">hBhiiii", code, 0, 0, opaque, 1, 0, len(extra)) + extra
    return struct.pack(">ii", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body


def stored(queue: int, offset: int, number: int) -> bytes:
    content = BODIES[number]
    head = struct.pack(">iiiiiqqiqqqqiqi", 0, 0, 0, queue, 0, offset, 0, 0, 0, 0, 0, 0, 0, 0, len(content))
    message = head + content + b"\x06orders\x00\x00"
    return struct.pack(">i", len(message)) + message[4:]


def popped(*places: tuple[int, int, int], starts: bytes) -> bytes:
    """An answer to a pop: queue, offset and number of each message."""
    return answer(
        POP, fields=FOUND | {b"startOffsetInfo": starts}, body=b"".join(stored(*one) for one in places)
    )


def requests(data: bytes) -> list[tuple[int, int, dict, bytes]]:
    """Code, opaque, fields and body of requests with JSON headers."""
    found = []
    while data:
        length, header_bytes = struct.unpack_from(">ii", data)
        frame, data = data[8 : 4 + length], data[4 + length :]
        header = json.loads(frame[:header_bytes])
        found.append((header["code"], header["opaque"], header["extFields"], frame[header_bytes:]))
    return found


def test_a_worker_pops_from_all_queues() -> None:
    [(code, opaque, fields, _)] = requests(worker(spec("rocketmq_pop", ack_with_next=True)).begin())
    assert (code, opaque) == (200_050, POP)
    assert (fields["topic"], fields["queueId"], fields["maxMsgNums"]) == ("orders", "-1", "2")


def test_one_popped_message_is_acknowledged_with_all_that_the_broker_said_of_it() -> None:
    wire = worker(spec("rocketmq_pop", ack_with_next=False))
    said = wire.feed(popped((3, 41, 0), starts=b"0 3 40"))
    [(code, opaque, fields, _)] = requests(said.reply)
    assert (code, opaque) == (200_051, ACK)
    assert (fields["queueId"], fields["offset"]) == ("3", "41")
    assert fields["extraInfo"] == "40 170 600000 5 0 bench 3 41"
    assert wire.feed(answer(ACK)) == Finished(BODIES[:1], wire.begin())


def test_several_popped_messages_are_acknowledged_in_one_request_with_bits_for_each_queue() -> None:
    wire = worker(spec("rocketmq_pop", ack_with_next=True))
    places = ((3, 40, 0), (3, 49, 1), (7, 2, 2))
    [(code, opaque, _, content), (following, *_)] = requests(
        wire.feed(popped(*places, starts=b"0 3 40;0 7 2")).reply
    )
    assert (code, opaque, following) == (200_151, ACK, 200_050)
    said = json.loads(content)
    assert said["brokerName"] == "bench"
    assert [(one["q"], one["so"], one["rq"], one["pt"], one["r"]) for one in said["acks"]] == [
        (3, 40, 5, 170, "0"),
        (7, 2, 5, 170, "0"),
    ]
    bits = [int.from_bytes(base64.b64decode(one["b"]), "little") for one in said["acks"]]
    assert bits == [1 << 0 | 1 << 9, 1 << 0]


@pytest.mark.parametrize("ack_is_first", [False, True])
def test_a_pop_and_an_acknowledgement_may_be_answered_in_either_order(ack_is_first: bool) -> None:
    wire = worker(spec("rocketmq_pop", ack_with_next=True))
    wire.feed(popped((3, 41, 0), starts=b"0 3 41"))
    answers = [answer(ACK), popped((3, 42, 1), starts=b"0 3 42")]
    first, second = (wire.feed(one) for one in (answers if ack_is_first else answers[::-1]))
    assert first.bodies + second.bodies == BODIES[:1]
    assert first.reply == b""
    assert [code for code, *_ in requests(second.reply)] == [200_051, 200_050]


def test_a_pop_that_found_nothing_is_repeated() -> None:
    wire = worker(spec("rocketmq_pop", ack_with_next=True))
    for code in (209, 210):
        assert wire.feed(answer(POP, code)) == Finished([], wire.begin())


def test_a_refused_pop_or_acknowledgement_is_an_error() -> None:
    for opaque in (POP, ACK):
        wire = worker(spec("rocketmq_pop", ack_with_next=True))
        wire.feed(popped((3, 41, 0), starts=b"0 3 41"))
        with pytest.raises(RefusedError, match=r"^17"):
            wire.feed(answer(opaque, 17))


def test_popped_messages_come_whole_wherever_they_are_cut() -> None:
    answers = [popped((3, 41, 0), (3, 42, 1), starts=b"0 3 41"), answer(ACK)]
    assert_same_wherever_cut(spec("rocketmq_pop", ack_with_next=False), answers)


def test_sends_go_to_all_queues_in_turn_and_are_counted() -> None:
    wire = sender(spec("rocketmq_pop"))
    said = wire.request(BODIES, [0] * 4, 1_700_000_000_000)
    assert said.count(b"1700000000000") == 4
    assert all(content in said for content in BODIES)
    queues = [b"\x00\x01e\x00\x00\x00\x01%d" % queue for queue in range(rocketmq_pop.QUEUES)]
    assert [said.count(queue) for queue in queues] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert [wire.feed(answer(0)) for _ in range(4)] == [0, 0, 0, 1]
