"""All places of a file where a change could be planted: the code of functions that decides or has an effect.

Left out are error texts, logging, documentation, types, ``__repr__``, and tables of options and fields.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.mutants.mutant import PRODUCT, Mutant
from tools.mutants.operators import Edit, Lines, edits_of

SKIPPED_FUNCTIONS: Final = frozenset({"__repr__", "__str__", "__hash__"})
LOGGERS: Final = frozenset({"log", "_log", "logger", "_logger", "logging", "structlog", "warnings"})
SKIPPED_CALLS: Final = frozenset({"cast", "Field", "field", "add_argument", "Option", "Argument", "print", "Query"})
PAUSES: Final = frozenset({"sleep", "wait", "wait_for", "join", "poll", "timeout", "Timeout", "communicate"})
"""Their numbers say how long to wait, which a test should not depend on."""
EQUAL_LENGTHS: Final = "strict"
"""The argument by which ``zip`` states that its arguments are equally long. Where they are, the flag has no effect."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A function that is read: its dotted name in the file, and its first and last line."""

    name: str
    first: int
    last: int


def product_files(root: Path) -> list[str]:
    """Return the Python files of the product's packages, sorted."""
    found = (path for package in PRODUCT for path in (root / package).rglob("*.py"))
    return sorted(path.relative_to(root).as_posix() for path in found if "node_modules" not in path.parts)


def scopes_of(text: str) -> list[Scope]:
    """Return every function of a file, the outer before the inner."""
    return [Scope(name, node.lineno, node.end_lineno or node.lineno) for name, node in _functions(ast.parse(text), "")]


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Return every change that the operators know for a file, in the order of its lines."""
    lines = Lines(text)
    found: list[tuple[Edit, Mutant]] = []
    for name, function in _functions(ast.parse(text), ""):
        if name.rpartition(".")[2] in SKIPPED_FUNCTIONS:
            continue
        seen: Counter[str] = Counter()
        nth = {}
        for number in range(function.lineno, (function.end_lineno or function.lineno) + 1):
            body = lines.lines[number - 1].strip()
            nth[number] = seen[body]
            seen[body] += 1
        for edit in _edits(function, lines):
            line = lines.lines[edit.number - 1]
            becomes = f"{line[: edit.start]}{edit.text}{line[edit.end :]}".strip()
            found.append((edit, Mutant(path, name, line.strip(), nth[edit.number], edit.operator, becomes)))
    found.sort(key=lambda pair: (pair[0].number, pair[0].start, pair[0].operator, pair[0].text))
    return [mutant for _, mutant in found]


def _functions(node: ast.AST, outer: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{outer}.{child.name}" if outer else child.name
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from _functions(child, name)
        else:
            yield from _functions(child, outer)


def _edits(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: Lines) -> Iterator[Edit]:
    """Yield the edits of a function's defaults and body; functions inside it are read by themselves."""
    defaults = [*function.args.defaults, *(one for one in function.args.kw_defaults if one is not None)]
    for default in defaults:
        for edit in edits_of(default, lines):
            yield Edit("default", edit.number, edit.start, edit.end, edit.text)
    is_constructor = function.name == "__init__"
    for statement in function.body:
        for edit in _edits_below(statement, lines):
            # Without the attributes that its constructor sets, any use of an object is an error.
            if not (is_constructor and edit.operator == "deletion"):
                yield edit


def _edits_below(node: ast.AST, lines: Lines) -> Iterator[Edit]:
    if _is_left_out(node):
        return
    yield from edits_of(node, lines)
    children: list[ast.AST]
    if isinstance(node, ast.AnnAssign):
        children = [node.value] if node.value is not None else []
    elif isinstance(node, ast.Call) and _called(node) in PAUSES:
        children = [node.func]
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _edits_below(child, lines)


def _is_left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return not isinstance(node, ast.Lambda)
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
        return True
    if isinstance(node, ast.keyword):
        return node.arg is not None and (node.arg == EQUAL_LENGTHS or "timeout" in node.arg)
    if isinstance(node, ast.Expr):
        return _is_left_out(node.value) if isinstance(node.value, ast.Call) else False
    return isinstance(node, ast.Call) and (_called(node) in SKIPPED_CALLS or _root(node.func) in LOGGERS)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Call):
        if isinstance(node, ast.Attribute) and node.attr in LOGGERS:
            return node.attr
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return getattr(node, "id", "")
