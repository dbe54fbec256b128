"""Later acknowledgements with the service as a process: its own URL, no API token, SIGKILL in between."""

import signal

import aiohttp
import pytest

from tests.harness.ports import reserved_port
from tests.harness.receiver import Receiver
from tests.torture.process import Service
from timerwheel.client import Client, ClientError
from timerwheel.push.ack_urls import ACK_URL_HEADER

LATER = (202, {"timerwheel-ack": "later", "timerwheel-ack-within": "3600"})


@pytest.fixture
async def receiver():
    async with Receiver() as receiver:
        receiver.behave["hook"] = LATER
        yield receiver


def ack_urls(receiver: Receiver) -> list[str]:
    """The URLs that the attempts for the subscription were given, in order; the task may be called first."""
    return [got.headers[ACK_URL_HEADER] for got in receiver.got if got.path == "hook"]


async def settle(url: str, **request: object) -> tuple[int, dict]:
    async with aiohttp.ClientSession() as session, session.post(url, **request) as response:
        return response.status, await response.json(content_type=None)


async def test_a_url_given_before_a_kill_ends_with_the_next_attempt_and_that_one_is_good(tmp_path, receiver):
    with Service(tmp_path / "data", reserved_port(), tmp_path / "stderr", forked=True) as service:
        service.start("--push-private-targets")
        await service.ready()
        async with Client(service.url) as client:
            await client.subscriptions.add("orders", receiver.url())
            await client.send("orders", "x")
            task = await client.tasks.create(receiver.url("task"))
            await receiver.arrived(1)
            await receiver.arrived(1, "task")
        [first] = ack_urls(receiver)
        assert first.startswith(f"{service.url}/v1/acks/")
        assert (await settle(f"{first}A"))[0] == 404
        service.signal(signal.SIGKILL)
        await service.killed()
        service.start("--push-private-targets")
        await receiver.arrived(2)
        await service.ready()
        second = ack_urls(receiver)[-1]
        assert second != first
        status, content = await settle(first)
        assert (status, content["code"]) == (409, "ack_ended")
        status, content = await settle(second, json={"reason": "it failed"})
        assert (status, content["code"]) == (400, "invalid_field")
        assert await settle(second, json={}) == (200, {"result": "acknowledged"})
        async with Client(service.url) as client:
            with pytest.raises(ClientError) as refused:
                await client.acks.extend(second, 1_000)
            assert refused.value.code == "ack_ended"
            assert (await client.tasks.get(task.id)).state in {"succeeded", "ready", "running", "retrying"}
