"""The OpenAPI document: with our problems, permissions, descriptions and examples in it."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.examples import add_examples
from api.field_descriptions import describe
from api.permissions import declared_routes
from api.refusals import documented_path, refused_statuses, response_name, responses_of_problems
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
    declared = {(method, documented_path(path)): words for method, path, words in declared_routes(app)}
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
    _translate_patterns(document)
    describe(document)
    add_examples(document)
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


def _translate_patterns(schema: Any) -> None:
    r"""Write Python's end of a text as JSON Schema has it: ``\Z`` is no regular expression of ECMA-262."""
    if isinstance(schema, list):
        for each in schema:
            _translate_patterns(each)
    elif isinstance(schema, dict):
        pattern = schema.get("pattern")
        if isinstance(pattern, str):
            schema["pattern"] = pattern.replace(r"\Z", "$")
        for inner in schema.values():
            _translate_patterns(inner)


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
