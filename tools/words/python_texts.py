"""The texts and the defined names of a Python file."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PRAGMAS: Final = ("noqa", "type:", "pragma", "fmt:", "ruff:", "!")
_HASH: Final = ord("#")
_SQL: Final = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|FROM|CREATE|ALTER|LOCK)\b")


@dataclass(frozen=True, slots=True)
class Text:
    """One text with the number of its first line."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Definition:
    """A name that the file defines: a function, class, parameter, field or constant."""

    line: int
    name: str


def python_texts(source: str) -> list[Text]:
    """Return docstrings, comments, and string literals of more than one word."""
    tree = ast.parse(source)
    literals = [node for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.JoinedStr)]
    values = [(node.lineno, node.value) for node in literals if isinstance(node, ast.Constant)]
    return [*(Text(line, value) for line, value in values if _is_prose(value)), *_comments(source, literals)]


def python_definitions(source: str) -> list[Definition]:
    """Return what the file defines: functions, classes, parameters, constants, and fields of classes and instances."""
    return list(_defined_in(ast.parse(source), in_function=False))


def _is_prose(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and " " in value.strip() and _SQL.match(value) is None


def _comments(source: str, literals: Sequence[ast.expr]) -> Iterator[Text]:
    lines = source.encode().split(b"\n")
    spans = _spans(literals)
    for number, line in enumerate(lines, 1):
        start = line.find(_HASH)
        while start >= 0 and _is_within(spans.get(number, ()), start):
            start = line.find(_HASH, start + 1)
        comment = line[start:].decode().lstrip("#").strip() if start >= 0 else ""
        if comment and not comment.startswith(_PRAGMAS):
            yield Text(number, comment)


def _spans(literals: Sequence[ast.expr]) -> dict[int, list[tuple[int, int]]]:
    """Return the columns, in bytes, that literals take in each line."""
    found: dict[int, list[tuple[int, int]]] = {}
    for node in literals:
        last = node.end_lineno or node.lineno
        for number in range(node.lineno, last + 1):
            start = node.col_offset if number == node.lineno else 0
            end = (node.end_col_offset or 0) if number == last else 1 << 30
            found.setdefault(number, []).append((start, end))
    return found


def _is_within(spans: tuple[()] | list[tuple[int, int]], column: int) -> bool:
    return any(start <= column < end for start, end in spans)


def _defined_in(node: ast.AST, *, in_function: bool) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Definition(child.lineno, child.name)
            yield from _parameters(child.args)
            yield from _defined_in(child, in_function=True)
        elif isinstance(child, ast.ClassDef):
            yield Definition(child.lineno, child.name)
            yield from _defined_in(child, in_function=False)
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            yield from _targets(child, in_function=in_function)
        else:
            yield from _defined_in(child, in_function=in_function)


def _parameters(found: ast.arguments) -> Iterator[Definition]:
    for parameter in (*found.posonlyargs, *found.args, *found.kwonlyargs):
        yield Definition(parameter.lineno, parameter.arg)


def _targets(node: ast.Assign | ast.AnnAssign, *, in_function: bool) -> Iterator[Definition]:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        for name in ast.walk(target):
            if isinstance(name, ast.Name) and not in_function:
                yield Definition(name.lineno, name.id)
            elif isinstance(name, ast.Attribute) and isinstance(name.value, ast.Name) and name.value.id == "self":
                yield Definition(name.lineno, name.attr)
