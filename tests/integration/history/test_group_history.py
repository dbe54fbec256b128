"""What the log tells of a message's groups: acknowledgements and retries, and leases of earlier versions."""

import msgspec
import pytest

from tests.harness import old_leases
from tests.harness.group_log import GroupLog
from tests.harness.scratch import scratch
from timerwheel.history.directory import offline_history
from timerwheel.history.history import Standing, What
from timerwheel.model.ids import Ids
from timerwheel.state import lease_records
from timerwheel.state.config_table import ConfigTable, Put, encode_puts
from timerwheel.state.groups import DEAD_QUEUE, dead_topic
from timerwheel.store.moved_timer import moved
from timerwheel.store.record import decode

NAME = "orders/g"
LETTERS = dead_topic("g")
TABLE_RECORDS = 50_000
"""As many as a table has at most."""


class Told:
    """A log with three messages of one group, and the history of the second, at queue offset 1."""

    def __init__(self, data, **config: object) -> None:
        self.log = GroupLog(data, 1 << 20)
        self.group = self.log.group(NAME, **config)
        self.name = NAME.encode()
        self.log.send("orders")
        self.message = self.log.send("orders", properties=b'{"TAGS": "one"}')
        self.other = self.log.send("orders")
        self.id = self.id_at(self.message)

    def id_at(self, offset: int) -> str:
        header = decode(self.log.log.read(offset)).header
        return Ids(self.log.log.log_id).encode(*header.identity(offset))

    def step(self, *records: bytes) -> int:
        """Store a unit a second after the last; returns where."""
        at = self.log.store(*records)[0]
        self.log.now_ms += 1_000
        return at

    def ack(self, first: int = 1, end: int = 2, **options: bool) -> bytes:
        return lease_records.ack(self.name, 0, first, end, self.log.now_ms, **options)

    def retry(self, attempt: int, *, ended: bool, place: tuple[int, int] = (0, 1)) -> bytes:
        now_ms = self.log.now_ms
        return lease_records.retry(self.name, place, attempt, now_ms, now_ms + 500, ended=ended)

    def why(self, reason: str, **told: object) -> bytes:
        return encode_puts([Put(ConfigTable.FAILURE, NAME, {**told, "reason": reason})], self.log.now_ms)

    def letter(self, attempts: int) -> bytes:
        properties = {
            "DLQ_ORIGIN_TOPIC": "orders",
            "DLQ_ORIGIN_MESSAGE_ID": self.id,
            "DLQ_REASON": "broken",
            "DLQ_ATTEMPTS": str(attempts),
        }
        return self.log.message(LETTERS, properties=msgspec.json.encode(properties))

    def end(self, queue: int = 0, queue_offset: int = 1) -> bytes:
        item = self.group.items[queue << 48 | queue_offset]
        return lease_records.end(self.name, item, self.log.now_ms)

    def fire(self, queue: int = 0, queue_offset: int = 1) -> None:
        self.log.fire(NAME, self.group.items[queue << 48 | queue_offset])
        self.log.now_ms += 1_000

    def history(self, message_id: str | None = None):
        self.log.log.sync()
        return offline_history(self.log.data, message_id or self.id)

    def events(self):
        return [event for event in self.history().events if event.group == "g"]

    def whats(self):
        return [event.what for event in self.events()]

    def standing(self):
        [part] = [part for part in self.history().groups if part.group == "g"]
        return part.standing, part.attempts


@pytest.fixture
def told():
    with scratch() as root:
        found = Told(root / "data")
        yield found
        found.log.close()


def test_the_acknowledgement_of_a_stretch_is_that_of_each_message_in_it(told):
    told.step(told.ack(2, 3))
    assert (told.whats(), told.standing()) == ([], (Standing.NOT_RECEIVED, 0))
    at = told.step(told.ack(0, 2))
    [event] = told.events()
    assert (event.what, event.offset, event.at_ms) == (What.ACKNOWLEDGED, at, told.log.now_ms - 1_000)
    assert told.standing() == (Standing.ACKNOWLEDGED, 1)


