"""The dead letters of a group, or of all groups with one name."""

from collections.abc import AsyncIterator, Sequence

from timerwheel.client.connection import Connection, given, part, with_query
from timerwheel.wire.groups import DroppedCount, Letter, Letters, RedrivenCount

_PAGE_LETTERS = 500


class DeadLetters:
    """Dead letters; created by `Client.dead_letters`, which calls nothing."""

    def __init__(self, connection: Connection, group: str, topic: str | None = None) -> None:
        self._connection = connection
        of_topic = "" if topic is None else f"/topics/{part(topic)}"
        self._path = f"/v1{of_topic}/groups/{part(group)}/dead-letters"

    async def page(
        self,
        first: int = 0,
        limit: int = 100,
        *,
        reason: str | None = None,
        key: str | None = None,
        from_ms: int | None = None,
        until_ms: int | None = None,
    ) -> Letters:
        """Return a page of dead letters from an offset, oldest first, of those that meet every condition.

        `reason` is a part of the reason in any case, `key` the deduplication key or one of the keys. They
        died at or after `from_ms` and before `until_ms`. A page may be short or empty and not the last.
        """
        wanted = given(reason=reason, key=key, from_ms=from_ms, until_ms=until_ms)
        return await self._page(first, limit, wanted)

    async def _page(self, first: int, limit: int, wanted: dict[str, object]) -> Letters:
        path = with_query(self._path, {"from": first, "limit": limit, **wanted})
        return await self._connection.call("GET", path, Letters)

    async def all(
        self,
        *,
        reason: str | None = None,
        key: str | None = None,
        from_ms: int | None = None,
        until_ms: int | None = None,
    ) -> AsyncIterator[Letter]:
        """Yield all dead letters that meet every condition, page by page; see `page`."""
        wanted = given(reason=reason, key=key, from_ms=from_ms, until_ms=until_ms)
        at: int | None = 0
        while at is not None:
            page = await self._page(at, _PAGE_LETTERS, wanted)
            for letter in page.letters:
                yield letter
            at = page.next_offset

    async def redrive(
        self,
        offsets: Sequence[int] | None = None,
        *,
        topics: Sequence[str] | None = None,
        reason: str | None = None,
        key: str | None = None,
        from_ms: int | None = None,
        until_ms: int | None = None,
    ) -> RedrivenCount:
        """Deliver these, or all, to their group again, starting with the first attempt.

        Only those that meet every condition; see `page`. Without a topic, redriving all needs `topics`: those
        of the groups.
        """
        wanted = given(topics=topics, reason=reason, key=key, from_ms=from_ms, until_ms=until_ms)
        content = _chosen(offsets) | wanted
        return await self._connection.call("POST", f"{self._path}/redrive", RedrivenCount, content=content)

    async def drop(
        self,
        offsets: Sequence[int] | None = None,
        *,
        topics: Sequence[str] | None = None,
        reason: str | None = None,
        key: str | None = None,
        from_ms: int | None = None,
        until_ms: int | None = None,
    ) -> int:
        """Drop these, or all; returns how many were dropped. Conditions and `topics` as in `redrive`."""
        wanted = given(topics=topics, reason=reason, key=key, from_ms=from_ms, until_ms=until_ms)
        content = _chosen(offsets) | wanted
        count = await self._connection.call("POST", f"{self._path}/drop", DroppedCount, content=content)
        return count.dropped


def _chosen(offsets: Sequence[int] | None) -> dict[str, object]:
    return {"all": True} if offsets is None else {"offsets": list(offsets)}
