"""Constants whose name has two values: one name in several modules for different sets, sequences or mappings.

A number, a text or a function may have the same name in modules that do the same work, such as ``BATCH``. A set of
states may not: a reader takes ``_OUT`` in one module for ``_OUT`` in the next.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHARED_NAMES: Final = frozenset({"COLUMNS", "__all__"})
"""Names that each module of a family defines for the same reader: a command's table, a module's exports."""
_BUILDERS: Final = frozenset({"frozenset", "set", "tuple", "dict", "MappingProxyType"})
_COLLECTIONS: Final = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.SetComp, ast.ListComp, ast.DictComp)


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant of a module. ``value``: the expression as Python would write it, so that layout does not matter."""

    path: str
    line: int
    name: str
    value: str


def constants_of(path: str, source: str) -> Iterator[Constant]:
    """Yield the module's constants that hold a collection."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign):
            targets: list[ast.expr] = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and _is_collection(statement.value) and target.id not in SHARED_NAMES:
                yield Constant(path, statement.lineno, target.id, ast.unparse(statement.value or target))


def with_two_values(constants: Iterable[Constant]) -> list[Constant]:
    """Return the constants whose name has another value elsewhere, by name."""
    by_name: dict[str, list[Constant]] = {}
    for constant in constants:
        by_name.setdefault(constant.name, []).append(constant)
    several = (found for found in by_name.values() if len({constant.value for constant in found}) > 1)
    return sorted((one for found in several for one in found), key=lambda one: (one.name, one.path))


def _is_collection(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id in _BUILDERS
    return isinstance(value, _COLLECTIONS)
