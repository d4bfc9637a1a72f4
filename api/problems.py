"""Problem documents (RFC 9457) out of the one registry of errors, and the page that each ``type`` points to."""

from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from muster.domain.errors import (
    REGISTRY,
    FieldFault,
    InternalError,
    MalformedRequestError,
    MethodNotAllowedError,
    MusterError,
    NotFoundError,
    UnauthenticatedError,
    ValidationFailedError,
)

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "/v1/problems/"


def document_of(error: MusterError, *, instance: str, request_id: str | None) -> dict[str, Any]:
    """The problem's members; ``extra`` members of the error stand beside them."""
    document: dict[str, Any] = {
        "type": f"{TYPE_PREFIX}{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "instance": instance,
        "code": error.code,
        "suggestion": error.suggestion,
        "request_id": request_id,
        **error.extra,
    }
    if error.faults:
        document["errors"] = [
            {"pointer": fault.pointer, "code": fault.code, "detail": fault.detail} for fault in error.faults
        ]
    if error.retry_after_s is not None:
        document["retry_after"] = error.retry_after_s
    return document


def problem_response(error: MusterError, *, path: str, request_id: str | None) -> JSONResponse:
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, UnauthenticatedError):
        headers["WWW-Authenticate"] = 'Bearer realm="muster"'
    document = document_of(error, instance=path, request_id=request_id)
    return JSONResponse(document, status_code=error.status, headers=headers, media_type=MEDIA_TYPE)


def request_id_of(request: Request) -> str | None:
    return getattr(request.state, "request_id", None)


def install(app: FastAPI) -> None:
    """Every error of ours and of the framework leaves as a problem document."""
    app.add_exception_handler(MusterError, _on_muster_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_parameters)
    # The framework answers with this and raises on, to the outermost layer, which logs the trace.
    app.add_exception_handler(Exception, _on_muster_error)


def _respond(request: Request, error: MusterError) -> JSONResponse:
    return problem_response(error, path=_printable(request.url.path), request_id=request_id_of(request))


def _printable(path: str) -> str:
    return path.encode("utf-8", "replace").decode("utf-8")[:512]


def _on_muster_error(request: Request, error: Exception) -> JSONResponse:
    return _respond(request, error if isinstance(error, MusterError) else InternalError())


def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        return _respond(request, InternalError())
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        answer = _respond(request, MethodNotAllowedError())
        answer.headers.update(error.headers or {})
        return answer
    if error.status_code == HTTPStatus.NOT_FOUND:
        return _respond(request, NotFoundError())
    by_status = next((kind for kind in REGISTRY.values() if kind.status == error.status_code), MalformedRequestError)
    return _respond(request, by_status())


def _on_parameters(request: Request, error: Exception) -> JSONResponse:
    """Query and path parameters; bodies are read by ``strict_json``."""
    found = error.errors() if isinstance(error, RequestValidationError) else []
    faults = tuple(
        FieldFault("/".join(str(part) for part in fault["loc"]), str(fault["type"]), str(fault["msg"]))
        for fault in found
    )
    detail = f"{faults[0].pointer}: {faults[0].detail}" if faults else None
    return _respond(request, ValidationFailedError(detail, faults=faults))
