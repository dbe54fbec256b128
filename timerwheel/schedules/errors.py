"""The errors of schedules. Each carries its facts and a stable `code`."""

from timerwheel.errors import TimerwheelError


class ScheduleError(TimerwheelError):
    """A schedule breaks a rule; `field` names the part that does, the message says what is allowed."""

    code = "illegal_schedule"

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


class UnknownScheduleError(TimerwheelError):
    """No schedule has this name."""

    code = "unknown_schedule"

    def __init__(self, name: str) -> None:
        super().__init__(f"no schedule has the name {name!r}")
        self.name = name
