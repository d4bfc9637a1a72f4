"""The permission that each use case requires itself, whatever its routes require, against a table of all of them.

A route that requires the same hides a use case that requires nothing any more, and its next caller would find it open.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from muster.domain.principals import Permission

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("use_cases.txt")
GIVEN = "given by its caller"
"""A permission that the caller names."""


def required() -> Iterator[str]:
    """Yield a line for each call that requires a permission, in the order of the files and their lines."""
    for path in sorted((ROOT / "control").rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "require":
                    yield f"{path.relative_to(ROOT).as_posix()}::{function.name}  {_permission(node.args[0])}"


def _permission(node: ast.expr) -> str:
    is_constant = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "Permission"
    return str(Permission[node.attr]) if is_constant and isinstance(node, ast.Attribute) else GIVEN


def test_each_use_case_requires_what_the_table_states() -> None:
    stated = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    found = list(required())
    missing = sorted(set(found) - set(stated))
    gone = sorted(set(stated) - set(found))
    assert (missing, gone) == ([], []), "the first to be added to use_cases.txt; the second required no more"
    assert len(stated) == len(set(stated)), "each stands there once"
