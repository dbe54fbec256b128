"""The settings of a group: where it starts, which tags it takes, when and how often a message returns."""

import re
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from timerwheel.errors import TimerwheelError
from timerwheel.model.admission import TASK_GROUP, TASK_PREFIX
from timerwheel.model.delay_levels import LevelTable
from timerwheel.model.limits import ATTEMPTS_MAX
from timerwheel.model.tags import TagFilter
from timerwheel.settings import DAY_MS

AGE_MS_MAX = 3_650 * DAY_MS
INVISIBLE_MS_MAX = 12 * 3_600_000
BACKOFF_MS_MAX = 7 * DAY_MS
FACTOR_MAX = 100.0
RECEIVE_MAX = 1_000
REASON_CHARACTERS_MAX = 500
FIRST_RETRY_LEVEL = 3
_SHOWN_CHARACTERS = 40

_match_group = re.compile(r"[A-Za-z0-9_|-][A-Za-z0-9_%|-]{0,119}").fullmatch


class IllegalGroupError(TimerwheelError):
    """The name is not that of a group, or what was asked of one is not allowed; the message says why."""

    code = "illegal_group"


class GroupFieldError(IllegalGroupError):
    """A field of a group, or of a call on one, is out of range; the message names it."""

    code = "invalid_field"


class GroupDiffersError(TimerwheelError):
    """The call states what the group was not made with; change the group first."""

    code = "group_differs"


class UnknownGroupError(TimerwheelError):
    """No such group on this topic."""

    code = "unknown_group"


class GroupNotFoundError(UnknownGroupError):
    """A receive names a group that is not there, and does not ask for it to be created."""

    code = "group_not_found"


class TaskGroupError(TimerwheelError):
    """The group makes the calls of a task queue, so only the service makes, changes and deletes it.

    With another filter or limit tasks would never be called, and without it those that have ended again.
    """

    code = "group_in_use"

    def __init__(self, topic: str, group: str) -> None:
        super().__init__(
            f"group {group!r} of topic {topic!r} makes the calls of a task queue: only the service makes and "
            "changes it; use a group of another name, or delete the topic to delete the queue"
        )


class TooManyGroupsError(TimerwheelError):
    """The service has as many groups as it may have."""

    code = "too_many_groups"


class Ladder(msgspec.Struct, frozen=True, tag="ladder", forbid_unknown_fields=True):
    """After a failed attempt the delay of the next delay level, from the third on: 10s 30s 1m 2m ... 2h."""

    def delay_ms(self, attempt: int, levels: LevelTable) -> int:
        """Milliseconds from the failure of an attempt, counted from 1, to the next."""
        return levels.delay_ms(levels.clamp(attempt - 1 + FIRST_RETRY_LEVEL))


class Exponential(msgspec.Struct, frozen=True, tag="exponential", forbid_unknown_fields=True):
    """The delay grows by a factor with each failed attempt, from `initial_ms` to `max_ms`."""

    initial_ms: Annotated[int, Meta(ge=0, le=BACKOFF_MS_MAX)] = 1_000
    factor: Annotated[float, Meta(ge=1.0, le=FACTOR_MAX)] = 2.0
    max_ms: Annotated[int, Meta(ge=0, le=BACKOFF_MS_MAX)] = 3_600_000

    def delay_ms(self, attempt: int, _levels: LevelTable) -> int:
        """Milliseconds from the failure of an attempt, counted from 1, to the next."""
        if not self.initial_ms:
            return 0
        try:
            return int(min(self.initial_ms * self.factor ** (attempt - 1), self.max_ms))
        except OverflowError:
            return self.max_ms


