"""The gRPC server: the table of calls, TLS, the limits of connections and messages. Imports grpc.

1. A message of a client is at most `body_size_max` and `FRAME_BYTES` long; gRPC refuses a longer one before
   it is in memory, and takes none of a call without a valid token: calls with one request are served as
   streams, whose messages are read when they are asked for (`Service.request`).
2. A connection that does not answer a ping is closed, so half-open streams end.
"""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from timerwheel.rocketmq.grpc.codes import OK, status_of
from timerwheel.rocketmq.grpc.schema import SERVICE, message_class
from timerwheel.rocketmq.grpc.service import Service
from timerwheel.settings import Serving

FRAME_BYTES: Final = 1 << 20
"""What a message may have beside a body of the largest size: properties, or more small messages."""
CALLS_MAX: Final = 25_000
STREAMS_PER_CONNECTION_MAX: Final = 4_096
METADATA_BYTES_MAX: Final = 16 << 10
HANDSHAKE_MS_MAX: Final = 20_000
PING_EACH_MS: Final = 60_000
PING_ANSWER_MS: Final = 20_000
CLIENTS_PING_EACH_MS: Final = 5_000

logger = logging.getLogger(__name__)


def new_server(body_bytes_max: int) -> Any:
    """Return a server that listens nowhere yet."""
    return aio.server(
        maximum_concurrent_rpcs=CALLS_MAX,
        options=[
            ("grpc.max_receive_message_length", body_bytes_max + FRAME_BYTES),
            ("grpc.max_send_message_length", -1),  # one stored message each
            ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
            ("grpc.max_metadata_size", METADATA_BYTES_MAX),
            ("grpc.so_reuseport", 0),  # a port that another process has must be an error
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS_MAX),
            ("grpc.keepalive_time_ms", PING_EACH_MS),
            ("grpc.keepalive_timeout_ms", PING_ANSWER_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", CLIENTS_PING_EACH_MS),
        ],
    )


def listen(server: Any, address: str, serving: Serving) -> int:
    """Have a server listen, with TLS if the service has a certificate; returns the port. RuntimeError."""
    if serving.tls_certificate is None or serving.tls_key is None:
        port: int = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, _credentials(serving))
    return port


def _credentials(serving: Serving) -> Any:
    """Return credentials that read the certificate again when its files have changed."""
    assert serving.tls_certificate is not None
    assert serving.tls_key is not None
    paths = [serving.tls_certificate, serving.tls_key]
    if serving.tls_client_ca is not None:
        paths.append(serving.tls_client_ca)

    def configuration() -> Any:
        certificate, key, *authorities = [path.read_bytes() for path in paths]
        return grpc.ssl_server_certificate_configuration([(key, certificate)], *authorities)

    stamp = _stamp(paths)

    def changed() -> Any:
        nonlocal stamp
        try:
            if (now := _stamp(paths)) == stamp:
                return None
            stamp = now
            return configuration()
        except OSError as error:
            logger.error("the certificate for RocketMQ's clients stays the old one: %s", error)  # noqa: TRY400
            return None

    return grpc.dynamic_ssl_server_credentials(
        configuration(), changed, require_client_authentication=serving.tls_client_ca is not None
    )


def _stamp(paths: list[Path]) -> list[tuple[int, int]]:
    return [(found.st_ino, found.st_mtime_ns) for found in (path.stat() for path in paths)]


def add(server: Any, service: Service) -> None:
    """Register the calls of a service; others are UNIMPLEMENTED."""
    handlers = {name: _unary(name, handler, service) for name, handler in service.unary.items()}
    handlers["ReceiveMessage"] = grpc.stream_stream_rpc_method_handler(
        service.receive_message,
        _decoder("ReceiveMessageRequest"),
        message_class("ReceiveMessageResponse").SerializeToString,
    )

    async def telemetry(requests: Any, context: Any) -> None:
        try:
            await service.telemetry(requests, context)
        except Exception as error:  # noqa: BLE001 - whatever it is ends the stream
            code, detail = status_of(error)
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{code.name}: {detail}")

    handlers["Telemetry"] = grpc.stream_stream_rpc_method_handler(
        telemetry,
        _decoder("TelemetryCommand"),
        message_class("TelemetryCommand").SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def _unary(name: str, handler: Callable[[Any, Any, Any], Awaitable[None]], service: Service) -> Any:
    answer_class = message_class(f"{name}Response")

    async def serve(requests: Any, context: Any) -> Any:
        answer = answer_class()
        try:
            call = service.call(context)
            request = await service.request(call, requests)
            await service.assure_lead()
            await handler(call, request, answer)
            if not answer.status.code:
                answer.status.code, answer.status.message = OK
        except Exception as error:  # noqa: BLE001 - whatever it is becomes an answer
            answer = answer_class()
            answer.status.code, answer.status.message = status_of(error)
        service.count(name, answer.status.code)
        return answer

    return grpc.stream_unary_rpc_method_handler(
        serve, _decoder(f"{name}Request"), answer_class.SerializeToString
    )


def _decoder(name: str) -> Callable[[bytes], Any]:
    """Return what reads a message; None for bytes that are none, which gRPC would log with a traceback."""
    decode = message_class(name).FromString

    def read(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError:
            return None

    return read
