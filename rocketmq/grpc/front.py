"""The front for RocketMQ's gRPC clients: `bind` first, `open` once the engine is ready, then `close`.

gRPC is imported only when it is asked for: the extra `grpc` has it.
"""

import asyncio
import importlib
import logging
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from timerwheel.engine import Engine
from timerwheel.errors import SettingsError
from timerwheel.listening import ListenError
from timerwheel.rocketmq.request import Callers
from timerwheel.rocketmq.stored_message import Host
from timerwheel.settings import Serving, Settings, address_of
from timerwheel.telemetry.background import in_background

if TYPE_CHECKING:
    from timerwheel.rocketmq.grpc.service import Service

FINISH_S_MAX: Final = 10.0
MODULES: Final = ("grpc", "google.protobuf")

logger = logging.getLogger(__name__)


class GrpcFront:
    """See the module. Event loop only."""

    def __init__(self, host: Host, serving: Serving, body_bytes_max: int) -> None:
        """Raises SettingsError if the packages that it needs are not installed."""
        self._host = host
        self._serving = serving
        self._body_bytes_max = body_bytes_max
        self._module = _server_module()
        self._listener: Any = None
        self._service: Service | None = None
        self._renewing: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, settings: Settings, serving: Serving) -> "GrpcFront":
        """Return the front that the settings ask for; SettingsError as above."""
        return cls(Host(*address_of(serving.rocketmq_grpc)), serving, settings.body_bytes_max)

    @property
    def address(self) -> Host:
        """Where it listens; the port is the bound one."""
        return self._host

    def bind(self) -> None:
        """Take the address. Calls wait until `open`; ListenError."""
        self._listener = self._module.new_server(self._body_bytes_max)
        address, port = self._host
        text = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        try:
            self._host = Host(address, self._module.listen(self._listener, text, self._serving))
        except (RuntimeError, OSError) as error:
            raise ListenError(
                f"cannot listen on {text} for RocketMQ's gRPC clients; another program may use this port: "
                "choose one with --rocketmq-grpc"
            ) from error

    async def open(self, engine: Engine, callers: Callers) -> None:
        """Serve clients with this engine."""
        from timerwheel.rocketmq.grpc.service import Service  # noqa: PLC0415 - needs protobuf

        self._service = Service(engine, callers, self._host, is_exact=self._serving.rocketmq_exact)
        self._module.add(self._listener, self._service)
        await self._listener.start()
        renewing = self._service.clients.keep_renewing()
        self._renewing = in_background(renewing, "the renewal of leases of RocketMQ's gRPC clients")
        logger.info("serving RocketMQ's gRPC clients on %s:%d", *self._host)

    async def close(self) -> None:
        """End streams and waiting receives, finish other calls, and close all connections."""
        listener, service, renewing = self._listener, self._service, self._renewing
        self._listener = self._service = self._renewing = None
        if renewing is not None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        if service is not None:
            service.stop()
        if listener is not None:
            await listener.stop(FINISH_S_MAX)


def _server_module() -> ModuleType:
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SettingsError(
                "rocketmq_grpc: the packages grpcio and protobuf are not installed; run "
                "pip install 'timerwheel[grpc]', or leave the setting out"
            ) from error
    return importlib.import_module("timerwheel.rocketmq.grpc.server")
