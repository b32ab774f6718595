"""What can go wrong, as exceptions a caller can act on, and their form on the wire (CONTRACT.md section 3)."""

from __future__ import annotations

from typing import Any

ERROR_MARKER = "__istos_error"


class IstosError(Exception):
    """Base of every error this package raises. `code` is its name on the wire."""

    code = "internal_error"

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        details: Any = None,
        correlation_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.details = details
        self.correlation_id = correlation_id

    @property
    def status(self) -> int:
        """The HTTP status that says the same, for views that pass the error on."""
        return _STATUS.get(self.code, 500)


_STATUS = {
    "bad_request": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "conflict": 409,
    "payload_too_large": 413,
    "rate_limit_exceeded": 429,
    "storage_unavailable": 503,
}


class NotFoundError(IstosError):
    code = "not_found"


class OwnerUnreachable(NotFoundError):  # noqa: N818 - reads as a state, and is named so in the docs
    """No owner of the queue answered in time. Nothing is known about the request: repeat it with the same id."""

    @property
    def status(self) -> int:
        return 504


class UnauthorizedError(IstosError):
    code = "unauthorized"


class ForbiddenError(IstosError):
    code = "forbidden"


class BadRequestError(IstosError):
    code = "bad_request"


class ConflictError(IstosError):
    code = "conflict"


class PayloadTooLargeError(IstosError):
    code = "payload_too_large"


class RateLimitError(IstosError):
    code = "rate_limit_exceeded"


class StorageUnavailableError(IstosError):
    """The medium refused the write. Nothing was acknowledged; the request may be repeated."""

    code = "storage_unavailable"


_BY_CODE: dict[str, type[IstosError]] = {
    cls.code: cls
    for cls in (
        NotFoundError,
        UnauthorizedError,
        ForbiddenError,
        BadRequestError,
        ConflictError,
        PayloadTooLargeError,
        RateLimitError,
        StorageUnavailableError,
    )
}


def error_reply(error: IstosError) -> dict[str, Any]:
    """The JSON object an owner answers with."""
    reply: dict[str, Any] = {
        ERROR_MARKER: True,
        "error": error.code,
        "code": error.code,
        "message": error.message,
    }
    if error.correlation_id:
        reply["correlation_id"] = error.correlation_id
    if error.details is not None:
        reply["details"] = error.details
    return reply


def is_error_reply(reply: dict[str, Any]) -> bool:
    """True for an error object, also for one of an old responder that sets no marker."""
    marker = reply.get(ERROR_MARKER)
    if marker is not None:
        return bool(marker)
    return "error" in reply and "code" in reply and "message" in reply


def error_from_reply(reply: dict[str, Any]) -> IstosError:
    """The exception an error object stands for; an unknown code keeps its name on a plain IstosError."""
    code = str(reply.get("code", "internal_error"))
    cls = _BY_CODE.get(code, IstosError)
    return cls(
        str(reply.get("message", "the responder failed")),
        code=code,
        details=reply.get("details"),
        correlation_id=reply.get("correlation_id"),
    )
