"""Each record of a read model has columns of its noun, and a value may be missing where the column may be NULL."""

import ast
import importlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.db import models

ROOT = Path(__file__).resolve().parents[3]
MODELS: dict[str, Any] = {
    "AuditRecord": models.AuditEntry,
    "DecidedBurnInRecord": models.BurnIn,
    "EvidenceRecord": models.EvidenceRow,
    "KeyRecord": models.ApiKey,
    "OverrideRecord": models.GpuOverride,
    "PolicyRecord": models.PolicyVersion,
    "StandingChangeRecord": models.GpuStandingChange,
}


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
def test_a_record_tells_of_columns_that_are_there_and_null_where_they_may_be(kind: type[Any]) -> None:
    name = kind.__name__
    model = MODELS.get(name) or getattr(models, name.removesuffix("Record"))
    columns = model.__table__.columns
    for field in msgspec.structs.fields(kind):
        is_optional = type(None) in getattr(field.type, "__args__", ())
        assert is_optional == columns[field.encode_name].nullable, f"{name}.{field.name}"
