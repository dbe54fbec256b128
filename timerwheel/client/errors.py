"""Why a call to the service failed: each error carries the service's stable `code`."""

from timerwheel.wire.problem import ItemFault


class ClientError(Exception):
    """The call failed. `status` is None if there was no HTTP answer; `code` is stable."""

    def __init__(
        self, status: int | None, code: str, detail: str, errors: list[ItemFault] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors or []


class DeniedError(ClientError):
    """No token, one that is not good (any more), or one that is not for this call or topic."""


class NotFoundError(ClientError):
    """No such message, key, topic, queue, group, schedule or subscription."""


class ConflictError(ClientError):
    """It is too late, or what is there does not agree: `already_delivered`, `group_differs` and others."""


class AddressError(ClientError):
    """What a client was given as the URL of a service is none; nothing was called. Code `illegal_url`."""

    def __init__(self, detail: str) -> None:
        super().__init__(None, "illegal_url", detail)


class UnreachableError(ClientError):
    """No answer: refused, broken off, or timed out. What a send stored, if anything, is not known."""


class OutcomeUnknownError(ClientError):
    """The service failed in the middle of the call: what it stored, if anything, is not known.

    Code `outcome_unknown`. A send may be repeated under the `dedup_key` that it had, and only then.
    """


class LeaseEndedError(ClientError):
    """The receipt is not good any more: the message is, or will be, with another consumer."""
