"""The JSON Schema of a job file, for editors and other programs: the fields of a submission, and the file's own."""

from collections.abc import Mapping
from typing import Any, Final

from muster.domain.job.submission import JobSubmission

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
PATH: Final = "/v1/schemas/job.json"
"""Path at which the API serves the schema."""
VARIABLES: Final = "variables"
VARIABLE_NAME: Final = "[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE: Final = {"$ref": "#/$defs/Variable"}
_NUMBERS: Final = frozenset({"integer", "number", "boolean"})


def job_file_schema() -> dict[str, Any]:
    """Return the schema. Each value may also be a variable, such as ``${nodes}``."""
    schema = JobSubmission.model_json_schema()
    definitions = {name: _filled(each) for name, each in schema.pop("$defs").items()}
    definitions["Variable"] = {
        "description": "A variable of the file; its value comes from `variables`, `--vars` or `--var`.",
        "pattern": rf"\$\{{{VARIABLE_NAME}\}}",  # anywhere in the text
        "type": "string",
    }
    own = {
        "$schema": {"description": "The address of this schema, for editors.", "type": "string"},
        VARIABLES: {
            "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
            "description": "Variables with their defaults; null: `--var` or `--vars` must give it a value.",
            "propertyNames": {"pattern": f"^{VARIABLE_NAME}$"},
            "type": "object",
        },
    }
    properties = {**own, **{name: _filled(field) for name, field in schema["properties"].items()}}
    head = {"$schema": DIALECT, **schema, "title": "Job file"}
    return {**head, "properties": properties, "$defs": definitions}


def _filled(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a value or variable, without the fields' titles, which repeat their names."""
    kept = {name: _inner(name, each) for name, each in schema.items() if name != "title"}
    choices = schema.get("anyOf", [schema])
    if not any(_refuses_text(each) for each in choices):
        return kept
    about: dict[str, Any] = {name: kept.pop(name) for name in ("default", "description") if name in kept}
    return {**about, "anyOf": [*kept.get("anyOf", [kept]), _VARIABLE]}


def _refuses_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in _NUMBERS or bool(schema.keys() & {"enum", "const"})


def _inner(name: str, value: Any) -> Any:
    if name == "properties":
        return {field: _filled(each) for field, each in value.items()}
    return _filled(value) if name in {"items", "additionalProperties"} and isinstance(value, Mapping) else value
