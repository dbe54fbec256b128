"""SIGHUP reads the configuration and the certificates again and applies what may change without a restart.

Anything that is wrong changes nothing, and the log says what it was. Tokens need no signal: they are noticed.
"""

import asyncio
import logging
import signal
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from timerwheel import tls
from timerwheel.errors import SettingsError
from timerwheel.settings import Serving, Settings, option_name, take_over
from timerwheel.telemetry.logs import log_to_stderr

Read = Callable[[], tuple[Settings, Serving]]

logger = logging.getLogger(__name__)


@contextmanager
def reloaded_on_signal(
    read: Read | None,
    settings: Settings,
    serving: Serving,
    context: ssl.SSLContext | None,
    then: Callable[[], None] | None = None,
) -> Iterator[Callable[[], None]]:
    """Inside of the block SIGHUP changes `settings` and `serving`, which all parts hold, and `context`.

    `then` is called after each. Yields what does the same without the signal. Without `read` there is nothing
    to reload, and the signal ends the process.
    """
    if read is None:
        yield lambda: None
        return
    loop = asyncio.get_running_loop()
    reload = _Reload(read, settings, serving, context)

    def reloaded() -> None:
        reload()
        if then is not None:
            then()

    loop.add_signal_handler(signal.SIGHUP, reloaded)
    try:
        yield reloaded
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


class _Reload:
    """The signal handler; it knows the digests of the TLS files that were read last."""

    def __init__(
        self, read: Read, settings: Settings, serving: Serving, context: ssl.SSLContext | None
    ) -> None:
        self._read = read
        self._settings = settings
        self._serving = serving
        self._context = context
        self._files = tls.digests(serving)

    def __call__(self) -> None:
        """Reload everything and apply it, or log why nothing changes."""
        settings, serving = self._settings, self._serving
        files = tls.digests(serving)  # before loading: a write in between shows next time
        try:
            wanted, wanted_serving = self._read()
            if self._context is not None:
                tls.reload(self._context, serving)
        except SettingsError as error:
            logger.error("the configuration is invalid, so nothing was changed: %s", error)  # noqa: TRY400
            return
        found = [take_over(settings, wanted), take_over(serving, wanted_serving)]
        log_to_stderr(serving.log_level, serving.log_format)
        applied = [option_name(field) for reloaded in found for field in reloaded.applied]
        waiting = [option_name(field) for reloaded in found for field in reloaded.waiting]
        changes = [f"changed: {', '.join(applied) or 'nothing'}"]
        if self._context is not None:
            changes.append(tls.news(self._files, files))
        if waiting:
            changes.append(f"needs a restart: {', '.join(waiting)}")
        self._files = files
        logger.warning("configuration reloaded; %s", "; ".join(changes))
