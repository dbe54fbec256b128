"""The dead letters of a group's name: of every topic that has a group of that name."""

from collections.abc import AsyncIterator, Sequence

import msgspec

from timerwheel.remote.connection import Connection, part, with_query
from timerwheel.remote.message import DeadLetter, DeadPage

_PAGE_LETTERS = 500


class Redriven(msgspec.Struct, frozen=True):
    """How many went back to their group, and how many stay since it is gone or full."""

    redriven: int
    left: int


class _Dropped(msgspec.Struct):
    dropped: int


class DeadLetters:
    """Made by `Client.dead_letters`, which calls nothing."""

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection = connection
        self._path = f"/v1/groups/{part(group)}/dead-letters"

    async def page(self, first: int = 0, limit: int = 100) -> DeadPage:
        """Dead letters from an offset on, oldest first."""
        path = with_query(self._path, {"from": first, "limit": limit})
        return await self._connection.call("GET", path, DeadPage)

    async def all(self) -> AsyncIterator[DeadLetter]:
        """Every dead letter, page by page."""
        at: int | None = 0
        while at is not None:
            page = await self.page(at, _PAGE_LETTERS)
            for letter in page.letters:
                yield letter
            at = page.next_offset

    async def redrive(self, offsets: Sequence[int] | None = None) -> Redriven:
        """Deliver these, or all there are, to their group once more, from the first attempt on."""
        return await self._connection.call(
            "POST", f"{self._path}/redrive", Redriven, content=_chosen(offsets)
        )

    async def drop(self, offsets: Sequence[int] | None = None) -> int:
        """Forget these, or all there are; returns how many those were."""
        path = f"{self._path}/drop"
        return (await self._connection.call("POST", path, _Dropped, content=_chosen(offsets))).dropped


def _chosen(offsets: Sequence[int] | None) -> dict[str, object]:
    return {"all": True} if offsets is None else {"offsets": list(offsets)}
