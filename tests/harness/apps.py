"""The application of an engine that is already open; `timerwheel.api.server` has one that still opens."""

from aiohttp import web

from timerwheel.api.app import make_app
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.security.slow_clients import TimeLimits
from timerwheel.clock import Clock
from timerwheel.engine import Engine
from timerwheel.push.ack_urls import AckUrls
from timerwheel.push.push import Push
from timerwheel.push.traces import Traces
from timerwheel.settings import Serving


def app_of(
    engine: Engine,
    serving: Serving | None = None,
    limits: TimeLimits | None = None,
    clock: Clock | None = None,
    traces: Traces | None = None,
) -> web.Application:
    """The API of an open engine, with push as long as it runs. The caller closes the engine after it.

    Auth uses the engine's clock unless another is given.
    """
    handle = EngineHandle(engine.settings, traces)
    urls = AckUrls(engine.core.log.log_id, engine.shard.number, "")
    private = engine.settings.push_private_targets
    push = Push(engine, allow_private=private, traces=traces, ack_urls=urls)
    handle.open(engine, push)
    app = make_app(handle, serving, limits, clock or engine.clock)
    app.on_startup.append(lambda _: push.start())
    app.on_cleanup.append(lambda _: push.close())
    return app
