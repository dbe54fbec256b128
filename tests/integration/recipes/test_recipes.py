"""The recipes of doc/recipes.md do what they say, with the frameworks that they are for."""

import datetime as dt
import importlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from timerwheel.testing.plugin import timerwheel_client, timerwheel_service

__all__ = ["timerwheel_client", "timerwheel_service"]  # fixtures
ROOT = Path(__file__).parents[3]
FILES = dict(
    re.findall(r"^```python\n# (\S+)\n(.*?)^```$", (ROOT / "doc" / "recipes.md").read_text(), re.M | re.S)
)


@pytest.fixture(autouse=True)
def programs(tmp_path, monkeypatch) -> Iterator[Path]:
    """The files of the page, to be imported."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        path = getattr(sys.modules[name], "__file__", None)
        if path is not None and Path(path).is_relative_to(tmp_path):
            del sys.modules[name]


class Target(BaseHTTPRequestHandler):
    """Answers with the next status, and keeps the bodies it got."""

    def do_GET(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.send_response(self.server.statuses.pop(0))
        self.send_header("Retry-After", "90")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815 - as its base calls it

    def log_message(self, *_):
        pass


@pytest.fixture
def target():
    with ThreadingHTTPServer(("127.0.0.1", 0), Target) as server:
        server.statuses, server.bodies = [], []
        server.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_orders_time_out_unless_they_are_paid(programs):
    """Also the recipe for tests, which is run as its reader would."""
    options = ("-q", "-p", "timerwheel.testing.plugin", "-p", "no:cacheprovider", "-W", "error")
    command = [sys.executable, "-m", "pytest", *options, "test_order_timeout.py"]
    environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=programs, env=environment, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout


def test_a_payment_that_is_too_late_does_not_count(timerwheel_service, timerwheel_client):
    recipe = importlib.import_module("order_timeout")
    recipe.opened(timerwheel_client, recipe.Order(17))
    recipe.opened(timerwheel_client, recipe.Order(17))
    timerwheel_service.advance("30m")
    assert not recipe.paid(timerwheel_client, recipe.Order(17))
    assert timerwheel_service.work_off(recipe.app) == 1


def test_a_reminder_moves_with_its_appointment_and_ends_with_it(
    timerwheel_service, timerwheel_client, capsys
):
    recipe = importlib.import_module("reminders")
    day = timerwheel_service.now + dt.timedelta(days=1)
    for at in (day, day + dt.timedelta(hours=3)):
        recipe.remind(timerwheel_client, "dentist", at)
    recipe.remind(timerwheel_client, "lunch", day)
    recipe.cancel(timerwheel_client, "lunch")
    timerwheel_service.advance("1d")
    assert timerwheel_service.work_off(recipe.app) == 0
    timerwheel_service.advance("2h")
    assert timerwheel_service.work_off(recipe.app) == 1
    assert capsys.readouterr().out == "dentist begins in an hour\n"


def test_a_payment_is_retried_as_its_target_asks_then_by_the_backoff_and_given_up(
    timerwheel_service, timerwheel_client, target
):
    recipe = importlib.import_module("payments")
    target.statuses = [429, 500, 503, 200, 404]
    timerwheel_client.send("payments", target.url)
    assert timerwheel_service.work_off(recipe.app) == 1  # too many requests
    timerwheel_service.advance("89s")
    assert timerwheel_service.work_off(recipe.app) == 0
    for delay in ("1s", "4s", "16s"):
        timerwheel_service.advance(delay)
        assert timerwheel_service.work_off(recipe.app) == 1
    assert timerwheel_client.group("payments", "bookers").info().waiting == 0
    timerwheel_client.send("payments", target.url)
    timerwheel_service.work_off(recipe.app)
    [letter] = timerwheel_client.dead_letters("bookers").all()
    assert letter.reason == "HTTP 404"


def test_a_celery_task_is_handed_over_when_it_is_due(timerwheel_service, timerwheel_client):
    pytest.importorskip("celery")
    recipe = importlib.import_module("later")
    task, in_half_an_hour = recipe.close_order, timerwheel_service.now + dt.timedelta(minutes=30)
    recipe.apply_later(timerwheel_client, task, 17, countdown=dt.timedelta(minutes=30))
    recipe.apply_later(timerwheel_client, task, order=18, eta=in_half_an_hour)
    timerwheel_client.recall(recipe.apply_later(timerwheel_client, task, 19, eta=in_half_an_hour))
    assert timerwheel_service.work_off(recipe.app) == 0
    timerwheel_service.advance("30m")
    assert timerwheel_service.work_off(recipe.app) == 2
    with recipe.celery.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery")
        found = [queue.get_nowait() for _ in range(2)]
        assert sorted((one.headers["task"], *one.payload[:2]) for one in found) == [
            (task.name, [], {"order": 18}),
            (task.name, [17], {}),
        ]
        queue.close()


def test_fastapi_sends_from_requests_and_works_beside_them(timerwheel_service, monkeypatch, capsys):
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient  # noqa: PLC0415 - only where it is installed

    monkeypatch.setenv("TIMERWHEEL_URL", timerwheel_service.url)
    recipe = importlib.import_module("shop_api")
    with TestClient(recipe.api) as web, timerwheel_service.client() as client:
        answer = web.post("/orders", json={"id": 17, "email": "zoe@example.org"}).json()
        assert dt.datetime.fromisoformat(answer["closes"]) == timerwheel_service.now + dt.timedelta(
            minutes=30
        )
        timerwheel_service.advance("30m")
        while client.group("orders", "closers").info().queues[0].cursor == 0:
            pass  # until a worker has received it; the end of the block waits until it is done
    assert capsys.readouterr().out == "order 17 is closed\n"


DJANGO = """
import os, sys, threading
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["shop"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
from django.core.management import call_command
from django.db import transaction
from shop import timers
with transaction.atomic():
    timers.open_order(17)
    assert timers.client.wheel().pending == 0
try:
    with transaction.atomic():
        timers.open_order(18)
        raise KeyError
except KeyError:
    pass
print("sent", flush=True)
call_command("timers")
print("drained", flush=True)
"""


def test_django_sends_when_the_transaction_commits_and_has_a_command(timerwheel_service, programs):
    pytest.importorskip("django")
    for folder in ("shop", "shop/management", "shop/management/commands"):
        (programs / folder / "__init__.py").touch()
    environment = {
        "PYTHONPATH": f"{ROOT}:{programs}",
        "PYTHONUNBUFFERED": "1",
        "TIMERWHEEL_URL": timerwheel_service.url,
    }
    with subprocess.Popen(
        [sys.executable, "-c", DJANGO], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "sent\n"
        timerwheel_service.advance("30m")
        assert process.stdout.readline() == "order 17 is closed\n"
        process.terminate()
        assert process.communicate()[0] == "drained\n"


def test_a_webhook_is_called_in_half_an_hour(timerwheel_service, timerwheel_client, target):
    recipe = importlib.import_module("webhook")
    target.statuses = [200]
    cancelled = recipe.call_in_half_an_hour(timerwheel_client, target.url, 18)
    recipe.call_in_half_an_hour(timerwheel_client, target.url, 17)
    timerwheel_client.tasks.cancel(cancelled)
    timerwheel_service.advance("30m")
    while not target.bodies:
        pass
    assert target.bodies == [b'{"user":17}']


def test_every_file_of_the_page_is_run_here():
    text = Path(__file__).read_text()
    assert len(FILES) == 9
    for name in FILES:
        assert Path(name).stem in text
