"""Answers held against the OpenAPI document: the status is named, the type is named, the JSON fits its schema."""

import re
from collections.abc import Mapping
from typing import Any

import httpx
import jsonschema_rs

Document = Mapping[str, Any]


class Conformance:
    """Of one document. As a response hook of an HTTP client, every answer of a known operation is held against it."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._templates = sorted(document["paths"], key=lambda path: (path.count("{"), path))
        self._patterns = {path: re.compile(re.sub(r"\{[^}]+\}", "[^/]+", path)) for path in self._templates}
        self._validators: dict[str, jsonschema_rs.Validator] = {}

    def __call__(self, answer: httpx.Response) -> None:
        operation = self.operation_of(answer.request.method, answer.request.url.path)
        if operation is None:
            return
        media_type = answer.headers.get("content-type", "").split(";")[0]
        if media_type == "text/event-stream":
            return
        answer.read()
        fault = self.fault_of(operation, answer.status_code, media_type, answer)
        assert fault is None, f"{answer.request.method} {answer.request.url}: {fault}: {answer.text[:500]}"

    def operation_of(self, method: str, path: str) -> Document | None:
        template = next((each for each in self._templates if self._patterns[each].fullmatch(path)), None)
        found: Document | None = None if template is None else self.document["paths"][template].get(method.lower())
        return found

    def fault_of(self, operation: Document, status: int, media_type: str, answer: httpx.Response) -> str | None:
        """Return the fault of the answer as text."""
        response = operation["responses"].get(str(status))
        if response is None:
            return f"the status {status} is not documented"
        reference = response.get("$ref")
        if reference is not None:
            response = self.document["components"]["responses"][reference.split("/")[-1]]
        content = response.get("content", {})
        if not answer.content and not content:
            return None
        if media_type not in content:
            return f"the type {media_type} is not documented for {status}"
        if not media_type.endswith("json"):
            return None
        faults = self._validator(content[media_type]["schema"]).iter_errors(answer.json())
        return "; ".join(f"{'/'.join(map(str, each.instance_path))}: {each.message}" for each in faults) or None

    def _validator(self, schema: Document) -> jsonschema_rs.Validator:
        name = schema.get("$ref") or repr(schema)
        if name not in self._validators:
            whole = {**schema, "components": self.document["components"]}
            self._validators[name] = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
        return self._validators[name]
