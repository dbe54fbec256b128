"""The fast path of the calls that are made most: a plain send, and a plain receive or acknowledgement.

It does what the ordinary way does, without the objects that a request of any kind needs. Invariants:

1. What it answers is what the ordinary way would; a test holds the two beside each other.
2. What is not plain, or would be refused, goes the ordinary way as it came: see `plain`.
"""

from aiohttp import web
from aiohttp.http import RawRequestMessage

from timerwheel.api.fast_path.consumes import FastConsumes
from timerwheel.api.fast_path.plain import PlainRequests, Sender
from timerwheel.api.fast_path.sends import PATH, FastSends
from timerwheel.api.middleware import Middleware


class FastPath:
    """See the module. Belongs to the event loop."""

    def __init__(self, requests: PlainRequests, sends: FastSends, consumes: FastConsumes) -> None:
        self._requests = requests
        self._sends = sends
        self._consumes = consumes

    @property
    def taken(self) -> int:
        """How many requests took it."""
        return self._requests.taken

    @property
    def middleware(self) -> Middleware:
        """What the ordinary path does for each request, and this one too."""
        return self._requests.middleware

    def take(self, message: RawRequestMessage, body: bytes, sender: Sender) -> bool:
        """Serve a request; returns False, with nothing done, if the ordinary path must take it.

        That one says what is wrong with it, too.
        """
        call = self._sends.take if message.path == PATH else self._consumes.take
        return call(message, body, sender)


FAST_PATH = web.AppKey("fast_path", FastPath)
