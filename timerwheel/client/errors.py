"""Errors of calls to the service; each carries the service's stable `code`."""

from timerwheel.wire.problem import ItemFault


class ClientError(Exception):
    """The call failed. `status` is None if there was no HTTP answer; `code` is stable.

    `retry_after_ms` is set if the service named a time after which the same call may succeed, `leader` is
    the URL of the node that leads.
    """

    retry_after_ms: int | None = None
    leader: str | None = None

    def __init__(
        self, status: int | None, code: str, detail: str, errors: list[ItemFault] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors or []


class DeniedError(ClientError):
    """The token is missing or no longer valid, or does not allow this call or topic."""


class NotFoundError(ClientError):
    """No such message, key, topic, queue, group, schedule or subscription."""


class ConflictError(ClientError):
    """Too late, or in conflict with what exists: `already_delivered`, `group_differs` and others."""


class AddressError(ClientError):
    """The given URL cannot be that of a service; nothing was called. Code `illegal_url`."""

    def __init__(self, detail: str) -> None:
        super().__init__(None, "illegal_url", detail)


class UnreachableError(ClientError):
    """No response: connection refused or broken, or a timeout. A send may or may not have been stored.

    `connected` is False if the call certainly did not reach the service, which so stored nothing. `final` is
    True if the same call would fail again, since a certificate is not trusted.
    """

    connected = True
    final = False


class OutcomeUnknownError(ClientError):
    """The service failed during the call: it is not known what was stored, if anything.

    Code `outcome_unknown`. A send may be repeated under the `dedup_key` that it had, and only then.
    """


class LeaseEndedError(ClientError):
    """The receipt is no longer valid: the message is, or will be, leased to another consumer."""