def test_attempts_that_failed_are_reported_with_their_number_and_reason_and_the_last_with_its_acknowledgement(
    told,
):
    places = [[0, 1], [0, 2]]
    other = told.retry(1, ended=True, place=(0, 2))
    told.step(told.retry(1, ended=True), other, told.why("HTTP 503", places=places))
    assert told.standing() == (Standing.WAITING, 1)
    told.fire()
    assert told.standing() == (Standing.READY, 1)
    told.step(told.retry(2, ended=False))
    told.fire()
    told.step(told.retry(3, ended=True))
    told.fire()
    told.step(told.end())
    events = told.events()
    assert [(event.what, event.attempt, event.reason) for event in events] == [
        (What.GIVEN_BACK, 1, "HTTP 503"),
        (What.CAME_BACK, None, None),
        (What.EXPIRED, 2, "attempt 2 was not acknowledged in time"),
        (What.CAME_BACK, None, None),
        (What.GIVEN_BACK, 3, None),
        (What.CAME_BACK, None, None),
        (What.ACKNOWLEDGED, 4, None),
    ]
    assert [event.due_ms - event.at_ms for event in events if event.due_ms] == [500, 500, 500]
    assert told.standing() == (Standing.ACKNOWLEDGED, 4)


def test_a_late_acknowledgement_of_a_message_that_waits_is_no_further_attempt(told):
    told.step(told.retry(1, ended=False))
    told.step(told.end())
    assert told.whats() == [What.EXPIRED, What.ACKNOWLEDGED]
    assert told.standing() == (Standing.ACKNOWLEDGED, 1)


def test_the_sharding_key_of_a_retry_is_no_event(told):
    key = lease_records.hold(told.name, (0, 1), told.log.now_ms, 77)
    told.step(key, told.retry(1, ended=True))
    assert (told.whats(), told.standing()) == ([What.GIVEN_BACK], (Standing.WAITING, 1))


def test_a_dead_letter_of_the_first_attempt_is_followed_through_its_redrive_to_the_next_one(told):
    told.step(told.letter(1), told.ack())
    assert told.standing() == (Standing.DEAD_LETTER, 1)
    again = lease_records.redrive(told.name, (DEAD_QUEUE, 0), told.log.now_ms)
    told.step(again, lease_records.take_dead(LETTERS.encode(), 0, told.log.now_ms))
    told.fire(DEAD_QUEUE, 0)
    told.step(told.retry(1, ended=True, place=(DEAD_QUEUE, 0)), told.why("no", places=[[DEAD_QUEUE, 0]]))
    told.fire(DEAD_QUEUE, 0)
    told.step(told.letter(2), told.end(DEAD_QUEUE, 0))
    events = [(event.what, event.attempt, event.reason) for event in told.events()]
    assert events == [
        (What.DEAD_LETTERED, 1, "broken"),
        (What.REDRIVEN, None, None),
        (What.CAME_BACK, None, None),
        (What.GIVEN_BACK, 1, "no"),
        (What.CAME_BACK, None, None),
        (What.DEAD_LETTERED, 2, "broken"),
    ]
    assert told.standing() == (Standing.DEAD_LETTER, 3)
    told.step(lease_records.take_dead(LETTERS.encode(), 1, told.log.now_ms))
    assert (told.whats()[-1], told.standing()[0]) == (What.DROPPED, Standing.DROPPED)


def test_a_copy_of_another_message_before_an_acknowledgement_is_not_its_dead_letter(told):
    told.id = told.id_at(told.other)
    other = told.letter(1)
    told.id = told.id_at(told.message)
    told.step(other, told.ack())
    assert told.whats() == [What.ACKNOWLEDGED]


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "retried"])
def test_a_dead_letter_that_its_group_drains_with_others_was_acknowledged(told, fresh):
    now_ms = told.log.now_ms
    told.log.group(f"{LETTERS}/g")
    drains = f"{LETTERS}/g".encode()
    told.step(told.log.message(LETTERS))
    told.step(told.letter(1), told.ack())
    take = [lease_records.take_dead(LETTERS.encode(), at, now_ms) for at in range(2)]
    if fresh:
        ends = [lease_records.ack(drains, 0, 0, 2, now_ms)]
    else:
        told.step(lease_records.retry(drains, (0, 1), 1, now_ms, now_ms, ended=True))
        [item] = told.log.state.groups.by_name[f"{LETTERS}/g"].items.values()
        ends = [lease_records.end(drains, item, now_ms), lease_records.ack(drains, 0, 0, 1, now_ms)]
    told.step(*ends, *take)
    assert [(event.what, event.reason) for event in told.events()] == [
        (What.DEAD_LETTERED, "broken"),
        (What.ACKNOWLEDGED, "as a dead letter of the group itself"),
    ]
    assert told.standing() == (Standing.ACKNOWLEDGED, 1)


