"""Writer of docs/reference/policy.md (``make policy-reference``): every number and rule of the policy by its schema.

Run as ``python -m tools.policy_reference``. With ``--check`` nothing is written, and the exit code is 1 if the page
differs from the schema. All texts about a field stand in the schema, none here.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from muster.domain.policy.document import Policy
from tools.generated_page import write_or_check

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "reference" / "policy.md"
HEAD: Final = """\
<!-- Written by `make policy-reference` from the policy's schema. Change the schema, not this page. -->

# The policy

One versioned document holds every number and rule. One version is active, and each decision records the version under
which it was made. A value that a document does not name has the default below. `muster policy show` prints the active
version. `muster policy check FILE` lists the faults of a file field by field, and what it would change. `muster
policy activate FILE --reason …` makes it active. Running work continues; the next decision follows the new version.

Names that end in `_s` are seconds of wall clock. Fractions and shares are of 1, points are of a score's 100. I and a
number name an invariant of [ARCHITECTURE.md](../../ARCHITECTURE.md#invariants).
"""
COLUMNS: Final = "| field | type | default | accepted | what it decides |\n|---|---|---|---|---|\n"
UNITS: Final = (
    ("_per_s", "a second"),
    ("_s", "s"),
    ("_days", "days"),
    ("_hours", "h"),
    ("bytes", "bytes"),
    ("_fraction", "fraction of 1"),
    ("_share", "fraction of 1"),
    ("points", "points"),
    ("_line", "points"),
)
JSON_TYPE_NAMES: Final = {
    "number": "number",
    "integer": "whole number",
    "boolean": "true or false",
    "array": "list of names",
    "string": "one of these",
    "object": "mapping of names to numbers",
}
BOUNDS: Final = (("exclusiveMinimum", ">"), ("minimum", "≥"), ("exclusiveMaximum", "<"), ("maximum", "≤"))
SPANS: Final = ((86_400, "d"), (3600, "h"), (60, "min"))
BYTE_UNITS: Final = ((1 << 20, "MiB"), (1 << 10, "KiB"))


class UndescribedFieldError(Exception):
    """A field whose schema does not state what it decides."""


def written() -> str:
    """Return the page. Raises UndescribedFieldError."""
    return HEAD + "".join(f"\n{part}" for part in _section(Policy, ""))


def _section(model: type[BaseModel], path: str) -> Iterator[str]:
    """Yield the model's own fields, then its sections, each under its path."""
    if path:
        yield f"## {path}\n\n{_words(model)}\n"
    plain = [name for name, field in model.model_fields.items() if _model_of(field) is None]
    if plain:
        yield COLUMNS + "".join(_row(model, name) for name in plain)
    if rules := _rules(model):
        yield "Held together: " + " ".join(rules) + "\n"
    records: dict[type[BaseModel], dict[str, FieldInfo]] = {}
    for name, field in model.model_fields.items():
        below = _model_of(field)
        if below is None:
            continue
        is_section = field.default_factory is below
        if is_section:
            yield from _section(below, f"{path}.{name}" if path else name)
        else:
            records.setdefault(below, {})[name] = field
    for below, fields in records.items():
        yield from _records(below, fields, path)


def _records(model: type[BaseModel], fields: Mapping[str, FieldInfo], path: str) -> Iterator[str]:
    """Yield fields that hold several of one kind: what each field of the kind decides, and the defaults of each."""
    defaults: dict[str, BaseModel] = {}
    about = []
    for name, field in fields.items():
        if not field.description:
            raise UndescribedFieldError(f"{path}.{name}")
        about.append(f"`{name}`: {field.description}")
        default = field.get_default(call_default_factory=True, validated_data={})
        defaults |= default if isinstance(default, dict) else {name: default}
    yield f"## {path or ', '.join(fields)}{'.{' + ', '.join(fields) + '}' if path else ''}\n\n{_words(model)}\n"
    yield "\n".join(about) + "\n" if len(about) == 1 else "".join(f"- {each}\n" for each in about)
    yield COLUMNS + "".join(_row(model, name) for name in model.model_fields)
    names = list(model.model_fields)
    yield (
        f"| default | {' | '.join(f'`{name}`' for name in names)} |\n|{'---|' * (len(names) + 1)}\n"
        + "".join(
            f"| `{each}` | {' | '.join(_value(name, getattr(default, name)) for name in names)} |\n"
            for each, default in defaults.items()
        )
    )


def _row(model: type[BaseModel], name: str) -> str:
    schema = model.model_json_schema()["properties"][name]
    if not schema.get("description"):
        raise UndescribedFieldError(f"{model.__name__}.{name}")
    field = model.model_fields[name]
    default = "" if field.is_required() else _value(name, field.get_default())
    return f"| `{name}` | {_type(name, schema)} | {default} | {_accepted(schema)} | {schema['description']} |\n"


def _type(name: str, schema: Mapping[str, Any]) -> str:
    """Return the type with its unit, which stands in the name."""
    kinds = [part["type"] for part in schema.get("anyOf", [schema])]
    words = " or ".join(JSON_TYPE_NAMES.get(kind, kind) for kind in kinds)
    if kinds == ["object"] and schema.get("additionalProperties", {}).get("type") == "array":
        words = "mapping of names to lists of texts"
    if schema.get("items", {}).get("type") in {"number", "integer"}:
        words = "list of numbers"
    unit = next((unit for end, unit in UNITS if name.endswith(end) or (end in {"bytes", "points"} and end in name)), "")
    return f"{words}, {unit}" if unit and kinds[0] in {"number", "integer"} else words


def _accepted(schema: Mapping[str, Any]) -> str:
    bounded = schema.get("anyOf", [schema])[0]
    words = [f"{sign} {bounded[key]:,}".replace(",", " ") for key, sign in BOUNDS if key in bounded]
    if bounded.get("minItems"):
        words.append(f"at least {bounded['minItems']}")
    words += [f"`{each}`" for each in bounded.get("enum", ())]
    return ", ".join(words)


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return f"`{value}`"
    if isinstance(value, dict):
        return ", ".join(f"`{key}`: {_part(part)}" for key, part in value.items())
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value)
    steps = BYTE_UNITS if "bytes" in name else SPANS if name.endswith("_s") and not name.endswith("_per_s") else ()
    larger = next((f" ({value / size:g} {word})" for size, word in steps if value >= size), "")
    return f"{value:.15g}{larger}"


