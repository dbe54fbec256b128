"""`listen`: what arrives at a program on this machine, what is printed, and what is left after Ctrl-C."""

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager
from functools import partial

import pytest
from standardwebhooks import Webhook

from tests.harness.processes import COMMAND, environment, serving, timerwheel
from tests.harness.receiver import Receiver
from timerwheel.push.signing import new_secret

SECRET = new_secret(bytes(range(32)))
OF_ONE_REQUEST = {"webhook-timestamp", "webhook-signature", "host"}
ACK_URL = "timerwheel-ack-url"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("listen") / "data", "--push-private-targets") as service:
        yield service.url


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """The user's state directory of the commands of a test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/timerwheel/listen"


@pytest.fixture
def run(url):
    return partial(timerwheel, TIMERWHEEL_URL=url)


@asynccontextmanager
async def listening(url, *arguments):
    """The command in a process of its own, and the first document that it printed."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("listen", *map(str, arguments), "--json"),
        stdout=asyncio.subprocess.PIPE,
        env=environment(TIMERWHEEL_URL=url),
    )
    try:
        yield process, json.loads(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def attempt_of(process):
    return json.loads(await process.stdout.readline())


async def stop(process):
    """Ctrl-C: the exit code."""
    process.send_signal(signal.SIGINT)
    return await process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_service_that_does_not_answer_holds_nobody_who_wants_to_leave(number):
    loop = asyncio.get_running_loop()
    asked, gone = loop.create_future(), loop.create_future()

    async def be_silent(reader, writer):
        asked.set_result(await reader.readline())
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set_result(None)

    silent = await asyncio.start_server(be_silent, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("listen", "silent", "--forward-to", "localhost:1"),
        env=environment(TIMERWHEEL_URL=f"http://127.0.0.1:{port}"),
    )
    assert (await asked).startswith(b"PUT /v1/topics/silent/groups/listen-")
    process.send_signal(number)
    assert await asyncio.wait_for(process.wait(), 20) == (130 if number == signal.SIGINT else -number)
    await gone
    silent.close()
    await silent.wait_closed()


async def test_requests_are_those_that_a_subscription_sends(url, run):
    async with (
        Receiver() as receiver,
        listening(url, "same", "--forward-to", receiver.url("laptop"), "--secret", SECRET) as (
            process,
            first,
        ),
    ):
        assert first["secret"] == SECRET
        run("subscriptions", "add", "same", receiver.url("push"), "--secret", SECRET)
        await asyncio.to_thread(
            *(run, "send", "same", '{"order": 17}', "--tags", "vip", "--keys", "a b"),
            *("--property", "colour=blü", "--delay", "100ms", "--dedup-key", "k"),
        )
        await receiver.arrived(1, "laptop")
        await receiver.arrived(1, "push")
        headers = {
            got.path: {name.lower(): value for name, value in got.headers.items()} for got in receiver.got
        }
        for got in receiver.got:
            assert Webhook(SECRET).verify(got.body, dict(got.headers)) == {"order": 17}
        differing = {
            name
            for name in headers["push"].keys() | headers["laptop"].keys()
            if headers["push"].get(name) != headers["laptop"].get(name)
        }
        # `listen` acknowledges by itself, so it offers no URL to do it later.
        assert (ACK_URL in headers["push"], ACK_URL in headers["laptop"]) == (True, False)
        assert differing - {ACK_URL} <= OF_ONE_REQUEST
        shown = await attempt_of(process)
        assert (shown["status"], shown["outcome"], shown["attempt"]) == (200, "delivered", 1)
        assert await stop(process) == 0


async def test_a_failing_program_gets_the_message_again_by_the_rules_of_the_group(url, run):
    async with (
        Receiver(behave={"hook": 500}) as receiver,
        listening(
            *(url, "failing", "--forward-to", f"localhost:{receiver.port}/hook", "--print"),
            *("--max-attempts", 2, "--backoff", "1s..1s", "--secret", SECRET),
        ) as (process, first),
    ):
        await asyncio.to_thread(run, "send", "failing", "x")
        shown = [await attempt_of(process), await attempt_of(process)]
        assert [(one["attempt"], one["status"], one["body"]) for one in shown] == [
            (1, 500, "x"),
            (2, 500, "x"),
        ]
        assert await stop(process) == 0
        letters = (await asyncio.to_thread(run, "dlq", "list", first["group"], "--json")).json["letters"]
        assert [letter["reason"] for letter in letters] == ["HTTP 500"]


async def test_at_the_end_the_commands_own_group_is_gone(url, run):
    async with (
        Receiver() as receiver,
        listening(url, "own", "--forward-to", receiver.port) as (process, first),
    ):
        names = run("groups", "list", "own", "-o", "id").out.split()
        assert names == [first["group"]]
        assert await stop(process) == 0
    assert run("groups", "list", "own", "-o", "id").out == ""


async def test_a_named_group_stays_and_gets_back_what_was_in_progress(url, run):
    async with (
        Receiver(behave={"hook": "hang"}) as receiver,
        listening(url, "named", "--forward-to", receiver.url(), "--group", "devs") as (process, _),
    ):
        await asyncio.to_thread(run, "send", "named", "in progress")
        await receiver.arrived(1)
        assert await stop(process) == 0
    [again] = run("groups", "receive", "named", "devs", "--wait", "10s", "--json").lines
    assert (again["body"], again["attempt"]) == ("in progress", 2)


@pytest.mark.parametrize("target", ["", "http://", "localhost:99999", "ftp://localhost", "a b"])
def test_a_wrong_address_is_one_line_of_usage(run, target):
    refused = run("listen", "t", "--forward-to", target)
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (2, "", 1)
    assert "--forward-to" in refused.err


def test_a_malformed_secret_is_refused_without_being_repeated(run):
    refused = run("listen", "t", "--forward-to", "3000", "--secret", "hunter2")
    assert (refused.code, refused.out) == (2, "")
    assert "hunter2" not in refused.err


async def test_the_next_command_deletes_the_group_of_one_that_was_killed_and_of_no_other(url, run, state):
    async with Receiver() as receiver:
        command = ("left", "--forward-to", receiver.url("laptop"))
        async with (
            listening(url, *command) as (killed, of_killed),
            listening(url, *command) as (alive, of_alive),
        ):
            killed.kill()
            await killed.wait()
            assert {path.stem for path in state.iterdir()} == {of_killed["group"], of_alive["group"]}
            async with listening(url, *command) as (process, first):
                found = {one["group"] for one in run("groups", "list", "left", "--json").json["groups"]}
                assert found == {of_alive["group"], first["group"]}
                assert await stop(process) == 0
            assert await stop(alive) == 0
    assert list(state.iterdir()) == []


async def test_a_group_on_another_service_or_a_note_that_is_not_whole_is_left_or_forgotten(url, state):
    state.mkdir(parents=True)
    elsewhere = {"url": "http://elsewhere.example:1", "topic": "t", "group": "listen-00000000"}
    (state / "listen-00000000.json").write_text(json.dumps(elsewhere))
    (state / "listen-11111111.json").write_text('{"url"')
    mine = {"url": url, "topic": "t", "group": "workers"}
    (state / "workers.json").write_text(json.dumps(mine))
    async with (
        Receiver() as receiver,
        listening(url, "noted", "--forward-to", receiver.url("x")) as (process, _),
    ):
        assert await stop(process) == 0
    assert {path.name for path in state.iterdir()} == {"listen-00000000.json", "workers.json"}


async def test_without_a_state_directory_the_command_works(url, state):
    state.parent.parent.mkdir()
    state.parent.write_text("a file")
    async with (
        Receiver() as receiver,
        listening(url, "noted", "--forward-to", receiver.url("x")) as (process, _),
    ):
        assert await stop(process) == 0


async def test_the_note_of_a_group_that_could_not_be_deleted_stays_for_the_next_command(tmp_path, state):
    with serving(tmp_path / "data") as service:
        async with Receiver() as receiver:
            command = listening(service.url, "away", "--forward-to", receiver.url("x"))
            async with command as (process, first):
                service.end(signal.SIGKILL)
                assert await stop(process) == 0
    assert {path.stem for path in state.iterdir()} == {first["group"]}


def test_a_group_that_the_token_may_not_create_is_not_called_created(tmp_path):
    made = timerwheel(
        "tokens", "create", "w", "--scope", "receive", "--topic", "t", "--data", tmp_path, "--json"
    )
    with serving(tmp_path) as service:
        refused = timerwheel(
            *("listen", "t", "--forward-to", "3000", "--group", "devs", "--url", service.url),
            TIMERWHEEL_TOKEN=made.json["token"],
        )
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == "timerwheel: token 'w' lacks the scope admin\n"


async def test_what_could_not_be_printed_is_not_forwarded_again(url, run):
    read, write = os.pipe()
    async with Receiver() as receiver:
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *("listen", "unread", "--forward-to", receiver.url(), "--group", "devs", "--json"),
            stdout=write,
            stderr=asyncio.subprocess.PIPE,
            env=environment(TIMERWHEEL_URL=url),
        )
        os.close(write)
        begun = await asyncio.to_thread(os.read, read, 4_096)
        assert json.loads(begun)["group"] == "devs"
        os.close(read)  # as `| head -1` does
        await asyncio.to_thread(run, "send", "unread", "once")
        await receiver.arrived(1)
        _, errors = await process.communicate()
        assert process.returncode == 1
        assert errors.decode() == "created group devs of topic unread\n"
        group = await asyncio.to_thread(run, "groups", "show", "unread", "devs", "--json")
        assert {name: group.json[name] for name in ("lag", "in_flight", "waiting", "ready")} == {
            "lag": 0, "in_flight": 0, "waiting": 0, "ready": 0,
        }  # fmt: skip
        assert len(receiver.got) == 1
