"""The dead letters of a group, or of all groups with one name."""

from collections.abc import AsyncIterator, Sequence

from timerwheel.client.connection import Connection, part, with_query
from timerwheel.wire.groups import DroppedCount, Letter, Letters, RedrivenCount

_PAGE_LETTERS = 500


class DeadLetters:
    """Dead letters; created by `Client.dead_letters`, which calls nothing."""

    def __init__(self, connection: Connection, group: str, topic: str | None = None) -> None:
        self._connection = connection
        of_topic = "" if topic is None else f"/topics/{part(topic)}"
        self._path = f"/v1{of_topic}/groups/{part(group)}/dead-letters"

    async def page(self, first: int = 0, limit: int = 100) -> Letters:
        """Return a page of dead letters from an offset, oldest first."""
        path = with_query(self._path, {"from": first, "limit": limit})
        return await self._connection.call("GET", path, Letters)

    async def all(self) -> AsyncIterator[Letter]:
        """Yield all dead letters, page by page."""
        at: int | None = 0
        while at is not None:
            page = await self.page(at, _PAGE_LETTERS)
            for letter in page.letters:
                yield letter
            at = page.next_offset

    async def redrive(
        self, offsets: Sequence[int] | None = None, *, topics: Sequence[str] | None = None
    ) -> RedrivenCount:
        """Deliver these, or all, to their group again, starting with the first attempt.

        Without a topic, redriving all needs `topics`: those of the groups.
        """
        content = _chosen(offsets, topics)
        return await self._connection.call("POST", f"{self._path}/redrive", RedrivenCount, content=content)

    async def drop(self, offsets: Sequence[int] | None = None, *, topics: Sequence[str] | None = None) -> int:
        """Drop these, or all; returns how many were dropped. `topics` as in `redrive`."""
        content = _chosen(offsets, topics)
        count = await self._connection.call("POST", f"{self._path}/drop", DroppedCount, content=content)
        return count.dropped


def _chosen(offsets: Sequence[int] | None, topics: Sequence[str] | None) -> dict[str, object]:
    chosen: dict[str, object] = {"all": True} if offsets is None else {"offsets": list(offsets)}
    return chosen if topics is None else chosen | {"topics": list(topics)}
