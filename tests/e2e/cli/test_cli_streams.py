"""Commands whose streams are closed or full, whose connection breaks, or whose arguments are empty."""

import socket
import subprocess
import sys
import threading
from functools import partial

import pytest

from tests.harness.processes import environment, serving, timerwheel

PATIENCE_S = 60


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("streams") / "data") as service:
        yield service.url


def in_shell(redirections, *arguments, **changed):
    """Run a command in a process of its own with these redirections; its exit code and stderr."""
    words = ("-m", "timerwheel", *arguments)
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, *words],
        capture_output=True,
        text=True,
        env=environment(**changed),
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", [("send", "streams", "x"), ("levels",), ("--help",), ("--version",)])
def test_a_command_works_though_its_stdout_is_closed(url, arguments):
    assert in_shell(">&-", *arguments, TIMERWHEEL_URL=url) == (0, "")
    assert in_shell("<&- >&- 2>&-", *arguments, TIMERWHEEL_URL=url) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it")
@pytest.mark.parametrize("arguments", [("--help",), ("--version",)])
def test_what_cannot_be_printed_is_one_error_and_no_success(url, arguments):
    code, err = in_shell(">/dev/full", *arguments, TIMERWHEEL_URL=url)
    assert (code, err) == (1, "timerwheel: No space left on device\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it")
@pytest.mark.parametrize("form", ["table", "json", "id"])
@pytest.mark.parametrize(
    "arguments", [("topics", "list"), ("topics", "show", "streams"), ("send", "streams", "x")]
)
def test_a_full_disk_under_stdout_is_not_taken_for_that_of_the_service(url, arguments, form):
    timerwheel("send", "streams", "x", TIMERWHEEL_URL=url)
    code, err = in_shell(">/dev/full", *arguments, "-o", form, TIMERWHEEL_URL=url)
    assert (code, err) == (1, "timerwheel: stdout: No space left on device\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it")
def test_what_could_not_be_printed_is_not_acknowledged(url):
    timerwheel("send", "printed", "x", TIMERWHEEL_URL=url)
    for form in ("table", "json", "id"):
        flags = ("printed", form, "--start", "head", "--create", "--ack", "-o", form)
        code, err = in_shell(">/dev/full", "groups", "receive", *flags, TIMERWHEEL_URL=url)
        assert (code, err.splitlines()[-1]) == (1, "timerwheel: stdout: No space left on device")
        group = timerwheel("groups", "show", "printed", form, "--json", TIMERWHEEL_URL=url).json
        assert group["in_flight"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is sure to have it")
def test_an_answer_without_end_is_no_yes(url):
    timerwheel("send", "streams", "x", TIMERWHEEL_URL=url)
    code, err = in_shell("</dev/zero", "topics", "delete", "streams", TIMERWHEEL_URL=url)
    assert code == 1
    assert err.endswith("cancelled: nothing was changed\n")


def test_what_a_closed_stdin_should_have_said_is_missed(url):
    code, err = in_shell("<&-", "send", "streams", "-", TIMERWHEEL_URL=url)
    assert (code, err) == (2, "timerwheel send: -: stdin is closed\n")
    timerwheel("send", "streams", "x", TIMERWHEEL_URL=url)
    code, err = in_shell("<&-", "topics", "delete", "streams", TIMERWHEEL_URL=url)
    assert code == 1
    assert err.endswith("cancelled: nothing was changed\n")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_file_of_a_service_gets_the_place_of_a_closed_stream(tmp_path):
    """What a library prints there would go into the log."""
    program = (
        "import os, subprocess, sys, time\n"
        "for fd in (0, 1, 2): os.close(fd)\n"
        "sys.stdin = sys.stdout = sys.stderr = None\n"
        "from timerwheel.cli import main\n"
        "main.occupy_standard_streams()\n"
        "first = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "print('not into a file'); subprocess.run(['/bin/echo', 'neither this'], check=True)\n"
        "sys.exit(0 if first > 2 else 1)\n"
    )
    path = tmp_path / "file"
    done = subprocess.run([sys.executable, "-c", program, str(path)], timeout=PATIENCE_S, check=False)
    assert done.returncode == 0
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", ""),
        ("recall", ""),
        ("recall", "--key", "streams", ""),
        ("topics", "delete", "", "--yes"),
        ("groups", "show", "streams", ""),
        ("schedules", "delete", "", "--yes"),
    ],
)
def test_an_empty_argument_is_called_empty(url, arguments):
    refused = timerwheel(*arguments, TIMERWHEEL_URL=url)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == "timerwheel: a name or an id is empty; is a variable of your shell not set?\n"


def answer_nothing(listener):
    """Read one request and close its connection."""
    connection, _ = listener.accept()
    with connection:
        connection.recv(1 << 16)


def test_a_change_whose_connection_breaks_is_not_said_to_be_undone():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        breaking = threading.Thread(target=partial(answer_nothing, listener))
        breaking.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        broken = timerwheel("send", "streams", "x", TIMERWHEEL_URL=url)
        breaking.join(PATIENCE_S)
    assert (broken.code, broken.out) == (3, "")
    assert broken.err.startswith(f"timerwheel: {url} broke off the call: ")
    assert broken.err.endswith("; whether it did what was asked is not known\n")
