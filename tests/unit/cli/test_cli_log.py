"""`log` shows neither the secrets of settings nor the headers of tasks."""

import msgspec
import pytest

from timerwheel.cli.log import as_json
from timerwheel.model.admission import ENVELOPE_PROPERTY
from timerwheel.offline.snapshot import LogRecord
from timerwheel.push.tasks.task import Task
from timerwheel.push.tasks.task_queue import TaskQueue
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec
from timerwheel.schedules.stored import Stored

SECRET = "of-nobody-else"
TASK = Task(url="https://shop.example/", headers={"Authorization": SECRET}).text()


def record(kind: str, body: bytes, **properties: str) -> LogRecord:
    return LogRecord(0, 100, kind, "%TASK%q", 0, "0" * 24, 1, 1, None, 0, properties, body)


def shown(one: LogRecord, *, with_body: bool = True) -> str:
    return msgspec.json.encode(as_json(one, with_body=with_body)).decode()


@pytest.mark.parametrize("with_body", [True, False])
def test_what_a_task_calls_with_is_not_shown(with_body):
    task = record("timer", b"mine", **{ENVELOPE_PROPERTY: TASK, "TAGS": "paid"})
    assert SECRET not in shown(task, with_body=with_body)
    assert '"TAGS":"paid"' in shown(task, with_body=with_body)


def setting(table: str, value: object) -> LogRecord:
    return record("control", msgspec.json.encode([{"table": table, "key": "k", "value": value}]))


def test_no_setting_shows_its_secrets():
    spec = ScheduleSpec(
        topic="%TASK%q", body=b"x", recurrence=Recurrence(cron="@daily", zone="UTC"), envelope=TASK
    )
    for one in (
        setting("task_queue", TaskQueue(secrets=[SECRET, SECRET]).value()),
        setting("schedule", msgspec.to_builtins(Stored.begin("k", spec, None, 1, 1))),
        setting("push", {"secrets": [SECRET], "headers": {"Authorization": SECRET}}),
        setting("of_later_versions", {"parts": [{"secrets": [SECRET]}]}),
        record("control", b'[{"value": {"secrets": ["' + SECRET.encode()),
    ):
        assert SECRET not in shown(one), one
    plain = shown(setting("push", {"headers": {"Authorization": SECRET}})).replace("\\", "")
    assert '"Authorization":"(hidden)"' in plain
    assert "(hidden)" not in shown(setting("group", {"max_attempts": 3}))
