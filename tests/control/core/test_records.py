"""Each record of a read model has columns of its noun, and no row leaves `control` in place of a record."""

import ast
import importlib
import importlib.util
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from muster.db import models
from muster.db.base import Base

ROOT = Path(__file__).resolve().parents[3]
MODELS: dict[str, Any] = {
    "AuditRecord": models.AuditEntry,
    "DecidedBurnInRecord": models.BurnIn,
    "EvidenceRecord": models.EvidenceRow,
    "KeyRecord": models.ApiKey,
    "ProposalRecord": models.BreakerProposal,
    "OverrideRecord": models.GpuOverride,
    "PolicyRecord": models.PolicyVersion,
    "RouteRecord": models.NotificationRoute,
    "StandingChangeRecord": models.GpuStandingChange,
    "TryRecord": models.NotificationTry,
    "VerdictRecord": models.VerdictRow,
    "VersionRecord": models.PolicyVersion,
}
WITHIN_DOCUMENTS = {("DecidedBurnInRecord", "covers"), ("JobRecord", "request")}
"""Fields that are values in a column's JSON document, or that one of two columns has."""


def _records() -> list[type[Any]]:
    found = []
    for path in sorted((ROOT / "control").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Record"):
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                found.append(getattr(importlib.import_module(module), node.name))
    return found


RECORDS = _records()


def test_no_two_records_have_one_name() -> None:
    names = [kind.__name__ for kind in RECORDS]
    assert len(names) > 20
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_a_record_reports_of_columns_that_are_there_and_null_where_they_may_be(kind: type[Any]) -> None:
    name = kind.__name__
    model = MODELS.get(name) or getattr(models, name.removesuffix("Record"))
    attributes = model.__mapper__.column_attrs
    for field in msgspec.structs.fields(kind):
        if (name, field.name) in WITHIN_DOCUMENTS:
            continue
        is_optional = type(None) in getattr(field.type, "__args__", ())
        (column,) = attributes[field.encode_name].columns
        assert is_optional == column.nullable, f"{name}.{field.name}"


def _used_of_control(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the names that a module of the API or the console takes from `control`, with what they are."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules: dict[str, ModuleType] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "control":
            source = importlib.import_module(node.module)
            for name in node.names:
                if importlib.util.find_spec(f"{node.module}.{name.name}") if hasattr(source, "__path__") else None:
                    modules[name.asname or name.name] = importlib.import_module(f"{node.module}.{name.name}")
                else:
                    yield name.name, getattr(source, name.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield f"{node.value.id}.{node.attr}", getattr(modules[node.value.id], node.attr)


def _rows_in(kind: object, path: str, seen: set[object]) -> Iterator[str]:
    """Yield the ways that lead from a function's result or a type's fields to a row."""
    for part in typing.get_args(kind) or ():
        yield from _rows_in(part, path, seen)
    if inspect.isfunction(kind):
        yield from _rows_in(typing.get_type_hints(kind).get("return"), f"{path}()", seen)
    elif inspect.isclass(kind) and issubclass(kind, Base):
        yield path
    elif inspect.isclass(kind) and kind.__module__.split(".")[0] == "control" and kind not in seen:
        seen.add(kind)
        for name, hint in typing.get_type_hints(kind).items():
            yield from _rows_in(hint, f"{path}.{name}", seen)
        for name, value in vars(kind).items():
            if isinstance(value, property):
                yield from _rows_in(value.fget, f"{path}.{name}", seen)


def test_no_row_leaves_control() -> None:
    paths = [path for package in ("api", "console") for path in sorted((ROOT / package).rglob("*.py"))]
    found = {
        f"{path.relative_to(ROOT)}: {way}"
        for path in paths
        for name, used in _used_of_control(path)
        for way in _rows_in(used, name, set())
    }
    assert found == set()
