"""`python -m bench` as a user starts it: one small scenario, its report, wrong words, Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import results
from bench.claims import judge

BENCH = (sys.executable, "-m", "bench")
PATIENCE_S = 120


def run(*words: str) -> subprocess.CompletedProcess[str]:
    wide = {**os.environ, "COLUMNS": "400"}  # or a long path would be cut by a line break
    return subprocess.run(
        [*BENCH, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=wide
    )


def test_a_scenario_is_measured_written_down_and_reported(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    flags = ["--systems", "timerwheel sync", "--rounds", "1", "--rates", "200", "--seconds", "0.5"]
    done = run("fire", "report", *flags, "--out", str(out), "--work", str(tmp_path))
    assert done.returncode == 0, done.stderr
    [figure, grouped] = results.only(results.Figure, results.read(out))
    assert (figure.scenario, figure.case, figure.system) == ("fire", "200 a second", "timerwheel sync")
    assert grouped.system == "timerwheel sync, group"
    assert figure.fault is None
    assert figure.figures["delivered_per_s"] > 0
    report = (tmp_path / "RESULTS.md").read_text()
    assert "python -m bench fire report" in report
    assert "200 a second" in report
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("timerwheel-bench")) == []


@pytest.mark.torture
def test_workers_are_measured_in_both_forms_and_judged(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    flags = ["--systems", "timerwheel sync", "--rounds", "1", "--seconds", "0.2", "--warm-up", "0"]
    done = run("consume", "--parts", "receive", *flags, "--out", str(out), "--work", str(tmp_path))
    assert done.returncode == 0, done.stderr
    entries = results.read(out)
    figures = results.only(results.Figure, entries)
    assert [figure.fault for figure in figures] == [None] * 10
    assert all(figure.figures["messages_per_s"] > 0 for figure in figures)
    assert {figure.case.rpartition(", ")[2] for figure in figures} == {"in one step", "in two steps"}
    measured = {judged.claim.figure: judged.value for judged in judge(entries) if not judged.claim.peer}
    assert measured["service_cpu_us_per_message"] is not None


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("limits", "--work", "{}/none"), "none"),
        pytest.param(("limits", "--work", "{}/file"), "file", marks=pytest.mark.torture),
        pytest.param(("limits", "--work", "{}/loop"), "loop", marks=pytest.mark.torture),
        pytest.param(("limits", "--work", "/proc"), "/proc", marks=pytest.mark.torture),
        (("limits", "--out", "{}/file/r.jsonl", "--work", "{}"), "file"),
        pytest.param(
            ("limits", "--out", "/proc/none/r.jsonl", "--work", "{}"), "/proc/none", marks=pytest.mark.torture
        ),
        (("limits", "--out", "/dev/full", "--work", "{}"), "No space left"),
        (("report", "--out", "{}/file"), "file:1 is not a result"),
        pytest.param(("report", "--out", "{}"), "directory", marks=pytest.mark.torture),
        pytest.param(
            ("report", "--out", "{}/file/r.jsonl"), "there are no results", marks=pytest.mark.torture
        ),
    ],
)
def test_a_place_that_cannot_be_used_is_named_without_a_traceback(
    tmp_path: Path, words: tuple[str, ...], named: str
) -> None:
    (tmp_path / "file").write_text("x\n")
    (tmp_path / "loop").symlink_to("loop")
    done = run(*(word.format(tmp_path) for word in words))
    assert done.returncode in (1, 2)
    assert named in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_a_wrong_scenario_names_those_that_there_are() -> None:
    done = run("fier")
    assert done.returncode == 2
    assert "'fier'" in done.stderr
    assert "schedule" in done.stderr


def test_a_wrong_system_names_those_that_there_are() -> None:
    done = run("fire", "--systems", "rabbit")
    assert done.returncode == 2
    assert "beanstalkd" in done.stderr


def test_a_wrong_part_names_those_that_its_scenario_has() -> None:
    done = run("consume", "--parts", "receive,nosuch")
    assert done.returncode == 2
    assert "nosuch" in done.stderr
    assert "receive, return" in done.stderr


def test_a_report_of_nothing_says_what_to_do_first(tmp_path: Path) -> None:
    done = run("report", "--out", str(tmp_path / "none.jsonl"))
    assert done.returncode == 1
    assert "python -m bench" in done.stderr


def test_ended_in_the_midst_it_ends_what_it_started(tmp_path: Path) -> None:
    words = ["soak", "--soak-seconds", "60", "--out", str(tmp_path / "r.jsonl"), "--work", str(tmp_path)]
    process = subprocess.Popen([*BENCH, *words], stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + PATIENCE_S
    while len(members(process.pid)) < 3:  # itself, the service, the generator
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 130
    assert members(process.pid) == []
    assert list(tmp_path.glob("timerwheel-bench*")) == []


def members(session: int) -> list[int]:
    """Processes of a session, by /proc; none that has ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, owner = path.read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue
        if int(owner) == session and state != "Z":
            found.append(int(path.parent.name))
    assert os.getsid(0) != session
    return found
