"""What a JSON schema lets through, without its words and limits: what two declarations of one thing must share."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
Shape = Any
"""Nested tuples that compare equal where the schemas mean the same."""


def shape_of(schema: Schema, root: Schema) -> Shape:
    """``root``: where ``$ref`` points into."""
    if "$ref" in schema:
        found: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return shape_of(found, root)
    if "anyOf" in schema or "oneOf" in schema:
        found = [shape_of(each, root) for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))]
        # Alternatives within an alternative are alternatives.
        alternatives = {one for each in found for one in (each[1] if each[0] == "any of" else (each,))}
        return ("any of", frozenset(alternatives)) if len(alternatives) > 1 else alternatives.pop()
    if "enum" in schema:
        return ("words", frozenset(schema["enum"]))
    if "properties" in schema:
        required = set(schema.get("required", ()))
        fields = {name: (name in required, shape_of(each, root)) for name, each in schema["properties"].items()}
        return ("object", tuple(sorted(fields.items())))
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties", True)
        return ("map", shape_of(inner, root) if isinstance(inner, dict) else "anything")
    if schema.get("type") == "array":
        return ("array", shape_of(schema.get("items", {}), root))
    return schema.get("type", "anything")
