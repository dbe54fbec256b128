"""The errors of schedules. Each carries its facts and a stable `code`."""

from timerwheel.errors import TimerwheelError


class ScheduleError(TimerwheelError):
    """A schedule breaks a rule; `field` names the wrong part, the message says what is allowed.

    The code is illegal_schedule for name, cron and zone, else that of the same error in any other call.
    """

    code = "illegal_schedule"

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


class ScheduleFieldError(ScheduleError):
    """A field is out of range, or excludes another field that is given too."""

    code = "invalid_field"


class ScheduleBodyError(ScheduleError):
    """The body exceeds the limit for schedules."""

    code = "body_too_large"


class SchedulePropertyError(ScheduleError):
    """A property that only the service sets in messages of schedules."""

    code = "reserved_property"


class TooManySchedulesError(TimerwheelError):
    """The service has reached its limit of schedules."""

    code = "too_many_schedules"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the limit of {limit} schedules is reached; delete some first")


class UnknownScheduleError(TimerwheelError):
    """No schedule has this name."""

    code = "unknown_schedule"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no schedule {name!r}")
        self.name = name
