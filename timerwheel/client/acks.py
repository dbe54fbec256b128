"""Later acknowledgements: what a receiver of pushes or tasks says after it has answered."""

from timerwheel.client.connection import Connection, given, part, said
from timerwheel.wire.acks import AckAnswer


class Acks:
    """Settles attempts by the URL that came with them in the header `timerwheel-ack-url`, or by its token.

    They need no API token. Of a URL, only the token at its end counts: the call goes to this client's
    service. Each raises a `ClientError`: `unknown_ack` for what is not a token, `ack_ended` if the attempt is
    over.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def acknowledge(self, url: str) -> AckAnswer:
        """The message or task is done, durably when this returns; may be repeated."""
        return await self._connection.call("POST", _path(url), AckAnswer)

    async def give_back(
        self,
        url: str,
        *,
        delay: str | None = None,
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> AckAnswer:
        """The attempt failed: the next one comes after the delay, by default the backoff."""
        content = given(delay=delay, delay_ms=delay_ms, reason=said(reason))
        return await self._connection.call("POST", f"{_path(url)}/nack", AckAnswer, content=content)

    async def extend(self, url: str, invisible_ms: int) -> AckAnswer:
        """Have that long from now to acknowledge."""
        content = {"invisible_ms": invisible_ms}
        return await self._connection.call("POST", f"{_path(url)}/extend", AckAnswer, content=content)


def _path(url: str) -> str:
    return f"/v1/acks/{part(url.rpartition('/')[2])}"
