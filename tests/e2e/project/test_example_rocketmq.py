"""The Java programs of examples/rocketmq-java: code for RocketMQ, against a service."""

import re
import subprocess

import pytest

from tests.harness import maven
from tests.harness.ports import reserved_address
from tests.harness.processes import PATIENCE_S, QUICK_JAVA_FLAGS, ROOT, serving

PROJECT = ROOT / "examples" / "rocketmq-java"

pytestmark = pytest.mark.skipif(maven.is_missing(), reason="needs Java 17 and Maven")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    address = reserved_address()
    flags = ("--rocketmq", address, "--levels", "1s 1s 2s")
    with serving(tmp_path_factory.mktemp("example") / "data", *flags):
        yield address


def command(home, program, *arguments):
    options = (*QUICK_JAVA_FLAGS, "-Xmx128m", f"-Duser.home={home}")
    return ["java", *options, "-cp", maven.class_path(PROJECT), f"shop.{program}", *arguments]


def test_orders_that_are_not_paid_are_closed(tmp_path, address):
    done = subprocess.run(
        command(tmp_path, "OrderTimeout", address, "1"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert sorted(done.stdout.splitlines()) == [
        "order-1 was not paid in time, and is closed",
        "order-2 is paid",
        "order-3 was not paid in time, and is closed",
    ], done.stderr


def test_delays_by_level_and_by_milliseconds_are_kept(tmp_path, address):
    with subprocess.Popen(
        command(tmp_path, "DelayedConsumer", address), stdout=subprocess.PIPE, text=True
    ) as consumer:
        try:
            assert consumer.stdout is not None
            assert consumer.stdout.readline() == "waiting\n"
            sent = command(tmp_path, "DelayedProducer", address)
            done = subprocess.run(sent, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
            assert done.stdout.count("SEND_OK") == 2
            lines = [consumer.stdout.readline() for _ in range(2)]
        finally:
            consumer.kill()
    found = dict(re.fullmatch(r"(.*), after (\d+) ms\n", line).groups() for line in lines)
    assert int(found["water the plants"]) >= 2_000
    assert int(found["feed the cat"]) >= 2_500


def test_the_readme_names_each_program():
    text = (PROJECT / "README.md").read_text()
    programs = {path.stem for path in PROJECT.rglob("*.java")}
    assert {name for name in programs if f"`{name}`" in text} == programs
