"""The gRPC front on an open engine, and a plain gRPC client of it that sends any message, or any bytes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpc import aio, ssl_channel_credentials

from tests.harness.apps import app_of
from timerwheel.api.security.auth import AUTH
from timerwheel.engine import Engine
from timerwheel.rocketmq.grpc.codes import Code
from timerwheel.rocketmq.grpc.front import GrpcFront
from timerwheel.rocketmq.grpc.schema import SERVICE, message_class
from timerwheel.rocketmq.stored_message import Host
from timerwheel.settings import Serving

CLIENT_ID = "a-client"
TIMEOUT_S = 60  # only keeps a failure from hanging


def message(topic: str = "orders", body: bytes = b"hello", **system: Any) -> Any:
    """A message with these system properties, and an id if none is given."""
    made = message_class("Message")(body=body)
    made.topic.name = topic
    made.system_properties.message_id = "0102FC00"
    for name, value in system.items():
        if name == "keys":
            made.system_properties.keys.extend(value)
        elif name == "delivery_ms":
            made.system_properties.delivery_timestamp.FromMilliseconds(value)
        elif name == "user":
            made.user_properties.update(value)
        else:
            setattr(made.system_properties, name, value)
    return made


class GrpcCaller:
    """Calls one service. Answers are the protocol's messages."""

    def __init__(self, front: GrpcFront, channel: Any) -> None:
        self.front = front
        self.channel = channel
        self.access_key = ""
        self.client_id = CLIENT_ID

    @property
    def metadata(self) -> Sequence[tuple[str, str]]:
        signature = f"MQv2-HMAC-SHA1 Credential={self.access_key}/region, SignedHeaders=x, Signature=0"
        key = [("authorization", signature)] if self.access_key else []
        return [("x-mq-client-id", self.client_id), *key]

    async def call(self, name: str, request: Any = None, **fields: Any) -> Any:
        """Make a unary call; `topic` and `group` are names."""
        request = message_class(f"{name}Request")() if request is None else request
        for field, value in fields.items():
            if field in {"topic", "group"}:
                getattr(request, field).name = value
            elif field == "duration_ms":
                request.invisible_duration.FromMilliseconds(value)
            else:
                setattr(request, field, value)
        return await self.call_bytes(name, request.SerializeToString())

    async def call_bytes(self, name: str, data: bytes) -> Any:
        """Make a unary call with these bytes."""
        decode = message_class(f"{name}Response").FromString
        made = self.channel.unary_unary(f"/{SERVICE}/{name}", lambda given: given, decode)
        return await made(data, metadata=self.metadata, timeout=TIMEOUT_S)

    async def answer_without_request(self, name: str) -> Any:
        """Begin a call, send nothing of its request, and return the first message of the answer."""
        decode = message_class(f"{name}Response").FromString
        made = self.channel.stream_stream(f"/{SERVICE}/{name}", lambda given: given, decode)
        call = made(metadata=self.metadata, timeout=TIMEOUT_S)
        try:
            return await call.read()
        finally:
            call.cancel()

    async def send(self, *messages: Any) -> Any:
        """Send messages."""
        return await self.call("SendMessage", message_class("SendMessageRequest")(messages=messages))

    def receiving(
        self,
        topic: str = "orders",
        group: str = "closers",
        *,
        count: int = 32,
        invisible_ms: int | None = 15_000,
        wait_ms: int = 0,
        **fields: Any,
    ) -> Any:
        """Begin a receive; returns the stream."""
        request = message_class("ReceiveMessageRequest")(batch_size=count)
        request.group.name, request.message_queue.topic.name = group, topic
        request.long_polling_timeout.FromMilliseconds(wait_ms)
        if invisible_ms is not None:
            request.invisible_duration.FromMilliseconds(invisible_ms)
        if "expression" in fields:
            request.filter_expression.expression = fields.pop("expression")
            request.filter_expression.type = fields.pop("filter_type", 1)
        for name, value in fields.items():
            setattr(request, name, value)
        made = self.channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            message_class("ReceiveMessageRequest").SerializeToString,
            message_class("ReceiveMessageResponse").FromString,
        )
        return made(request, metadata=self.metadata, timeout=TIMEOUT_S)

    async def receive(self, *place: str, **given: Any) -> tuple[Code, list[Any]]:
        """Receive: the code of the status, and the messages."""
        answers = [one async for one in self.receiving(*place, **given)]
        (status,) = [one.status for one in answers if one.WhichOneof("content") == "status"]
        messages = [one.message for one in answers if one.WhichOneof("content") == "message"]
        if messages:
            assert answers[-1].WhichOneof("content") == "delivery_timestamp"
        return Code(status.code), messages

    async def ack(self, *messages: Any, group: str = "closers") -> Any:
        """Acknowledge messages."""
        request = message_class("AckMessageRequest")()
        for one in messages:
            system = one.system_properties
            request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        return await self.call("AckMessage", request, topic=messages[0].topic.name, group=group)

    def telemetry(self) -> Any:
        """Open a Telemetry stream."""
        made = self.channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            message_class("TelemetryCommand").SerializeToString,
            message_class("TelemetryCommand").FromString,
        )
        return made(metadata=self.metadata)


@asynccontextmanager
async def grpc_served(
    engine: Engine, serving: Serving | None = None, authority: Path | None = None
) -> AsyncIterator[GrpcCaller]:
    """The front of an engine, on a free port, and a client of it; over TLS if it trusts an authority."""
    serving = serving or Serving()
    front = GrpcFront(Host("127.0.0.1", 0), serving, engine.settings.body_bytes_max)
    front.bind()
    await front.open(engine, app_of(engine, serving)[AUTH])
    target = f"127.0.0.1:{front.address.port}"
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.http2.bdp_probe", 0),  # how much comes unread must not depend on how busy the machine is
    ]
    if authority is None:
        channel = aio.insecure_channel(target, options)
    else:
        channel = aio.secure_channel(target, ssl_channel_credentials(authority.read_bytes()), options)
    try:
        async with channel:
            yield GrpcCaller(front, channel)
    finally:
        await front.close()
