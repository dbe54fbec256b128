"""The errors of schedules. Each carries its facts and a stable `code`."""

from timerwheel.errors import TimerwheelError


class ScheduleError(TimerwheelError):
    """A schedule breaks a rule; `field` names the part that does, the message says what is allowed.

    The code is illegal_schedule for name, cron and zone, else that of the same fault in any other call.
    """

    code = "illegal_schedule"

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


class ScheduleFieldError(ScheduleError):
    """A field is out of range, or is given together with one that excludes it."""

    code = "invalid_field"


class ScheduleBodyError(ScheduleError):
    """The body is larger than one that a schedule may keep."""

    code = "body_too_large"


class SchedulePropertyError(ScheduleError):
    """A property that the schedule sets by itself."""

    code = "reserved_property"


class TooManySchedulesError(TimerwheelError):
    """The service has as many schedules as it may have."""

    code = "too_many_schedules"

    def __init__(self, limit: int) -> None:
        super().__init__(f"there are {limit} schedules already; delete some first")


class UnknownScheduleError(TimerwheelError):
    """No schedule has this name."""

    code = "unknown_schedule"

    def __init__(self, name: str) -> None:
        super().__init__(f"no schedule has the name {name!r}")
        self.name = name
