"""What the log looks like, to people and to programs."""

import io
import logging
import re
from contextlib import contextmanager

import orjson
import pytest

from timerwheel.telemetry.logs import REQUEST_ID, log_to_stderr


@contextmanager
def logged(monkeypatch, level, form):
    root = logging.getLogger()
    before, level_before = root.handlers[:], root.level
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    try:
        log_to_stderr(level, form)
        yield stream
    finally:
        root.handlers[:] = before
        root.setLevel(level_before)


def test_a_line_to_read_has_a_time_with_its_zone_and_shows_the_fields(monkeypatch):
    with logged(monkeypatch, "info", "console") as stream:
        logging.getLogger("timerwheel").info("the wheel %s", "turns", extra={"slot": 7})
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"
    assert re.fullmatch(rf"{time} INFO timerwheel: the wheel turns slot=7\n", stream.getvalue())


def test_a_line_for_programs_is_one_object_with_the_fields(monkeypatch):
    with logged(monkeypatch, "info", "json") as stream:
        token = REQUEST_ID.set("r-1")
        logging.getLogger("timerwheel.api.requests").info(
            "request", extra={"status": 201, "route": "/v1/messages"}
        )
        REQUEST_ID.reset(token)
    [line] = stream.getvalue().splitlines()
    told = orjson.loads(line)
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "INFO",
        "logger": "timerwheel.api.requests",
        "message": "request",
        "status": 201,
        "route": "/v1/messages",
        "request": "r-1",
    }


@pytest.mark.parametrize("form", ["console", "json"])
def test_what_is_below_the_level_is_not_logged(monkeypatch, form):
    with logged(monkeypatch, "warning", form) as stream:
        logging.getLogger("timerwheel").info("quiet")
        logging.getLogger("timerwheel").warning("loud")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


def test_a_traceback_stays_within_the_line_of_json(monkeypatch):
    with logged(monkeypatch, "info", "json") as stream:
        try:
            int("one\ntwo")
        except ValueError:
            logging.getLogger("timerwheel").exception("it broke")
    [line] = stream.getvalue().splitlines()
    assert "ValueError: invalid literal" in orjson.loads(line)["exc_info"]
