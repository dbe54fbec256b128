"""The books of the workers' loop find what they are for: each thing that must not happen, told once."""

import msgspec
import orjson
import pytest

from tests.torture.worker_books import WorkerBooks
from timerwheel.client import DeadLetter, Message

ATTEMPTS_MAX = 3


class Run:
    """A made-up run: messages a, b, ... of one topic, and what workers noted."""

    def __init__(self, directory, lanes: str = "") -> None:
        self.directory = directory
        self.books = WorkerBooks(ATTEMPTS_MAX)
        for key in "ab":
            entry = self.books.write("t", f"{key}:text", lanes)
            self.books.answer(entry, f"id-{key}", duplicate=False)

    def got(self, key: str, place: int, attempt: int, worker: str = "anna", **other: str) -> None:
        facts = {"id": f"id-{key}", "text": f"{key}:text", **other}
        self.line(worker, "got", place, facts["id"], attempt, key, facts["text"])

    def line(self, worker: str, what: str, place: int, *facts: object) -> None:
        with (self.directory / worker).open("ab") as journal:
            receipt = f"{'0' * 36}{place:08x}{'0' * 16}"
            journal.write(orjson.dumps([what, "t", receipt, *facts]) + b"\n")

    def ack(self, place: int, worker: str = "anna", ok: bool | None = True) -> None:
        self.line(worker, "acking", place)
        if ok is not None:
            self.line(worker, "acked", place, ok, None if ok else "receipt_ended")

    def done(self, key: str, place: int) -> None:
        self.got(key, place, 1)
        self.ack(place)

    def wrongs(self, stored: str = "ab", dead: str = "") -> list[str]:
        self.books.read(self.directory)
        self.books.check()
        self.books.settle(map(message, stored), map(letter, dead))
        return self.books.wrongs


def message(key: str) -> Message:
    told = {"id": f"id-{key}", "topic": "t", "queue": 0, "state": "delivered", "due_ms": 0, "enqueue_ms": 0}
    return msgspec.convert({**told, "properties": {}, "dedup_key": key, "body": f"{key}:text"}, Message)


def letter(key: str) -> DeadLetter:
    return DeadLetter(
        offset=0,
        reason="no",
        attempts=ATTEMPTS_MAX,
        dead_ms=0,
        origin_topic="t",
        origin_id=f"id-{key}",
        message=message(key),
    )


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path)


def test_a_run_in_which_all_is_acknowledged_or_dead_has_nothing_wrong(run):
    run.done("a", 10)
    run.got("b", 20, 1)
    run.got("b", 40, 3, "berta")  # who got attempt 2 was killed before it was noted
    assert run.wrongs(dead="b") == []


def test_a_redelivery_before_its_acknowledgement_is_fine_in_any_order_of_notes(run):
    run.done("a", 10)
    run.got("b", 40, 2, "anna")
    run.ack(40)
    run.got("b", 20, 1, "zoe")
    run.ack(20, "zoe", ok=False)
    assert run.wrongs() == []


def test_a_redelivery_after_an_answered_acknowledgement_is_found_in_any_order_of_notes(run):
    run.done("a", 10)
    run.got("b", 40, 2, "anna")
    run.ack(40)
    run.got("b", 20, 1, "zoe")
    run.ack(20, "zoe")
    assert run.wrongs() == [
        "b was acknowledged in run 1, attempt 1 to zoe in run 1, then anna got it as attempt 2 in run 1"
    ]


def test_an_acknowledgement_without_an_answer_counts_as_perhaps(run):
    run.done("a", 10)
    run.got("b", 20, 1)
    run.ack(20, ok=None)
    assert run.wrongs() == []


def test_an_acknowledgement_that_was_asked_again_after_a_lost_answer_may_be_too_late(run):
    run.done("a", 10)
    run.got("b", 20, 1)
    run.ack(20, ok=None)
    run.ack(20, ok=False)
    assert run.wrongs() == []


