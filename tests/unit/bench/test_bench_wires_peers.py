"""The wires of beanstalkd and Redis: bytes as their protocols say, and answers that come cut anywhere."""

from collections.abc import Callable, Iterator

import pytest

from bench.wires import resp
from bench.wires.beanstalk import BATCH_MAX
from bench.wires.pipelined import InFlight
from bench.wires.resp import POP_MAX, command
from bench.wires.wire import Received, RefusedError, receiver, sender

TUBE = {"wire": "beanstalk", "host": "127.0.0.1", "port": 1, "topic": "orders"}
QUEUE = TUBE | {"wire": "resp"}
NOW_MS = 1_800_000_000_000
TRAP = b"a\r\nDELETED\r\n-ERR no\r\n*2\r\n$3\r\nRESERVED 9 9"
"""A body that looks like answers."""


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """In two at every byte, and all in single bytes."""
    yield [data]
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]
    yield [data[at : at + 1] for at in range(len(data))]


def fed_cut_anywhere(make: Callable[[], object], data: bytes) -> list[list[object]]:
    """What the pieces of each cut gave."""
    found = []
    for pieces in cuts(data):
        wire = make()
        found.append([wire.feed(piece) for piece in pieces])
    return found


def bulk(*words: bytes) -> bytes:
    """An array of bulk strings, counted by hand."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n" % len(word) + word + b"\r\n" for word in words)


def popped(*bodies: bytes) -> bytes:
    """An answer to BLMPOP."""
    return b"*2\r\n$12\r\nready:orders\r\n" + bulk(*bodies)


# Requests that are answered message by message


def test_a_request_is_finished_with_the_answer_to_its_last_message():
    requests = InFlight()
    for messages in (3, 1, 2):
        requests.sent(messages)
    assert [requests.answered(count) for count in (2, 1, 2, 0, 1)] == [0, 1, 1, 0, 1]


# beanstalkd, sending


def test_a_put_says_priority_delay_time_to_run_and_size():
    wire = sender(TUBE)
    assert wire.greeting() == b"use orders\r\n"
    assert wire.request([b"hello"], [NOW_MS + 3_000], NOW_MS) == b"put 0 3 86400 5\r\nhello\r\n"


def test_an_array_is_as_many_puts():
    said = sender(TUBE).request([b"a", b"bc"], [NOW_MS + 1_000, NOW_MS + 60_000], NOW_MS)
    assert said == b"put 0 1 86400 1\r\na\r\nput 0 60 86400 2\r\nbc\r\n"


@pytest.mark.parametrize(
    ("delay_ms", "delay_s"),
    [(-5_000, 0), (0, 0), (1, 1), (999, 1), (1_000, 1), (1_001, 2), (30 * 86_400_000, 2_592_000)],
)
def test_a_delay_is_rounded_up_to_seconds_so_that_no_job_is_early(delay_ms, delay_s):
    said = sender(TUBE).request([b"x"], [NOW_MS + delay_ms], NOW_MS)
    assert said.startswith(b"put 0 %d " % delay_s)


def sending(spec: dict) -> Callable[[], object]:
    def make() -> object:
        wire = sender(spec)
        wire.greeting()
        for count in (1, 3, 1):
            wire.request([b"x"] * count, [NOW_MS] * count, NOW_MS)
        return wire

    return make


def test_puts_are_counted_wherever_their_answers_are_cut():
    answers = b"USING orders\r\n" + b"".join(b"INSERTED %d\r\n" % job for job in (8, 9, 10, 11, 120))
    assert {sum(found) for found in fed_cut_anywhere(sending(TUBE), answers)} == {3}


@pytest.mark.parametrize(
    "refusal",
    [
        "OUT_OF_MEMORY",
        "INTERNAL_ERROR",
        "BAD_FORMAT",
        "UNKNOWN_COMMAND",
        "BURIED 17",
        "EXPECTED_CRLF",
        "JOB_TOO_BIG",
        "DRAINING",
    ],
)
def test_a_put_that_was_not_taken_is_named_wherever_it_is_cut(refusal):
    answers = b"USING orders\r\nINSERTED 1\r\n%b\r\nINSERTED 2\r\n" % refusal.encode()
    for pieces in cuts(answers):
        wire = sending(TUBE)()
        with pytest.raises(RefusedError, match=f"^{refusal}$"):
            [wire.feed(piece) for piece in pieces]


def test_a_tube_that_was_not_chosen_is_a_refusal():
    with pytest.raises(RefusedError, match="BAD_FORMAT"):
        sending(TUBE)().feed(b"BAD_FORMAT\r\nINSERTED 1\r\n")


# beanstalkd, receiving


def job(number: int, body: bytes = b"hello") -> bytes:
    return b"RESERVED %d %d\r\n%b\r\n" % (number, len(body), body)


def test_a_consumer_watches_its_tube_alone_and_waits():
    assert receiver(TUBE).begin() == b"watch orders\r\nignore default\r\nreserve\r\n"


def test_a_job_is_deleted_and_another_asked_for_without_waiting():
    wire = receiver(TUBE)
    assert wire.feed(b"WATCHING 2\r\nWATCHING 1\r\n") == Received([], b"")
    assert wire.feed(job(7)) == Received([b"hello"], b"delete 7\r\nreserve-with-timeout 0\r\n")


def test_it_waits_again_after_a_reserve_that_brought_nothing_and_only_then():
    wire = receiver(TUBE)
    wire.feed(job(7))
    assert wire.feed(b"DELETED\r\nTIMED_OUT\r\n") == Received([], b"reserve\r\n")
    assert wire.feed(job(8)).reply == b"delete 8\r\nreserve-with-timeout 0\r\n"
    assert wire.feed(b"DELETED\r\n" + job(9)).reply == b"delete 9\r\n" + b"reserve-with-timeout 0\r\n" * 2
    assert wire.feed(b"DELETED\r\n" + job(10)).reply == b"delete 10\r\n"
    assert wire.feed(b"TIMED_OUT\r\n").reply == b"reserve\r\n"


def test_batches_double_up_to_a_limit_while_there_are_jobs():
    wire = receiver(TUBE)
    asked = [wire.feed(job(1)).reply.count(b"reserve-with-timeout 0\r\n")]
    for _ in range(8):
        reply = wire.feed(job(1) * asked[-1]).reply
        assert reply.count(b"delete 1\r\n") == asked[-1]
        asked.append(reply.count(b"reserve-with-timeout 0\r\n"))
    assert asked == [1, 2, 4, 8, 16, 32, BATCH_MAX, BATCH_MAX, BATCH_MAX]


def test_no_delete_is_ever_behind_a_reserve_that_waits():
    wire = receiver(TUBE)
    for answer in (job(1), b"TIMED_OUT\r\n", job(2), job(3), job(4), b"TIMED_OUT\r\n", job(5), job(6)):
        assert b"delete" not in wire.feed(answer).reply.partition(b"reserve\r\n")[2]


def test_jobs_come_whole_wherever_they_are_cut():
    data = (
        b"WATCHING 2\r\nWATCHING 1\r\n"
        + job(7, TRAP)
        + b"DELETED\r\n"
        + job(8, b"")
        + b"DELETED\r\n"
        + job(9)
    )
    for found in fed_cut_anywhere(lambda: receiver(TUBE), data):
        assert [body for received in found for body in received.bodies] == [TRAP, b"", b"hello"]
        reply = b"".join(received.reply for received in found)
        assert [reply.count(b"delete %d\r\n" % number) for number in (7, 8, 9)] == [1, 1, 1]


@pytest.mark.parametrize("refusal", ["NOT_FOUND", "DEADLINE_SOON", "NOT_IGNORED", "OUT_OF_MEMORY"])
def test_a_consumer_that_is_refused_says_so_wherever_it_is_cut(refusal):
    for pieces in cuts(job(1) + refusal.encode() + b"\r\n"):
        wire = receiver(TUBE)
        with pytest.raises(RefusedError, match=f"^{refusal}$"):
            [wire.feed(piece) for piece in pieces]


# Redis, sending


def test_a_command_is_an_array_of_bulk_strings():
    assert command(b"LLEN", b"mylist") == b"*2\r\n$4\r\nLLEN\r\n$6\r\nmylist\r\n"


def test_messages_are_pairs_of_body_and_then_due_time():
    wire = sender(QUEUE)
    assert wire.greeting() == b""
    bodies, dues_ms = [b"hello", TRAP], [NOW_MS + 5, NOW_MS + 7]
    said = wire.request(bodies, dues_ms, NOW_MS)
    ids = said.split(b"$16\r\n")[1::2]
    assert said == b"".join(
        bulk(b"HSET", b"body:orders", name[:16], body)
        + bulk(b"ZADD", b"due:orders", b"%d" % due_ms, name[:16])
        for name, body, due_ms in zip(ids, bodies, dues_ms, strict=True)
    )


def test_no_two_messages_of_any_two_connections_have_one_id():
    said = [sender(QUEUE).request([b"x"] * 50, [NOW_MS] * 50, NOW_MS) for _ in range(20)]
    ids = [part[:16] for request in said for part in request.split(b"$16\r\n")[1::2]]
    assert len(ids) == len(set(ids)) == 1_000


def test_pairs_are_counted_wherever_their_answers_are_cut():
    assert {sum(found) for found in fed_cut_anywhere(sending(QUEUE), b":1\r\n" * 10)} == {3}


@pytest.mark.parametrize(
    "refusal",
    [
        "-ERR unknown command 'HSET'",
        "-OOM command not allowed when used memory > 'maxmemory'.",
        "-MISCONF Errors writing to the AOF file: No space left on device",
        "-LOADING Redis is loading the dataset in memory",
        ":0",
    ],
)
@pytest.mark.parametrize("before", [b"", b":1\r\n", b":1\r\n:1\r\n"])
def test_a_message_that_was_not_added_is_named_wherever_it_is_cut(refusal, before):
    for pieces in cuts(before + refusal.encode() + b"\r\n:1\r\n"):
        wire = sending(QUEUE)()
        with pytest.raises(RefusedError) as caught:
            [wire.feed(piece) for piece in pieces]
        assert str(caught.value) == refusal


# Redis, receiving


def test_a_consumer_keeps_two_pops_in_flight():
    pop = bulk(b"BLMPOP", b"0", b"1", b"ready:orders", b"LEFT", b"COUNT", b"%d" % POP_MAX)
    wire = receiver(QUEUE)
    assert wire.begin() == pop * 2
    assert wire.feed(popped(b"hello")) == Received([b"hello"], pop)
    assert wire.feed(popped(b"a", b"b") + popped(b"c")) == Received([b"a", b"b", b"c"], pop * 2)


def test_popped_bodies_come_whole_wherever_they_are_cut():
    pop = receiver(QUEUE).begin()[: len(receiver(QUEUE).begin()) // 2]
    for found in fed_cut_anywhere(lambda: receiver(QUEUE), popped(TRAP, b"", b"hello") + popped(b"last")):
        assert [body for received in found for body in received.bodies] == [TRAP, b"", b"hello", b"last"]
        assert b"".join(received.reply for received in found) == pop * 2


@pytest.mark.parametrize("refusal", ["-WRONGTYPE Operation against a key", "-ERR unknown command", "*-1"])
@pytest.mark.parametrize("before", [b"", popped(b"hello")])
def test_a_pop_that_is_refused_says_so_wherever_it_is_cut(refusal, before):
    for pieces in cuts(before + refusal.encode() + b"\r\n"):
        wire = receiver(QUEUE)
        with pytest.raises(RefusedError) as caught:
            [wire.feed(piece) for piece in pieces]
        assert str(caught.value) == refusal


def test_each_topic_has_keys_of_its_own():
    keys = [key(topic) for key in (resp.due_key, resp.body_key, resp.ready_key) for topic in ("a", "b")]
    assert len(set(keys)) == 6
