"""`python -m bench clients`: RocketMQ's Java client as the load, in a small run on this service alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench import results
from bench.generator.java import run as java
from bench.generator.run import LoadFailedError
from tests.harness import maven

PATIENCE_S = 300


@pytest.fixture(scope="module")
def generator():
    if maven.is_missing():
        pytest.skip("needs Java 17 and Maven")
    if java.missing() is not None:
        try:
            java.build()
        except subprocess.CalledProcessError:
            pytest.skip("Maven cannot get RocketMQ's client")


@pytest.mark.torture
@pytest.mark.usefixtures("generator")
def test_each_part_is_measured_without_a_fault_and_reported(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    small = ["--rounds", "1", "--seconds", "0.5", "--warm-up", "0.2", "--counts", "700", "--rates", "200"]
    words = ["clients", "report", "--systems", "timerwheel sync", *small]
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words, "--out", str(out), "--work", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = results.only(results.Figure, results.read(out))
    assert [figure.case for figure in figures] == [
        "16 threads, 1 a request",
        "4 threads, 32 a request",
        "push consumer, backlog of 700",
        "700 in one millisecond",
        "200 a second",
    ]
    assert [figure.fault for figure in figures] == [None] * len(figures)
    assert all("service_cpu_us_per_message" in figure.figures for figure in figures)
    assert ["messages_per_s" in figure.figures for figure in figures] == [True, True, True, False, False]
    assert [set(figure.histograms) for figure in figures] == [
        {"latency"},
        {"latency"},
        set(),
        {"lateness"},
        {"lateness"},
    ]
    assert "## clients" in (tmp_path / "RESULTS.md").read_text()


@pytest.mark.usefixtures("generator")
async def test_a_load_that_fails_says_why(tmp_path: Path) -> None:
    numbers = {"threads": 1, "batch": 1, "warmUpMs": 10, "ms": 10}
    with pytest.raises(LoadFailedError, match=r"connect|route"):
        await java.run("127.0.0.1:1", "send", numbers, tmp_path, lambda: None, lambda _: None)


def test_what_is_missing_is_said_with_its_command(monkeypatch, tmp_path):
    monkeypatch.setattr(java, "CACHE", tmp_path)
    monkeypatch.setattr(java.shutil, "which", lambda name: name)
    assert java.missing() == "python -m bench.generator.java build"
    monkeypatch.setattr(java.shutil, "which", lambda name: name if name == "java" else None)
    assert java.missing() == "apt-get install maven && python -m bench.generator.java build"
    monkeypatch.setattr(java.shutil, "which", lambda _: None)
    assert java.missing().startswith("apt-get install openjdk")


def test_a_fault_names_each_kind():
    found = java.Result(lost=1, twice=2, early=3, stored_late_ms=4)
    assert found.fault == "1 lost, 2 twice, 3 early, the last was stored 4 ms after its due time"
    assert java.Result().fault is None
