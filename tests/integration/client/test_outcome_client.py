"""A service that failed in the middle of a call, as the client and the command line tell it."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from tests.harness.processes import COMMAND, environment
from timerwheel.api.http.problems import of_error
from timerwheel.client import Client, OutcomeUnknownError
from timerwheel.errors import OutcomeUnknownError as Unknown
from timerwheel.runtime.outcome import failure_of
from timerwheel.store.errors import WriteUnknownError

DETAIL = "the service has failed: syncing the log failed"


class Failing:
    """Answers every request with `outcome_unknown`, and counts them."""

    def __init__(self) -> None:
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            headers = dict(line.split(b": ") for line in head.lower().split(b"\r\n")[1:] if line)
            await reader.readexactly(int(headers.get(b"content-length", 0)))
            self.requests += 1
            response = of_error(Unknown(DETAIL))
            body = bytes(response.body)
            assert "Retry-After" not in response.headers
            line = f"HTTP/1.1 {response.status} x\r\nContent-Type: application/problem+json\r\n"
            writer.write(f"{line}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            break
        writer.close()


@pytest.fixture
async def failing() -> AsyncIterator[tuple[Failing, str]]:
    service = Failing()
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        yield service, f"http://{host}:{port}"


async def test_the_client_says_that_it_is_unknown_and_never_sends_again_by_itself(failing):
    service, url = failing
    async with Client(url) as client:
        with pytest.raises(OutcomeUnknownError) as caught:
            await client.send("orders", b"x")
        assert service.requests == 1
        with pytest.raises(OutcomeUnknownError):
            await client.send_many([{"topic": "orders", "body": "x"}] * 3)
        assert service.requests == 2
    assert (caught.value.status, caught.value.code) == (500, "outcome_unknown")


async def test_the_command_line_says_so_with_the_exit_code_for_what_is_not_known(failing):
    service, url = failing
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("send", "orders", "x", "--url", url),
        env=environment(),
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 3
    assert "may have been stored" in errors.decode()
    assert service.requests == 1


def test_a_service_that_failed_before_a_write_says_that_it_is_not_stored():
    assert failure_of(WriteUnknownError("x")).code == "outcome_unknown"
    assert json.loads(bytes(of_error(failure_of(WriteUnknownError("x"))).body))["code"] == "outcome_unknown"