def test_a_dead_letter_that_is_dropped_after_another_was_drained_was_dropped(told):
    now_ms = told.log.now_ms
    told.log.group(f"{LETTERS}/g")
    told.step(told.log.message(LETTERS))
    told.step(told.letter(1), told.ack())
    ack = lease_records.ack(f"{LETTERS}/g".encode(), 0, 0, 1, now_ms)
    told.step(ack, lease_records.take_dead(LETTERS.encode(), 0, now_ms))
    told.step(lease_records.take_dead(LETTERS.encode(), 1, now_ms))
    assert told.whats() == [What.DEAD_LETTERED, What.DROPPED]


def test_a_message_that_is_given_up_without_a_copy_stays_a_dead_letter(told):
    told.step(told.ack(given_up=True))
    assert [(event.what, event.attempt) for event in told.events()] == [(What.GIVEN_UP, 1)]
    assert told.standing() == (Standing.GIVEN_UP, 1)


def test_a_message_that_the_filter_excludes_was_passed_over_unless_a_consumer_had_it(told):
    assert told.standing() == (Standing.NOT_RECEIVED, 0)
    told.log.group(NAME, tags="two")
    assert told.standing() == (Standing.PASSED_OVER, 0)
    told.step(lease_records.skip(told.name, 0, 0, 3, told.log.now_ms))
    assert (told.whats(), told.standing()) == ([], (Standing.PASSED_OVER, 0))
    told.log.group(NAME, tags="one || two")
    assert (told.whats(), told.standing()) == ([], (Standing.PASSED_OVER, 0))
    told.log.put(ConfigTable.CURSOR, NAME, {"0": 0})
    told.step(told.ack(0, 3))
    told.log.group(NAME, tags="two")
    assert (told.whats(), told.standing()) == ([What.ACKNOWLEDGED], (Standing.ACKNOWLEDGED, 1))
    told.log.put(ConfigTable.CURSOR, NAME, {"0": 0})
    told.step(told.letter(1), told.ack())
    assert told.whats() == [What.ACKNOWLEDGED, What.DEAD_LETTERED]
    assert told.standing() == (Standing.DEAD_LETTER, 1)


def test_a_group_that_is_rewound_or_made_again_has_not_received_the_message(told):
    told.step(told.ack(0, 3))
    told.log.put(ConfigTable.CURSOR, NAME, {"0": 1})
    assert (told.whats(), told.standing()) == ([What.ACKNOWLEDGED], (Standing.NOT_RECEIVED, 0))
    told.log.put(ConfigTable.CURSOR, NAME, {"0": 2})
    assert told.standing() == (Standing.PASSED_OVER, 0)
    told.log.put(ConfigTable.CURSOR, NAME, {"0": 0})
    told.step(told.ack())
    assert told.whats() == [What.ACKNOWLEDGED] * 2
    assert told.standing() == (Standing.ACKNOWLEDGED, 1)
    told.log.put(ConfigTable.GROUP, NAME, None)
    assert told.standing()[0] is Standing.ACKNOWLEDGED
    told.log.group(NAME)
    assert told.standing() == (Standing.NOT_RECEIVED, 0)


def test_a_retry_that_retention_stored_again_was_moved(told):
    told.step(told.retry(2, ended=True))
    item = told.group.items[1]
    told.step(moved(told.log.log.read(item.offset), item.offset, told.log.now_ms))
    assert (told.whats(), told.standing()) == ([What.GIVEN_BACK, What.MOVED], (Standing.WAITING, 1))


# ------------------------------------------------------------------ logs of earlier versions


def leased(told) -> None:
    told.step(old_leases.lease(told.name, (0, 1), told.log.now_ms, told.log.now_ms + 30_000))


