"""Every error that reaches a user: one class each, which owns its code, status, title and advice.

``REGISTRY`` is the one list from which the API's problem documents, OpenAPI and the docs page are made.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self


@dataclass(frozen=True, slots=True)
class FieldFault:
    """The fault of one field: a JSON pointer, a stable code, and the values that are accepted."""

    pointer: str
    code: str
    detail: str


class MusterError(Exception):
    """A fault with a stable ``code``, an HTTP ``status`` and words that say what to do.

    ``detail`` says what was wrong here; ``suggestion`` what to do; ``extra`` holds members of the problem document.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Something failed on our side"
    advice: ClassVar[str] = "Try again; if it stays, give the request_id to the operator."

    def __init__(
        self,
        detail: str | None = None,
        *,
        suggestion: str | None = None,
        faults: tuple[FieldFault, ...] = (),
        retry_after_s: int | None = None,
        **extra: Any,
    ) -> None:
        self.detail = detail or self.title
        self.suggestion = suggestion or self.advice
        self.faults = faults
        self.retry_after_s = retry_after_s
        self.extra = extra
        super().__init__(self.detail)


class MalformedRequestError(MusterError):
    code, status, title = "malformed_request", 400, "The request cannot be read"
    advice = "Send one JSON document, UTF-8 without a byte order mark, each key once."


class InvalidCursorError(MusterError):
    code, status, title = "invalid_cursor", 400, "The cursor was not issued for this query"
    advice = "Start again without `cursor`, and keep the filters unchanged while paging."


class InvalidIdempotencyKeyError(MusterError):
    code, status, title = "invalid_idempotency_key", 400, "The Idempotency-Key header is not usable"
    advice = "Send 1 to 255 visible ASCII characters, for example a UUID."


class UnauthenticatedError(MusterError):
    code, status, title = "unauthenticated", 401, "No valid credential came with the request"
    advice = "Send `Authorization: Bearer mst_…` with a key that is neither expired nor revoked."


class ForbiddenError(MusterError):
    code, status, title = "forbidden", 403, "This credential may not do that"
    advice = "Use a key whose role holds the permission named in `permission`."


class NotFoundError(MusterError):
    code, status, title = "not_found", 404, "There is no such object, or it is not yours"
    advice = "Check the id; list the objects that this key can see."


class NoSuchBundleError(MusterError):
    """A host asks for content that its job does not have. Any other 404 may be a server without that route."""

    code, status, title = "no_such_bundle", 404, "The job has no such bundle, or the bundle has no such chunk"
    advice = "Send the folder of the job again, and submit it."


class MethodNotAllowedError(MusterError):
    code, status, title = "method_not_allowed", 405, "This path does not take that method"
    advice = "See the Allow header."


class ConflictError(MusterError):
    code, status, title = "conflict", 409, "The object's state does not allow this"
    advice = "Read the object again, and decide by its new state."


class RequestInFlightError(MusterError):
    code, status, title = "request_in_flight", 409, "The same Idempotency-Key is being worked on right now"
    advice = "Repeat the same request after Retry-After seconds."


class StaleFenceError(MusterError):
    code, status, title = "stale_fence", 409, "This attempt is not the current one"
    advice = "Stop its program: a newer attempt owns the job."


class PreconditionFailedError(MusterError):
    code, status, title = "precondition_failed", 412, "The object has changed since you read it"
    advice = "Read it again and send its new ETag as If-Match."


class PayloadTooLargeError(MusterError):
    code, status, title = "payload_too_large", 413, "The body is larger than this path takes"
    advice = "Send less than the limit in `limit_bytes`."


class HeadersTooLargeError(MusterError):
    code, status, title = "headers_too_large", 431, "The request has too many headers, or too large ones"
    advice = "Send fewer or shorter headers, and a shorter address."


class RequestTimeoutError(MusterError):
    code, status, title = "request_timeout", 408, "The request did not arrive in time"
    advice = "Send the whole request at once."


class UnsupportedMediaTypeError(MusterError):
    code, status, title = "unsupported_media_type", 415, "The body's type or encoding is not taken here"
    advice = "Send `Content-Type: application/json`, without Content-Encoding."


class ValidationFailedError(MusterError):
    code, status, title = "validation_failed", 422, "Some fields are not as they must be"
    advice = "Each entry of `errors` names a field and what is accepted."

    @classmethod
    def at(cls, pointer: str, code: str, detail: str) -> Self:
        """One field that is not as it must be. ``pointer``: a JSON pointer, or the name of a query parameter."""
        return cls(f"{pointer}: {detail}", faults=(FieldFault(pointer, code, detail),))


class IdempotencyKeyReusedError(MusterError):
    code, status, title = "idempotency_key_reused", 422, "This Idempotency-Key came before with another request"
    advice = "Use a new key for a new request."


class UpgradeRequiredError(MusterError):
    code, status, title = "upgrade_required", 426, "This version of the protocol is not supported"
    advice = "Install the version of the agent or worker that belongs to this control plane."


class ClientVersionError(MusterError):
    code, status, title = "client_version", 426, "This client is of a release that does not fit this control plane"
    advice = "Install the client that this control plane serves at /install."


class PreconditionRequiredError(MusterError):
    code, status, title = "precondition_required", 428, "This change needs an If-Match header"
    advice = "Send the ETag that you got when you read the object."


class RateLimitedError(MusterError):
    code, status, title = "rate_limited", 429, "Too many requests, streams or connections"
    advice = "Wait Retry-After seconds."


class TenantLimitError(MusterError):
    code, status, title = "tenant_limit", 429, "The tenant has reached a limit of the policy"
    advice = "Each entry of `errors` names the limit. Wait Retry-After seconds, or ask the operator for a higher limit."


class InternalError(MusterError):
    code, status, title = "internal", 500, "Something failed on our side"


class UnavailableError(MusterError):
    code, status, title = "unavailable", 503, "The database does not answer just now"
    advice = "Repeat the request after Retry-After seconds; with the same Idempotency-Key it happens once."


class SecretKeyError(MusterError):
    code, status, title = "secret_key_unusable", 503, "The keys that protect secrets cannot be used"
    advice = "Give the detail to the operator, who keeps the keys in MUSTER_SECRET_KEYS_FILE or in Vault."


class TooManyConnectionsError(MusterError):
    code, status, title = "too_many_connections", 503, "Too many connections to the server are open"
    advice = "Connect again after Retry-After seconds."


class CursorExpiredError(MusterError):
    code, status, title = "cursor_expired", 410, "The events after that position are no longer kept"
    advice = "Start from the oldest position in `oldest_position`."


REGISTRY: Final[dict[str, type[MusterError]]] = {
    kind.code: kind for kind in sorted(MusterError.__subclasses__(), key=lambda kind: (kind.status, kind.code))
}
"""code → class, in the order of status."""