@pytest.mark.parametrize("attempts", [(1, 1), (2, 1), (1, 4), (0, 1)])
def test_attempts_that_do_not_rise_within_their_bounds_are_reported(run, attempts):
    run.done("a", 10)
    run.got("b", 20, attempts[0])
    run.got("b", 30, attempts[1], "berta")
    run.ack(30, "berta")
    [wrong] = run.wrongs()
    assert wrong.startswith("b: attempt")


def test_a_receipt_that_two_got_is_reported(run):
    run.done("a", 10)
    run.done("b", 20)
    run.got("b", 20, 1, "berta")
    [wrong] = run.wrongs()
    assert wrong.endswith("of b was given to anna and berta")


def test_an_acknowledgement_that_counts_after_it_was_given_back_is_reported(run):
    run.done("a", 10)
    run.got("b", 20, 1)
    run.line("anna", "nacked", 20, True, None)
    run.ack(20)
    [wrong] = run.wrongs()
    assert wrong.endswith("was given back, yet its acknowledgement counted")


def test_a_message_that_never_came_is_reported(run):
    run.done("a", 10)
    assert run.wrongs() == ["b was never seen and is no dead letter"]


@pytest.mark.parametrize("ok", [False, None])
def test_a_message_that_nobody_finished_is_reported(run, ok):
    run.done("a", 10)
    run.got("b", 20, 1)
    if ok is False:
        run.ack(20, ok=False)
    [wrong] = run.wrongs()
    assert wrong.startswith("b was given up after")


def test_a_dead_letter_that_was_acknowledged_is_reported(run):
    run.done("a", 10)
    run.done("b", 20)
    assert run.wrongs(dead="b") == ["b was acknowledged and is a dead letter"]


def test_a_dead_letter_that_is_there_twice_is_reported(run):
    run.done("a", 10)
    assert run.wrongs(dead="bb") == ["b is a dead letter twice"]


@pytest.mark.parametrize(("stored", "times"), [("a", 0), ("abb", 2)])
def test_a_key_that_is_not_stored_once_is_reported(run, stored, times):
    run.done("a", 10)
    run.done("b", 20)
    assert run.wrongs(stored) == [f"b is stored {times} times"]


def test_a_send_that_stores_a_second_time_is_reported(run):
    run.books.answer(run.books.entries["a"], "id-c", duplicate=False)
    assert run.books.wrongs == ["a is id-a, and was stored once more as id-c"]


def test_a_message_under_another_id_or_with_another_body_is_reported(run):
    run.done("a", 10)
    run.got("b", 20, 1, id="id-c")
    run.ack(20)
    run.got("b", 30, 1, "berta", text="b:other")
    assert run.wrongs() == [
        "b is id-b, but anna got it as id-c",
        "berta got 'b:other' of t under b, which was never sent",
    ]


def test_messages_of_one_lane_that_overlap_are_reported(tmp_path):
    run = Run(tmp_path, lanes="7")
    run.got("a", 10, 1)
    run.done("b", 20)
    run.got("a", 30, 2)
    run.ack(30)
    assert run.wrongs() == ["lane 7: another message came between two attempts of a"]


def test_messages_of_one_lane_in_another_order_than_stored_are_reported(tmp_path):
    run = Run(tmp_path, lanes="7")
    run.done("b", 10)
    run.done("a", 20)
    assert run.wrongs() == ["lane 7: b came before one that lies before it"]


def test_the_cut_last_line_of_a_journal_is_read_when_it_is_whole(run):
    run.done("a", 10)
    run.got("b", 20, 1)
    path = run.directory / "anna"
    line = path.read_bytes().splitlines(keepends=True)[-1]
    path.write_bytes(path.read_bytes()[:-5])
    run.books.read(run.directory)
    assert run.books.entries["b"].held == []
    with path.open("ab") as journal:
        journal.write(line[-5:])
    run.ack(20)
    assert run.wrongs() == []
