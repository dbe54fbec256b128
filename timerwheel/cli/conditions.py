"""Conditions on scheduled messages: `recall` and `reschedule` count what matches first, and ask."""

import datetime as dt
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import typer

from timerwheel.cli.options import Options, YesFlag, confirm_or_exit, parse_range_ms
from timerwheel.client.connection import given

_KEY_PREFIX = "Messages with a key that starts with this: the deduplication key or another."
_TAGS = "Messages with one of these tags: 'A || B'."


class Conditions(NamedTuple):
    """What a message must match, all of it, and whether to ask before anything is changed."""

    topic: str | None
    tags: str | None
    key_prefix: str | None
    start: str | None
    end: str | None
    everything: bool
    dry_run: bool
    yes: bool

    def fields(self, zone: dt.tzinfo | None) -> dict[str, Any]:
        """The conditions as a call has them; empty if none was given. Raises BadParameter."""
        from_ms, to_ms = parse_range_ms(self.start, self.end, zone)
        conditions = given(
            topic=self.topic,
            tags=self.tags,
            key_prefix=self.key_prefix,
            due_from_ms=from_ms,
            due_to_ms=to_ms,
        )
        if conditions and self.everything:
            conditions["reserved"] = True
        return conditions

    @property
    def need_conditions(self) -> bool:
        """Whether an option was given that means nothing without conditions."""
        return self.dry_run or self.yes or self.everything

    def confirmed(self, verb: str, run: "Callable[[bool], _Count]") -> "_Count":
        """Call `run` for what was asked for, and before that for the dry run, which is counted and shown."""
        if self.dry_run or not self.yes:
            counted = run(True)
            if self.dry_run or counted.matched == 0:
                return counted
            confirm_or_exit(f"{verb} {counted.matched:,} scheduled message(s)?")
        return run(False)


class _Counted(Protocol):
    @property
    def matched(self) -> int: ...


_Count = TypeVar("_Count", bound=_Counted)


def _text(*flags: str, help_text: str, metavar: str | None = None) -> tuple[Any, None]:
    return Annotated[str | None, typer.Option(*flags, help=help_text, metavar=metavar)], None


ConditionOptions = Annotated[
    Conditions,
    Options(
        {
            "topic": _text(help_text="Messages of this topic."),
            "tags": _text(help_text=_TAGS),
            "key_prefix": _text(help_text=_KEY_PREFIX),
            "start": _text("--from", help_text="Messages due at this time or later.", metavar="TIME"),
            "end": _text("--to", help_text="Messages due before this time.", metavar="TIME"),
            "everything": (
                Annotated[
                    bool,
                    typer.Option(
                        "--all", help="Also those of the service's own topics, such as %RETRY%GROUP."
                    ),
                ],
                False,
            ),
            "dry_run": (
                Annotated[bool, typer.Option("--dry-run", help="Only count the matching messages.")],
                False,
            ),
            "yes": (YesFlag, False),
        },
        Conditions,
    ),
]
