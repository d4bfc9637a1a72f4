"""The JSON Schema of a job file with what each field means, as OpenAPI has it, for editors and readers."""

from typing import Any

from muster.documents.field_texts import text_of
from muster.domain.job.file_schema import job_file_schema


def described_job_file_schema() -> dict[str, Any]:
    """Return the schema, each field of which has its text."""
    schema = job_file_schema()
    _describe(schema, "JobSpec")
    for name, definition in schema["$defs"].items():
        _describe(definition, name)
    return schema


def _describe(schema: dict[str, Any], name: str) -> None:
    for field, shape in schema.get("properties", {}).items():
        text = text_of(name, field)
        if text is not None and "description" not in shape:
            shape["description"] = str(text)
