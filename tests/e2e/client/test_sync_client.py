"""The synchronous client against a service in a process of its own: threads, forks, signals, exits."""

import asyncio
import datetime as dt
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.harness.processes import PATIENCE_S, environment, serving
from timerwheel import SyncClient
from timerwheel.client import ConflictError, Exponential, GroupConfig, LeaseEndedError, UnreachableError


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("sync") / "data", "--redelivery-delay", "1ms") as service:
        yield service.url


@pytest.fixture
def client(url):
    with SyncClient(url) as client:
        yield client


@pytest.fixture
def topic(request):
    return request.node.name


def run(program, url, *, stdin=None):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, url],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PATIENCE_S,
        check=False,
        stdin=stdin,
    )
    assert done.stderr == ""
    return done


def test_three_lines_schedule_and_receive(client, topic):
    sent = client.send(topic, "close order 17", delay=dt.timedelta(milliseconds=5))
    message = next(client.receive(topic))
    assert (message.id, message.text) == (sent.id, "close order 17")


def test_errors_are_those_of_the_asynchronous_client(client, topic):
    sent = client.send(topic, "x", delay="1h")
    client.recall(sent.id)
    with pytest.raises(ConflictError) as caught:
        client.recall(sent.id)
    assert caught.value.code == "already_recalled"


def test_a_lease_is_acknowledged_by_its_block_and_returned_by_an_error(client, topic):
    group = client.group(topic, "g")
    group.put(GroupConfig(backoff=Exponential(initial_ms=1)))
    client.send(topic, "x")
    leases = group.messages()
    with pytest.raises(ZeroDivisionError), next(leases) as lease:
        1 / 0  # noqa: B018
    with next(leases) as lease:
        assert (lease.text, lease.attempt) == ("x", 2)
    leases.close()
    assert lease.settled
    assert group.info().lag == 0
    with pytest.raises(LeaseEndedError):
        lease.nack()


def test_many_threads_share_one_client(client, topic):
    with ThreadPoolExecutor(16) as threads:
        ids = set(threads.map(lambda n: client.send(topic, str(n), delay="1h").id, range(200)))
    assert len(ids) == 200


def test_a_client_without_a_block_opens_itself_and_ends_with_its_last_reference(url):
    before = set(threading.enumerate())
    schedules = SyncClient(url).schedules
    assert schedules.all() == []
    [thread] = [one for one in set(threading.enumerate()) - before if one.name == "timerwheel-client"]
    del schedules
    assert not thread.is_alive()


def test_a_closed_client_says_so_and_may_be_opened_again(url):
    client = SyncClient(url)
    client.topics()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.topics()
    with client:
        client.topics()


def test_a_call_that_runs_when_its_client_is_closed_fails(url, topic):
    client = SyncClient(url)
    client.send(topic, "x")
    queue = client.receive(topic, offset=-1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(next, queue)
        with SyncClient(url) as other:
            while not other.topics():
                pass
        client.close()
        with pytest.raises((UnreachableError, RuntimeError)):
            waiting.result()


async def test_a_call_in_a_running_loop_works(client, topic):
    assert client.send(topic, "x").topic == topic
    assert (await asyncio.to_thread(client.send, topic, "y")).topic == topic


def test_handlers_of_consume_run_in_as_many_threads_as_asked_for(client, topic):
    client.send_many([{"topic": topic, "body": str(n)} for n in range(8)])
    together, stop, seen = threading.Barrier(4), threading.Event(), []

    def handle(lease):
        together.wait()  # four must come
        seen.append((lease.text, threading.current_thread()))
        if len(seen) == 8:
            stop.set()

    client.group(topic, "g").consume(handle, concurrency=4, stop=stop)
    assert sorted(text for text, _ in seen) == [str(n) for n in range(8)]
    assert client.group(topic, "g").info().lag == 0
    assert all(thread is not threading.main_thread() for _, thread in seen)


def test_a_handler_that_raises_gives_its_message_back(client, topic):
    group = client.group(topic, "g")
    group.put(GroupConfig(backoff=Exponential(initial_ms=1)))
    client.send(topic, "x")
    stop = threading.Event()

    def handle(lease):
        if lease.attempt == 1:
            raise ConnectionError("the first time never works")
        stop.set()

    group.consume(handle, stop=stop)
    assert (group.info().lag, group.info().waiting) == (0, 0)


FORKS = """
import os, sys
from timerwheel import SyncClient
client = SyncClient(sys.argv[1])
queue = client.receive("forks")
client.send("forks", "parent")
child = os.fork()
client.send("forks", "child" if not child else "parent again")
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(sorted(next(queue).text for _ in range(3)))
"""


def test_a_forked_child_has_connections_of_its_own_and_leaves_the_parents_alone(url):
    assert run(FORKS, url).stdout == "['child', 'parent', 'parent again']\n"


EXIT = """
import atexit, sys
from timerwheel import SyncClient
client = SyncClient(sys.argv[1].replace("127.0.0.1", "localhost"))
atexit.register(lambda: print(client.send("exits", "last words").topic))
"""


def test_a_client_works_while_the_interpreter_exits(url):
    assert run(EXIT, url).stdout == "exits\n"


def test_a_program_that_forgot_to_close_its_client_ends(url):
    program = (
        "import sys; from timerwheel import SyncClient; c = SyncClient(sys.argv[1]); print(c.wheel().overdue)"
    )
    assert run(program, url).stdout == "0\n"


INTERRUPTED = """
import sys
from timerwheel import SyncClient
client = SyncClient(sys.argv[1])
client.wheel()  # starts the client's thread: Ctrl-C in the midst of that leaves half an event loop
try:
    print("waiting", flush=True)
    next(client.receive("nothing-comes"))
except KeyboardInterrupt:
    print(client.send("interrupts", "after").topic, flush=True)
try:
    client.group("interrupts", "g").consume(lambda lease: print(lease.text, flush=True))
except KeyboardInterrupt:
    print("drained", client.group("interrupts", "g").info().in_flight, flush=True)
"""


def test_ctrl_c_ends_a_waiting_call_and_a_consumer(url):
    command = [sys.executable, "-W", "error", "-c", INTERRUPTED, url]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout.readline() == "waiting\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "interrupts\n"
        assert process.stdout.readline() == "after\n"
        os.kill(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert (out, errors, process.returncode) == ("drained 0\n", "", 0)
