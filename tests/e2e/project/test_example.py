"""The example program against a service in a process of its own."""

import runpy
import subprocess
import sys

import pytest

from tests.harness.processes import PATIENCE_S, ROOT, environment, serving
from timerwheel.client import Client

PROGRAM = ROOT / "examples" / "order_timeout.py"


def _run(*arguments):
    return subprocess.run(
        [sys.executable, PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("example") / "data") as service:
        yield service.url


def test_the_books_of_many_orders_balance(url):
    done = _run("--url", url, "--orders", 300, "--speedup", 6000)
    assert done.returncode == 0, done.stderr
    assert "opened    300" in done.stdout
    assert "The books balance" in done.stdout
    assert done.stderr == ""


def test_a_service_that_is_not_there_is_one_line_and_exit_code_1():
    done = _run("--url", "http://127.0.0.1:1", "--orders", 1, "--speedup", 60000)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


@pytest.mark.parametrize("arguments", [["--orders", 0], ["--speedup", 0], ["--seed", "x"]])
def test_wrong_usage_is_exit_code_2(arguments):
    assert _run(*arguments).returncode == 2


async def test_books_that_do_not_balance_are_noticed(url):
    program = runpy.run_path(str(PROGRAM))
    async with Client(url) as client:
        shop = program["Shop"](client, "doctored", 6000, None)
        sent = await client.send("doctored", '{"order": "a"}', delay="1h")
        shop.books.opened = {"a": sent.id, "b": sent.id}
        shop.books.paid["a"] = 1
        shop.books.closed["a"] = 2
        faults = await shop.faults()
    for fault in (
        "2 opened, but 1 paid + 2 closed",
        "a: closed 2 times",
        "a: paid and closed",
        "b: neither paid nor closed",
        "the topic, read again, does not hold what the closer saw",
        "a: its timer is scheduled",
    ):
        assert fault in faults
