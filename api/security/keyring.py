"""The tokens in force, and whether their file has changed.

A file that is missing or cannot be read is logged and changes nothing: a mistake with the file must neither
lock everybody out nor let everybody in.
"""

import logging
from pathlib import Path

from timerwheel import tokens
from timerwheel.api.security import audit
from timerwheel.tokens import Tokens, TokensError

Stamp = tuple[int, int, int]  # inode, time of change in ns (of owner and mode too), size in bytes

logger = logging.getLogger(__name__)


class Keyring:
    """The tokens of one data directory. The constructor raises `TokensError` if the file cannot be read."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._stamp = self._look_at()
        self.tokens: Tokens = tokens.read(data)

    def look(self) -> bool:
        """Reload the file if its stat has changed; returns True if the tokens have changed."""
        stamp = self._look_at()
        if stamp == self._stamp:
            return False
        last, self._stamp = self._stamp, stamp  # so that a problem is logged once
        if stamp is None:
            if self.tokens:
                logger.error("%s is missing; its tokens stay valid", self._data / tokens.FILE)
            return False
        before = self.tokens
        try:
            self.tokens = tokens.read(self._data)
        except TokensError as error:
            if isinstance(error.__cause__, OSError):
                self._stamp = last  # perhaps no descriptor was free: the file itself may be good
            logger.error("cannot reload the tokens; the old ones stay valid: %s", error)  # noqa: TRY400 - the message is enough
            return False
        audit.tokens_changed(before, self.tokens)
        return True

    def _look_at(self) -> Stamp | None:
        try:
            found = (self._data / tokens.FILE).stat()
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns, found.st_size
