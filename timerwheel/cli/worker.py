"""`worker`: runs the workers of an app, as systemd or a container would."""

import importlib
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from timerwheel.cli.connection import Service, service_options
from timerwheel.cli.units import parse_length_ms
from timerwheel.client.app import DRAIN_MS, App, message_id
from timerwheel.errors import SettingsError

FORMAT = "%(asctime)s %(levelname)s %(name)s [%(message_id)s] %(message)s"


def worker(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The App, such as `shop.jobs:app`.")],
    *,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Messages at a time for each worker, instead of its own number.")
    ] = None,
    health: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve a health check over HTTP here.")
    ] = None,
    drain_ms: Annotated[
        int | None,
        typer.Option(
            "--drain",
            parser=parse_length_ms,
            metavar="LENGTH",
            help="How long running handlers may take after SIGTERM or Ctrl-C.",
            show_default=f"the app's, or {DRAIN_MS // 1000}s",
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    service: Annotated[Service, service_options("", "that of the app")],
) -> None:
    """Run the workers of an app until SIGTERM or Ctrl-C, then finish what is in progress.

    The module is found like by `python -m`, from the current directory.
    """
    found = load(app)
    _log(log_level)
    found.url = service.url or found.url
    found.token = service.secret or found.token
    found.ssl_context = service.ssl_context or found.ssl_context
    found.health = health or found.health
    found.drain_ms = found.drain_ms if drain_ms is None else drain_ms
    for one in found.workers:
        one.concurrency = concurrency or one.concurrency
    if not found.workers:
        raise SettingsError(f"{app} has no workers: declare one with @app.worker(...)")
    found.run()


def load(place: str) -> App:
    """Import `module:app`; SettingsError says what is wrong with it."""
    module_name, _, name = place.partition(":")
    if not module_name or not name:
        raise SettingsError(f"{place!r}: write it as MODULE:APP, such as shop.jobs:app")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a module that this one imports: the traceback says where
        raise SettingsError(f"{place}: there is no module {error.name!r} in {Path.cwd()}") from None
    found = getattr(module, name, None)
    if found is None:
        raise SettingsError(f"{place}: the module {module_name!r} has no {name!r}")
    if not isinstance(found, App):
        raise SettingsError(f"{place}: {name!r} is a {type(found).__name__}, not a timerwheel App")
    return found


class _WithMessageId(logging.Filter):
    """Adds the id of the message that is being handled to each line."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.message_id = message_id.get()
        return True


def _log(level: str) -> None:
    """Log to stderr, unless the module has set logging up."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise typer.BadParameter("give debug, info, warning or error", param_hint="--log-level")
    if logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.addFilter(_WithMessageId())
    handler.setFormatter(logging.Formatter(FORMAT))
    logging.basicConfig(level=number, handlers=[handler])
