"""Descriptions of fields and parameters in OpenAPI, from where the code states them.

The nearest text counts: of the field itself, of ``Class.field`` in ``muster.documents.field_texts``, below the field in
its class, in the docstring of its class or of a base, else of the field's name in ``muster.documents.field_texts``.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from muster.documents.field_texts import FIELD_TEXTS, PARAMETER_TEXTS, text_of

_NAMED: Final = r"``[a-z_0-9]+``"
_NAMES: Final = rf"{_NAMED}(?:(?:, | and ){_NAMED})*"
_FIELD_IN_DOCSTRING: Final = re.compile(rf"(?:^|(?<=[.;] ))(?P<names>{_NAMES}): (?P<text>.*?)(?=[.;] {_NAMES}: |$)")
"""A sentence of a class about one field or several, up to the next such one or the paragraph's end."""
_ROOTS: Final = ("api.v1.", "muster.documents.", "muster.domain.", "muster.wire.", "watch.")


def describe(document: dict[str, Any]) -> None:
    """Add a description to each field and parameter of an OpenAPI document that has none."""
    for name, schema in document["components"]["schemas"].items():
        for field, shape in schema.get("properties", {}).items():
            if "description" not in shape and (text := field_text(name, field)) is not None:
                shape["description"] = str(text)
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                name = parameter["name"]
                text = PARAMETER_TEXTS.get(f"{operation['operationId']}.{name}", PARAMETER_TEXTS.get(name))
                if "description" not in parameter and text is not None:
                    parameter["description"] = str(text)
                if parameter["schema"].get("description") == parameter.get("description"):
                    parameter["schema"].pop("description", None)  # one place is enough


def field_text(schema: str, field: str) -> str | None:
    """Return the description of a schema's field; None if there is none."""
    for kind in _classes().get(schema, ()):
        for base in _lineage(kind):
            text = FIELD_TEXTS.get(f"{base.__name__}.{field}", _own_texts(base).get(field))
            if text is not None:
                return text
    return text_of(schema, field)


@cache
def _classes() -> dict[str, list[type]]:
    """Return the loaded classes that can be schemas, by name, in an order that no import changes."""
    found: dict[str, list[type]] = {}
    for name, module in sorted(sys.modules.items()):
        if name.startswith(_ROOTS):
            for kind in vars(module).values():
                if inspect.isclass(kind) and kind.__module__ == name:
                    found.setdefault(kind.__name__, []).append(kind)
    return found


def _lineage(kind: type) -> Iterator[type]:
    """Yield the class and its bases. A TypedDict forgets its bases as types, and keeps them apart."""
    yield kind
    for base in getattr(kind, "__orig_bases__", kind.__bases__):
        if inspect.isclass(base) and base.__module__.startswith(_ROOTS):
            yield from _lineage(base)


@cache
def _own_texts(kind: type) -> dict[str, str]:
    """Return what a class states about its fields, in its docstring and below each field."""
    texts = {}
    for paragraph in inspect.cleandoc(kind.__doc__ or "").split("\n\n"):
        for found in _FIELD_IN_DOCSTRING.finditer(" ".join(paragraph.split())):
            text = found["text"].rstrip(".;")
            for name in re.findall(r"``([a-z_0-9]+)``", found["names"]):
                texts[name] = f"{text[0].upper()}{text[1:]}."
    return texts | _below_fields(kind)


def _below_fields(kind: type) -> dict[str, str]:
    tree = _tree(kind.__module__)
    body = next(
        (node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind.__name__), []
    )
    texts = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            constant = text.value
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                texts[field.target.id] = " ".join(constant.value.split())
    return texts


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8"))
