"""Taking over changed settings while the service runs."""

from typing import NamedTuple, TypeVar

import msgspec

from timerwheel.serving import Serving
from timerwheel.settings import Settings

S = TypeVar("S", Settings, Serving)


class Reloaded(NamedTuple):
    """Names of fields that changed: taken over, and those that need a restart."""

    applied: list[str]
    waiting: list[str]


def take_over(current: S, wanted: S) -> Reloaded:
    """Let `current`, which everyone holds, have what `wanted` says, as far as that can change in a run.

    Call it between two steps of the event loop's tasks, and with settings that were checked.
    """
    found = Reloaded([], [])
    for field in msgspec.structs.fields(type(current)):
        value = getattr(wanted, field.name)
        if value == getattr(current, field.name):
            continue
        if field.name in current.RELOADABLE:
            msgspec.structs.force_setattr(current, field.name, value)
            found.applied.append(field.name)
        else:
            found.waiting.append(field.name)
    return found
