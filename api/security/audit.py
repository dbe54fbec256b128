"""The audit log: one line for each act of an admin or a topic's owner. Who did what to what, and the outcome.

The lines are in the log `timerwheel.audit`, always at level info. Their facts are separate fields (`extra`).
They contain no body, no secret, and nothing that could end the line: a path stays percent-encoded.
"""

import logging

from aiohttp import web

from timerwheel.tokens import Tokens

NOBODY = "nobody"
SERVICE = "service"
PATH_CHARACTERS_MAX = 512

logger = logging.getLogger("timerwheel.audit")
logger.setLevel(logging.INFO)


def act(request: web.Request, who: str, what: str, outcome: str) -> None:
    """Log a call; `outcome` is its status, or the class of the error that ended it."""
    path = request.rel_url.raw_path.encode("ascii", "backslashreplace").decode()[:PATH_CHARACTERS_MAX]
    _log(who, what, path, outcome, remote=request.remote or "")


def tokens_changed(before: Tokens, after: Tokens) -> None:
    """Log tokens that were created, revoked or changed in the file."""
    old, new = ({token.sha256: token for token in tokens.all} for tokens in (before, after))
    for sha256 in dict.fromkeys([*old, *new]):
        was, now = old.get(sha256), new.get(sha256)
        if was is None and now is not None:
            _log(SERVICE, "tokenCreated", now.name, "done")
        elif was is not None and now is None:
            _log(SERVICE, "tokenRevoked", was.name, "done")
        elif was != now and now is not None:
            _log(SERVICE, "tokenChanged", now.name, "done")


def _log(who: str, what: str, target: str, outcome: str, **more: str) -> None:
    facts = {"who": who, "what": what, "target": target, "outcome": outcome, **more}
    logger.info("%s by %s on %s: %s", what, who, target, outcome, extra=facts)
