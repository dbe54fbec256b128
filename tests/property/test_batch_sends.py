"""A batch over remoting against the same messages sent the long way: the same records, or nothing stored."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.clock import ManualClock
from tests.harness.raw_log import raw_log
from tests.harness.remoting import PEER, Peer, remoting_of
from tests.harness.scratch import scratch_root
from tests.harness.stored_messages import BatchedMessage, encode_batch
from timerwheel.engine import Engine
from timerwheel.errors import TimerwheelError
from timerwheel.model.messages import Outgoing
from timerwheel.rocketmq import properties_text
from timerwheel.rocketmq.codes import Call, Result
from timerwheel.rocketmq.stored_message import Host
from timerwheel.rocketmq.translation import Envelope, admitted
from timerwheel.settings import Settings

NOW_MS = 1_800_000_000_000
BORN_MS = 1_700_000_000_000
LIMITS = {"body_bytes_max": 40, "properties_max": 3, "properties_bytes_max": 60}
TOPICS = ("orders", "tickets")

VALUES = st.sampled_from(["1", "true", "a b", "%d", "x" * 50, "ü", '"', "\\", "\n", "\x03"])
USUAL_NAMES = st.sampled_from(["UNIQ_KEY", "WAIT", "KEYS", "TAGS", "A", "%"])
NAMES = USUAL_NAMES | st.sampled_from(["TIMER_TTL_MS", "REAL_TOPIC", "DLQ_A", "ü"])
# Nothing becomes due meanwhile: what fires would come between the sends.
DELAYS = st.sampled_from([("DELAY", "18"), ("TIMER_DELAY_MS", "7000000"), ("TIMER_DELAY_SEC", "x")])


def texts_of(pairs: Any) -> Any:
    """Texts of properties, some without the mark at the end."""
    pairs = st.lists(pairs, max_size=4, unique_by=lambda pair: pair[0])
    text = pairs.map(lambda found: "".join([f"{name}\x01{value}\x02" for name, value in found]))
    return st.builds(lambda found, end: found.removesuffix(end), text, st.sampled_from(["", "\x02"]))


@st.composite
def batches(draw: Any) -> list[BatchedMessage]:
    """Batches whose messages are alike, nearly so, or each as it comes."""
    count = draw(st.integers(1, 6))
    bodies = draw(st.lists(st.binary(max_size=41), min_size=count, max_size=count))
    alike = texts_of(st.tuples(USUAL_NAMES, st.just("v")))
    texts = draw(
        st.one_of(
            st.lists(texts_of(st.tuples(NAMES, VALUES) | DELAYS), min_size=count, max_size=count),
            alike.map(lambda text: [text] * count),
            alike.map(lambda text: [text.replace("v", f"v{number}") for number in range(count)]),
        )
    )
    flags = draw(st.sampled_from([[0] * count, [7] * count, [*range(count)]]))
    return [
        BatchedMessage(flag, body, text.encode())
        for flag, body, text in zip(flags, bodies, texts, strict=True)
    ]


class Pair:
    """Two services at the same moment."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.loop.run_until_complete(self._open())

    async def _open(self) -> None:
        self.engines: list[Engine] = []
        self.clocks: list[ManualClock] = []
        for number in range(2):
            directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory(dir=scratch_root())))
            changes = {"data": directory / str(number), "disk_reserve_bytes": 0, **LIMITS}
            clock = ManualClock(NOW_MS)
            engine = await Engine.open(Settings(**changes), clock, threads=False)
            self.stack.push_async_callback(engine.close)
            for topic in TOPICS:
                await engine.topics.change(topic, queues=3)
            self.engines.append(engine)
            self.clocks.append(clock)
        self.peer = Peer(remoting_of(self.engines[0]))

    async def send_batch(self, topic: str, queue: int, batch: list[BatchedMessage]) -> bool:
        answer = await self.peer.send(topic, encode_batch(batch), code=Call.SEND_BATCH, e=queue, g=BORN_MS)
        return answer.code == Result.SUCCESS

    async def send_apart(self, topic: str, queue: int, batch: list[BatchedMessage]) -> bool:
        envelope = Envelope(BORN_MS, Host(*PEER))
        messages = [
            Outgoing(
                topic,
                body,
                admitted(properties_text.decode(text.decode())),
                queue=queue,
                envelope=envelope._replace(flag=flag).encode(),
            )
            for flag, body, text in batch
        ]
        try:
            await self.engines[1].sender.send(messages)
        except TimerwheelError:
            return False
        return True

    def close(self) -> None:
        self.loop.run_until_complete(self.stack.aclose())
        self.loop.close()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(TOPICS), st.integers(0, 2), batches(), st.sampled_from([0, 0, 1, 1_000]))
def test_a_batch_stores_what_its_messages_store_the_long_way(
    pair: Pair, topic: str, queue: int, batch: list[BatchedMessage], pause_ms: int
) -> None:
    async def both() -> None:
        for clock in pair.clocks:
            clock.advance(pause_ms)
        assert await pair.send_batch(topic, queue, batch) == await pair.send_apart(topic, queue, batch)

    pair.loop.run_until_complete(both())
    assert raw_log(pair.engines[0]) == raw_log(pair.engines[1])