def retimed(told, *, ended: bool) -> bytes:
    item, now_ms = told.group.items[1], told.log.now_ms
    return old_leases.retime(told.name, item, now_ms, now_ms + 30_000, ended=ended)


def test_leases_of_earlier_versions_are_reported_attempt_by_attempt(told):
    leased(told)
    assert told.standing() == (Standing.IN_FLIGHT, 1)
    told.step(retimed(told, ended=False))
    told.step(retimed(told, ended=True), told.why("HTTP 503", roots=[told.group.items[1].root]))
    told.fire()
    leased(told)
    told.fire()
    leased(told)
    told.step(told.end())
    assert [(event.what, event.attempt, event.reason) for event in told.events()] == [
        (What.HANDED_OUT, 1, None),
        (What.EXTENDED, None, None),
        (What.GIVEN_BACK, None, "HTTP 503"),
        (What.CAME_BACK, None, None),
        (What.HANDED_OUT, 2, None),
        (What.CAME_BACK, None, "attempt 2 was not acknowledged in time"),
        (What.HANDED_OUT, 3, None),
        (What.ACKNOWLEDGED, 3, None),
    ]
    assert told.standing() == (Standing.ACKNOWLEDGED, 3)


def test_a_late_acknowledgement_of_a_lease_of_an_earlier_version_is_no_further_attempt(told):
    leased(told)
    told.fire()
    told.step(told.end())
    assert told.standing() == (Standing.ACKNOWLEDGED, 1)


def test_an_attempt_of_this_version_follows_those_of_an_earlier_one(told):
    leased(told)
    told.fire()
    told.step(told.retry(2, ended=True))
    told.fire()
    told.step(told.end())
    assert told.whats() == [
        *(What.HANDED_OUT, What.CAME_BACK),
        *(What.GIVEN_BACK, What.CAME_BACK),
        What.ACKNOWLEDGED,
    ]
    assert told.standing() == (Standing.ACKNOWLEDGED, 3)


def test_a_message_that_an_earlier_version_kept_behind_another_was_parked(told):
    told.step(old_leases.hold(told.name, (0, 1), told.log.now_ms, 77))
    assert (told.whats(), told.standing()) == ([What.PARKED], (Standing.PARKED, 0))


def test_what_an_earlier_version_took_or_passed_over_before_it_was_not_received(told):
    told.step(old_leases.lease(told.name, (0, 2), told.log.now_ms, told.log.now_ms + 30_000))
    assert (told.whats(), told.standing()) == ([], (Standing.PASSED_OVER, 0))


@pytest.mark.parametrize("redrives", [False, True])
@pytest.mark.parametrize(
    ("put", "standing"),
    [
        (Put(ConfigTable.CURSOR, NAME, {"0": 0}), Standing.NOT_RECEIVED),
        (Put(ConfigTable.GROUP, NAME, None), None),
        (Put(ConfigTable.CURSOR, "orders/other", {"0": 0}), Standing.ACKNOWLEDGED),
    ],
)
def test_a_retry_that_a_rewind_or_a_deletion_ends_was_not_acknowledged(told, put, standing, redrives):
    told.step(told.retry(1, ended=True))
    more = [lease_records.redrive(told.name, (DEAD_QUEUE, 7), told.log.now_ms)] if redrives else []
    told.step(told.end(), encode_puts([put], told.log.now_ms), *more)
    is_end = standing is Standing.ACKNOWLEDGED
    assert told.whats() == [What.GIVEN_BACK, What.ACKNOWLEDGED][: 1 + is_end]
    assert [part.standing for part in told.history().groups] == [standing or Standing.WAITING]


def test_the_change_of_a_group_may_be_in_the_next_table_of_the_log(told):
    told.step(told.retry(1, ended=True))
    rewind = encode_puts([Put(ConfigTable.CURSOR, NAME, {"0": 0})], told.log.now_ms)
    told.step(told.end(), *[told.ack(2, 3)] * TABLE_RECORDS, rewind)
    assert told.whats() == [What.GIVEN_BACK]
    told.step(told.retry(1, ended=True))
    told.step(told.end(), *[told.ack(2, 3)] * TABLE_RECORDS)
    assert told.whats() == [What.GIVEN_BACK, What.GIVEN_BACK, What.ACKNOWLEDGED]
