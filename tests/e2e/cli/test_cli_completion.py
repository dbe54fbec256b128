"""Names and ids that shells complete from the running service, with the shells themselves."""

import os
import pty
import shlex
import shutil
import socket
import subprocess
import sys
import time

import pytest

from tests.harness.processes import environment, serving, timerwheel

PROGRAM = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m timerwheel "$@"\n'
BASH = """
eval "$(timerwheel --show-completion bash)"
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
_timerwheel_completion timerwheel
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("completion") / "data", "--push-private-targets") as service:
        for arguments in (
            ["send", "orders", "x", "--delay", "1h", "--dedup-key", "k"],
            ["groups", "put", "orders", "billing"],
            ["groups", "put", "stock", "counters"],
            ["schedules", "put", "daily", "reports", "--every", "1h"],
            ["subscriptions", "add", "orders", "http://127.0.0.1:9/", "--id", "books"],
            ["tasks", "create", "http://127.0.0.1:9/", "--delay", "1d"],
        ):
            assert timerwheel(*arguments, TIMERWHEEL_URL=service.url).code == 0
        yield service.url


@pytest.fixture
def variables(tmp_path, url):
    """The environment of a shell that finds the program on its PATH."""
    program = tmp_path / "bin" / "timerwheel"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    return environment(PATH=path, TIMERWHEEL_URL=url, HOME=str(tmp_path), TERM="dumb")


def shell(*words, variables):
    """What a shell prints to stdout; it must print nothing else."""
    done = subprocess.run(
        words, env=variables, cwd=variables["HOME"], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def in_bash(*words, variables):
    return shell("bash", "-c", BASH, "bash", *words, variables=variables)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (["groups", "show", ""], ["orders", "reports"]),
        (["groups", "show", "orders", ""], ["billing", "push-books"]),
        (["groups", "list", "-o", ""], ["table", "wide", "json", "id"]),
        (["schedules", "show", "d"], ["daily"]),
        (["subscriptions", "show", ""], ["books"]),
        (["dlq", "list", "c"], ["counters"]),
        (["dlq", "list", ""], ["billing", "counters", "push-books"]),
    ],
    ids=" ".join,
)
def test_bash_completes_names_of_the_running_service(variables, line, found):
    assert sorted(in_bash("timerwheel", *line, variables=variables)) == sorted(found)


def test_ids_of_scheduled_messages_are_completed_with_their_topic_in_fish(variables, url):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed: apt-get install fish")
    made = timerwheel("get", "--key", "orders", "k", "-o", "id", TIMERWHEEL_URL=url).out.strip()
    script = "timerwheel --show-completion fish | source; complete -C 'timerwheel get '"
    assert any(
        line.startswith(f"{made}\torders, due ") for line in shell("fish", "-c", script, variables=variables)
    )


def test_zsh_completes_a_name_at_the_press_of_the_key(variables):
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed: apt-get install zsh")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=variables, cwd=variables["HOME"]
    ) as process:
        os.close(theirs)
        os.write(
            ours,
            b"PS1='> '; autoload -U compinit; compinit -u -D; eval \"$(timerwheel --show-completion zsh)\"\n",
        )
        os.write(ours, b"print rea''dy\n")
        read_until(ours, b"\nready")
        os.write(ours, b"timerwheel schedules show da\t")
        read_until(ours, b"daily")
        process.kill()
    os.close(ours)


def read_until(terminal, wanted):
    shown, end = b"", time.monotonic() + 120
    while wanted not in shown.replace(b"\r", b""):
        assert time.monotonic() < end, shown
        shown += os.read(terminal, 4096)


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "nonsense"])
def test_without_a_service_nothing_is_completed_and_nothing_is_shown(variables, address):
    variables["TIMERWHEEL_URL"] = address
    assert in_bash("timerwheel", "groups", "show", "", variables=variables) in ([], [""])


def test_a_service_that_hangs_is_given_up(variables):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        variables["TIMERWHEEL_URL"] = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        assert in_bash("timerwheel", "groups", "show", "", variables=variables) in ([], [""])