def _part(value: Any) -> str:
    """Return a value of a table: a number, a table of its own, or a record with the names of its fields."""
    parts = value.model_dump() if isinstance(value, BaseModel) else value
    if not isinstance(parts, dict):
        return f"{parts:g}"
    return "(" + ", ".join(f"`{key}`: {_part(part)}" for key, part in parts.items()) + ")"


def _rules(model: type[BaseModel]) -> list[str]:
    """Return the rules of its validators between fields, by their docstrings."""
    validators = model.__pydantic_decorators__.model_validators.values()
    decorators = [each for each in validators if each.info.mode != "before"]  # those read a document, and rule nothing
    words = [" ".join((inspect.getdoc(each.func) or "").split()) for each in decorators]
    if not all(words):
        raise UndescribedFieldError(f"a validator of {model.__name__}")
    return words


def _words(model: type[BaseModel]) -> str:
    if not model.__doc__:
        raise UndescribedFieldError(model.__name__)
    return inspect.cleandoc(model.__doc__)


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model that a field holds, itself or as the values of a mapping."""
    found = [each for each in (field.annotation, *get_args(field.annotation)) if isinstance(each, type)]
    return next((each for each in found if issubclass(each, BaseModel)), None)


def main(arguments: list[str]) -> int:
    return write_or_check(PAGE, written(), arguments, source="the schema", command="make policy-reference")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
