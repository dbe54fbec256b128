"""What a stream gives back when its client goes: never an event that the client may have read."""

import asyncio

import pytest
from aiohttp.test_utils import make_mocked_request

from tests.harness.consumers import ack, put, receive, send
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.groups.consumer import Consumer
from timerwheel.api.groups.stream import CHUNK_BYTES, Stream
from timerwheel.api.groups.window import Window
from timerwheel.api.http import budget
from timerwheel.wire.groups import GroupPath


class Socket(asyncio.Transport):
    """A connection whose other side goes at a moment of the test's choice."""

    def __init__(self, *, goes: str) -> None:
        super().__init__()
        self.goes = goes
        self.closing = goes == "before the write"
        self.written: list[bytes] = []

    def is_closing(self) -> bool:
        return self.closing

    def set_write_buffer_limits(self, high=None, low=None) -> None:
        pass


class Writer:
    """What aiohttp does with the bytes of an answer."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    async def write(self, data: bytes) -> None:
        if self._socket.closing:
            raise ConnectionResetError("Cannot write to closing transport")
        self._socket.written.append(data)
        self._socket.closing = True  # the client has read it, and closes the connection

    async def drain(self) -> None:
        if self._socket.goes == "during the write":
            raise ConnectionResetError("Connection lost")


@pytest.mark.parametrize("mode", ["manual", "auto"])
@pytest.mark.parametrize(
    ("goes", "back"), [("before the write", 3), ("during the write", 1), ("after the write", 1)]
)
async def test_an_event_that_the_client_may_have_read_is_not_given_back(world, goes, back, mode):
    await world.open(segment_size_bytes=1 << 20)
    await put(world, invisible_ms=60_000)
    # Two events of one chunk, and one of the next.
    await send(world, "first", "x" * CHUNK_BYTES, "last")
    held = await receive(world)
    socket = Socket(goes=goes)
    handle = EngineHandle(world.engine.settings)
    handle.open(world.engine, None)
    request = make_mocked_request("GET", "/", transport=socket)
    request[budget.KEY] = budget.Charge(budget.Budgets.of(world.engine.settings))
    consumer = Consumer(handle, request, GroupPath("orders", "g"))
    window = Window(100, world.clock)
    stream = Stream(request, Writer(socket), handle, consumer, window, auto=mode == "auto")
    with pytest.raises(ConnectionResetError):
        await stream.send(held)
    assert len(b"".join(socket.written)) == 0 or b"first" in socket.written[0]
    info = world.engine.groups.info("orders", "g")
    acked = 2 if mode == "auto" and goes == "after the write" else 0
    assert (info.waiting, info.in_flight) == (back, 3 - back - acked)
    # What the client has read it can acknowledge; what was acknowledged for it stays so.
    assert await ack(world, *held) == [index < 3 - back for index in range(3)]


async def test_what_was_taken_for_a_client_that_goes_before_its_first_event_is_given_back(world):
    await world.open()
    await put(world, invisible_ms=60_000)
    await send(world, "a", "b")
    held = await receive(world)
    socket = Socket(goes="after the write")  # it goes when it has read the comment at the beginning
    handle = EngineHandle(world.engine.settings)
    handle.open(world.engine, None)
    request = make_mocked_request("GET", "/", transport=socket)
    request[budget.KEY] = budget.Charge(budget.Budgets.of(world.engine.settings))
    consumer = Consumer(handle, request, GroupPath("orders", "g"))
    stream = Stream(request, Writer(socket), handle, consumer, Window(100, world.clock), auto=False)
    await stream.run(held, None)
    assert world.engine.groups.info("orders", "g").waiting == 2


async def test_a_step_of_the_clock_keeps_no_message_in_a_window_after_its_lease(world):
    await world.open()
    await put(world, invisible_ms=60_000)
    await send(world, "a", "b", "c")
    held = await receive(world)
    window = Window(3, world.clock)
    window.enter(held)
    window.extend([held[0].receipt], 90_000)
    assert window.room == 0
    world.clock.step(-86_400_000)
    world.clock.advance(59_999)
    assert window.room == 0
    world.clock.advance(1)
    assert window.room == 2
