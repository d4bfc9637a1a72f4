"""Problem documents (RFC 9457) out of the one registry of errors, and the page that each ``type`` points to."""

from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
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
    """Return the problem's members, with the ``extra`` members of the error."""
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
    """Let every error of this API and of the framework leave as a problem document."""
    # The last one: the framework answers with it and raises again, to the outermost layer, which logs the trace.
    for kind in (MusterError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer_fault)


def _respond(request: Request, error: MusterError) -> JSONResponse:
    return problem_response(error, path=_printable(request.url.path), request_id=request_id_of(request))


def _printable(path: str) -> str:
    return path.encode("utf-8", "replace").decode("utf-8")[:512]


def error_of(fault: Exception) -> MusterError:
    """Return the API's own error for any fault that leaves a route."""
    if isinstance(fault, MusterError):
        return fault
    if isinstance(fault, RequestValidationError):
        return _of_parameters(fault)
    if not isinstance(fault, HTTPException):
        return InternalError()
    if fault.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return MethodNotAllowedError()
    if fault.status_code == HTTPStatus.NOT_FOUND:
        return NotFoundError()
    return next((kind for kind in REGISTRY.values() if kind.status == fault.status_code), MalformedRequestError)()


async def answer_fault(request: Request, fault: Exception) -> JSONResponse:
    """Answer in the event loop: a refused host must not wait for a thread that other requests occupy."""
    answer = _respond(request, error_of(await _first(request, fault)))
    if isinstance(fault, HTTPException) and fault.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        answer.headers.update(fault.headers or {})
    return answer


async def _first(request: Request, fault: Exception) -> Exception:
    """Return the refusal of the caller, if there is one, before any fault of parameters.

    It is needed where the key is checked together with the rows.
    """
    asker = getattr(request.state, "asker", None)
    if asker is None or not isinstance(fault, RequestValidationError):
        return fault
    try:
        await run_in_threadpool(asker.principal)
    except MusterError as refusal:
        return refusal
    return fault


def _of_parameters(fault: RequestValidationError) -> ValidationFailedError:
    """Return the fault of query and path parameters; bodies are read by ``strict_json``."""
    faults = tuple(
        FieldFault("/".join(str(part) for part in found["loc"]), str(found["type"]), str(found["msg"]))
        for found in fault.errors()
    )
    detail = f"{faults[0].pointer}: {faults[0].detail}" if faults else None
    return ValidationFailedError(detail, faults=faults)