Start = Literal["head", "tail"]
Kind = Literal["leases", "offsets"]
Expired = Literal["drop", "dead_letter"]
LEASES: Kind = "leases"
OFFSETS: Kind = "offsets"


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a group consumes. `start` counts when the group is made; `tags` is `*` or `A || B`.

    A message that was delivered `max_age_ms` ago gets no other attempt after its first. `expired` says what
    becomes of one whose own TTL is over.

    A group of kind `leases` receives messages and acknowledges them. Consumers of one of kind `offsets` read
    the queues, filter for themselves, and commit offsets; only `start` and `max_attempts` concern them.
    """

    kind: Kind = LEASES
    start: Start = "head"
    tags: str = "*"
    max_attempts: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)] = 16
    invisible_ms: Annotated[int, Meta(ge=1, le=INVISIBLE_MS_MAX)] = 30_000
    backoff: Ladder | Exponential = Ladder()
    max_age_ms: Annotated[int, Meta(ge=1, le=AGE_MS_MAX)] | None = None
    expired: Expired = "drop"

    def check(self) -> "GroupConfig":
        """Self, if it is allowed; GroupFieldError that names the wrong value, IllegalFilterError."""
        tags = TagFilter.parse(self.tags)
        if self.kind == OFFSETS and tags.tags is not None:
            raise GroupFieldError(
                f"tags = {self.tags!r}: a group of kind {OFFSETS!r} has no filter; its consumers filter what "
                "they read"
            )
        if isinstance(self.backoff, Exponential) and self.backoff.initial_ms > self.backoff.max_ms:
            raise GroupFieldError(
                f"backoff: initial_ms = {self.backoff.initial_ms} is more than max_ms = {self.backoff.max_ms}"
            )
        return config_of(msgspec.to_builtins(self))


class GroupTerms(NamedTuple):
    """What a consumer asks of the group that it receives from; None stands for any.

    With `create` a group that is not there is created, with these. A group that is there and has another
    filter or another start refuses the consumer.
    """

    tags: str | None = None
    start: Start | None = None
    create: bool = False
    backoff: Ladder | Exponential | None = None

    def config(self) -> GroupConfig:
        """The configuration of a group that is created; raises what `GroupConfig.check` raises."""
        config = GroupConfig(
            start=self.start or "head",
            tags="*" if self.tags is None else self.tags,
            backoff=self.backoff or Ladder(),
        )
        return config.check()


NO_TERMS: Final = GroupTerms()
"""A group that is there, whatever it has."""


_DEFAULTS = GroupConfig()


def config_of(value: object) -> GroupConfig:
    """A configuration from JSON values; GroupFieldError that names the wrong one.

    Empty tags, which older versions stored, are `*`.
    """
    try:
        config = msgspec.convert(value, GroupConfig)
    except msgspec.ValidationError as error:
        raise GroupFieldError(str(error)) from None
    return config if config.tags.strip() else msgspec.structs.replace(config, tags="*")


def value_of(config: GroupConfig) -> dict[str, object]:
    """Return a configuration as JSON; without defaults of fields that older versions do not know."""
    value: dict[str, object] = msgspec.to_builtins(config)
    for name in ("kind", "max_age_ms", "expired"):
        if value[name] == getattr(_DEFAULTS, name):
            del value[name]
    return value


def leases_nothing(topic: str, group: str) -> GroupDiffersError:
    """Return the error for a call that needs leases, on a group that has none."""
    return GroupDiffersError(
        f"group {group!r} of topic {topic!r} is of kind {OFFSETS!r}: its consumers read the queues and "
        f"commit offsets; to receive and acknowledge messages, use a group of kind {LEASES!r}"
    )


def leases_only(topic: str, group: str) -> GroupDiffersError:
    """Return the error for a call that needs committed offsets, on a group that leases messages."""
    return GroupDiffersError(
        f"group {group!r} of topic {topic!r} leases messages; only one of kind {OFFSETS!r} commits offsets"
    )


def check_not_of_tasks(topic: str, group: str) -> None:
    """Raise TaskGroupError for a group that makes, or would make, the calls of a task queue."""
    if group == TASK_GROUP and topic.startswith(TASK_PREFIX):
        raise TaskGroupError(topic, group)


def checked_invisible(invisible_ms: int) -> int:
    """Return a length of a lease; GroupFieldError if it is out of range."""
    if not 1 <= invisible_ms <= INVISIBLE_MS_MAX:
        raise GroupFieldError(f"invisible_ms = {invisible_ms}: must be from 1 to {INVISIBLE_MS_MAX}")
    return invisible_ms


def is_group(name: str) -> bool:
    """Whether a group can have this name."""
    return _match_group(name) is not None


def check_group(group: str) -> str:
    """The name, if it is one of a group; IllegalGroupError."""
    if not is_group(group):
        shown = repr(group) if len(group) <= _SHOWN_CHARACTERS else f"{group[:_SHOWN_CHARACTERS]!r}..."
        raise IllegalGroupError(
            f"{shown} is not a valid group name: use 1 to 120 characters of A-Z a-z 0-9 _ | - %, "
            "not beginning with %"
        )
    return group
