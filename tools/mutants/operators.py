"""The kinds of changes: each defines, for one node of a syntax tree, the new text of a piece of its line.

A piece is on one line. A node over several lines has no edit, unless the changed token and its neighbours share one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
MEMBERSHIPS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
}
OPERATOR_SIGNS: Final[dict[type[ast.operator], tuple[str, str]]] = {ast.Add: (r"\+", "-"), ast.Sub: ("-", "+")}
SEQUENCES: Final = (ast.List, ast.Tuple, ast.ListComp, ast.JoinedStr, ast.Dict, ast.Set, ast.SetComp, ast.DictComp)
SEQUENCE_CALLS: Final = frozenset({"list", "tuple", "str", "sorted", "join", "format", "set", "frozenset", "keys"})
"""Sequences whose content a sign joins or subtracts: the other sign is an error wherever the line runs."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Columns count characters of line ``number``, which counts from 1."""

    operator: str
    number: int
    start: int
    end: int
    text: str


class Lines:
    """The lines of one file, with the columns of the syntax tree, which count bytes, as characters."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()

    def column(self, number: int, byte: int) -> int:
        """Return the character at a byte of a line."""
        return len(self.lines[number - 1].encode()[:byte].decode())

    def start(self, node: ast.expr | ast.stmt) -> int:
        """Return the first column of a node."""
        return self.column(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        """Return the column after a node, on the line that it ends in."""
        return self.column(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def whole(self, node: ast.expr | ast.stmt, operator: str, text: str) -> Iterator[Edit]:
        """Yield the edit that puts ``text`` in a node's place."""
        if node.lineno == node.end_lineno:
            yield Edit(operator, node.lineno, self.start(node), self.end(node), text)

    def between(self, left: ast.expr, right: ast.expr, token: str, operator: str, text: str) -> Iterator[Edit]:
        """Yield the edit of the one token that stands between two nodes."""
        if left.end_lineno != right.lineno:
            return
        start, end = self.end(left), self.start(right)
        word = rf"(?<!\w)(?:{token})(?!\w)" if token[0].isalpha() else token
        found = re.search(word, self.lines[right.lineno - 1][start:end])
        if found is not None:
            yield Edit(operator, right.lineno, start + found.start(), start + found.end(), text)


def edits_of(node: ast.AST, lines: Lines) -> Iterator[Edit]:
    """Yield the edits of one node of a function's body, without the edits of its children."""
    for kind, make in MAKERS.items():
        if isinstance(node, kind):
            yield from make(node, lines)


def _compare(node: ast.Compare, lines: Lines) -> Iterator[Edit]:
    left = node.left
    for operation, right in zip(node.ops, node.comparators, strict=True):
        if (pair := COMPARISONS.get(type(operation))) is not None:
            yield from lines.between(left, right, pair[0], "comparison", pair[1])
        elif (pair := MEMBERSHIPS.get(type(operation))) is not None:
            yield from lines.between(left, right, pair[0], "membership", pair[1])
        left = right


def _junction(node: ast.BoolOp, lines: Lines) -> Iterator[Edit]:
    token, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    if len(node.values) == 2:
        yield from lines.between(node.values[0], node.values[1], token, "junction", other)


def _arithmetic(node: ast.BinOp, lines: Lines) -> Iterator[Edit]:
    if type(node.op) in OPERATOR_SIGNS and not _is_sequence(node.left) and not _is_sequence(node.right):
        token, other = OPERATOR_SIGNS[type(node.op)]
        yield from lines.between(node.left, node.right, token, "arithmetic", other)


def _is_sequence(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    if isinstance(node, ast.Call):
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        return name in SEQUENCE_CALLS
    if isinstance(node, ast.BinOp):
        return _is_sequence(node.left) or _is_sequence(node.right)
    return isinstance(node, SEQUENCES) or (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice))


def _constant(node: ast.Constant, lines: Lines) -> Iterator[Edit]:
    value = node.value
    if isinstance(value, bool):
        yield from lines.whole(node, "flag", str(not value))
    elif isinstance(value, int | float):
        yield from lines.whole(node, "constant", repr(value + 1))
        yield from lines.whole(node, "constant", repr(value - 1))


def _negation(node: ast.UnaryOp, lines: Lines) -> Iterator[Edit]:
    if isinstance(node.op, ast.Not) and node.lineno == node.end_lineno:
        line = lines.lines[node.lineno - 1]
        yield from lines.whole(node, "negation", line[lines.start(node) : lines.end(node)].removeprefix("not").lstrip())


def _condition(node: ast.If | ast.IfExp | ast.While, lines: Lines) -> Iterator[Edit]:
    test = node.test
    if isinstance(test, ast.Name | ast.Attribute | ast.Call) and test.lineno == test.end_lineno:
        line = lines.lines[test.lineno - 1]
        yield from lines.whole(test, "negation", f"not {line[lines.start(test) : lines.end(test)]}")
    if isinstance(node, ast.If) and not node.orelse and len(node.body) == 1 and _leaves(node.body[0]):
        yield from lines.whole(test, "guard", "False")


def _leaves(node: ast.stmt) -> bool:
    return isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break)


def _call(node: ast.Call, lines: Lines) -> Iterator[Edit]:
    if isinstance(node.func, ast.Name) and node.func.id in {"min", "max"}:
        yield from lines.whole(node.func, "extreme", "max" if node.func.id == "min" else "min")


def _effect(node: ast.Expr, lines: Lines) -> Iterator[Edit]:
    value = node.value.value if isinstance(node.value, ast.Await) else node.value
    if isinstance(value, ast.Call):
        yield from lines.whole(node, "deletion", "pass")


def _assignment(node: ast.Assign, lines: Lines) -> Iterator[Edit]:
    if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
        yield from lines.whole(node, "deletion", "pass")


def _growth(node: ast.AugAssign, lines: Lines) -> Iterator[Edit]:
    yield from lines.whole(node, "deletion", "pass")
    if type(node.op) in OPERATOR_SIGNS and not _is_sequence(node.value):
        token, other = OPERATOR_SIGNS[type(node.op)]
        yield from lines.between(node.target, node.value, token, "arithmetic", other)


# Each maker takes the nodes of its own key, which a dictionary's type cannot say.
MAKERS: Final[dict[type[ast.AST] | tuple[type[ast.AST], ...], Callable[..., Iterator[Edit]]]] = {
    ast.Compare: _compare,
    ast.BoolOp: _junction,
    ast.BinOp: _arithmetic,
    ast.Constant: _constant,
    ast.UnaryOp: _negation,
    (ast.If, ast.IfExp, ast.While): _condition,
    ast.Call: _call,
    ast.Expr: _effect,
    ast.Assign: _assignment,
    ast.AugAssign: _growth,
}
