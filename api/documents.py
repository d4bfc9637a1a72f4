"""Documents about the API itself: OpenAPI with our problems in it, and a page of the operations."""

import base64
import hashlib
import html
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.permissions import declared_routes
from api.refusals import refused_statuses, response_name, responses_of_problems
from muster import __version__

_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "suggestion"],
    "properties": {
        "type": {"type": "string", "description": "a page about this code"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "code": {"type": "string", "description": "stable; decide by it"},
        "suggestion": {"type": "string"},
        "request_id": {"type": ["string", "null"]},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "pointer": {"type": "string"},
                    "code": {"type": "string"},
                    "detail": {"type": "string"},
                },
            },
        },
        "retry_after": {"type": "integer"},
    },
}
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1d21;"
    "background:#fff}code{font-family:ui-monospace,monospace}h2{margin-top:2rem;border-bottom:1px solid #ddd}"
    "dt{margin-top:.8rem}.m{display:inline-block;min-width:4.5rem;font-weight:600}dd{margin-left:4.5rem;color:#555}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#16181c}dd{color:#aaa}h2{border-color:#444}}"
)


def install(app: FastAPI) -> None:
    """Make ``app.openapi()`` ours: problems on each operation, permissions, the security scheme, body schemas."""
    cached: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not cached:
            cached.update(_document(app))
        return cached

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title="Muster", version=__version__, routes=app.routes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    schemas["Problem"] = _PROBLEM
    components["responses"] = responses_of_problems()
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "bearerFormat": "mst_…"}}
    declared = {(method, path): words for method, path, words in declared_routes(app)}
    refused = refused_statuses(app)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _add_definitions(schemas, operation.pop("x-muster-definitions", {}))
            words = declared.get((method.upper(), path), "")
            operation["x-permission"] = words
            operation["security"] = [] if words.startswith("public") else [{"key": []}]
            _add_dry_run(operation)
            _add_problems(operation, refused[method.upper(), path])
    _drop_titles(document)
    return document


def _drop_titles(schema: Any) -> None:
    """Remove the fields' titles, which repeat their names; classes keep theirs."""
    if isinstance(schema, list):
        for each in schema:
            _drop_titles(each)
    elif isinstance(schema, dict):
        for name, inner in schema.items():
            if name == "properties":
                for field in inner.values():
                    field.pop("title", None)
            elif name == "schema" and "title" in inner:
                inner.pop("title")
            _drop_titles(inner)


def _add_definitions(schemas: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Add schemas. Raises ``ValueError`` where two different ones have one name."""
    for name, schema in definitions.items():
        if schemas.setdefault(name, schema) != schema:
            message = f"two schemas are named {name}: rename one of the classes"
            raise ValueError(message)


def _add_dry_run(operation: dict[str, Any]) -> None:
    """Add the status of a dry run where a change makes an object: a dry run makes none, and answers 200."""
    responses = operation["responses"]
    if "201" in responses and any(parameter["name"] == "dry_run" for parameter in operation.get("parameters", ())):
        responses["200"] = {**responses["201"], "description": "What would be made, with `dry_run`"}


def _add_problems(operation: dict[str, Any], statuses: list[int]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    for status in statuses:
        responses[str(status)] = {"$ref": f"#/components/responses/{response_name(status)}"}


@dataclass(frozen=True, slots=True)
class Page:
    """The page of operations. ``style_digest`` is the style's SHA-256 for the Content-Security-Policy."""

    html: str
    style_digest: str


def documentation_page(document: dict[str, Any]) -> Page:
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>Muster API</title><style>{_STYLE}</style>"]
    parts.append(f"<h1>Muster API {html.escape(document['info']['version'])}</h1>")
    parts.append('<p>The same as a machine reads it: <a href="/v1/openapi.json">/v1/openapi.json</a>. Send ')
    parts.append("<code>Authorization: Bearer mst_…</code>; every error is a problem document (RFC 9457).</p>")
    for tag in sorted({tag for _, _, operation in _operations(document) for tag in operation.get("tags", ["other"])}):
        parts.append(f"<h2>{html.escape(tag)}</h2><dl>")
        for path, method, operation in _operations(document):
            if tag in operation.get("tags", ["other"]):
                parts.append(_entry(path, method, operation))
        parts.append("</dl>")
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    return Page("".join(parts) + "</html>", digest)


def _operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]


def _entry(path: str, method: str, operation: dict[str, Any]) -> str:
    words = html.escape(operation.get("description") or operation.get("summary") or "")
    permission = html.escape(operation.get("x-permission", ""))
    return (
        f"<dt><span class=m>{html.escape(method.upper())}</span><code>{html.escape(path)}</code></dt>"
        f"<dd>{words} <em>({permission})</em></dd>"
    )
