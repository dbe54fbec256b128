"""The destination of spans: none, unless the setting `traces` asks for a collector."""

from typing import Literal

from timerwheel.clock import Clock
from timerwheel.errors import SettingsError
from timerwheel.push.traces import Traces


def open_traces(kind: Literal["off", "otlp"], clock: Clock) -> Traces | None:
    """Open what the setting asks for, None for off; SettingsError if the extra `otel` is not installed."""
    if kind == "off":
        return None
    try:
        from timerwheel.tracing.otel import to_collector  # noqa: PLC0415 - loaded only if it is used
    except ImportError as error:
        raise SettingsError(
            f"traces: {kind} needs packages that are not installed ({error}); "
            "install them with: pip install 'timerwheel[otel]'"
        ) from error
    return to_collector(clock)
