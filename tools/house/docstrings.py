"""Docstrings whose first line is a fragment.

A first line is a fragment if it has no full stop (D400, D415), if a function's is not in the imperative mood (D401), or
if it begins as a sentence without subject and verb does: "Of one process: …", "``limit``: …", "Whether …". A text after
an attribute or a constant is its docstring too, which Ruff does not check: there the beginning alone counts.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.house.figure import HouseFigure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

RULES: Final = "D400,D401,D415"
# The lint of words refuses four more beginnings everywhere: pronouns of persons, and a preposition.
_FRAGMENT: Final = re.compile(
    r"(?:Of|By|As|With|Without|Whether|Also|To|Such|At|On|From|Until|Since|None|Where|When|Whose|What|Which|How|"
    r"Why|Those|That|So|Then|Else|Or|And|But|Nothing|Not|Never|Only|Once|Twice|Until|While|In|For|Per|Raises|"
    r"Within|Between|Behind|Before|After|Above|Below|About|Durably|Likewise|See)\b(?!-)"
    r"|``[^`]*``(?: None)?:|\("
)
_LONGEST_SHOWN: Final = 3


def docstring_figure(root: Path, sources: Mapping[str, str]) -> HouseFigure:
    """Return the share of docstrings whose first line is a fragment, over everything but tests."""
    docstrings = {(path, line): first for path, text in sources.items() for line, first in first_lines(text)}
    by_rule = Counter[str]()
    fragments: set[tuple[str, int]] = set()
    for rule, path, line in _found_by_ruff(root, sources):
        by_rule[rule] += 1
        fragments.add((path, line))
    for place, first in docstrings.items():
        if is_fragment(first):
            by_rule["begins without subject or verb"] += 1
            fragments.add(place)
    share = round(100 * len(fragments & docstrings.keys()) / len(docstrings), 2) if docstrings else 0.0
    return HouseFigure("docstrings whose first line is a fragment", share, "%", 1, {"of": len(docstrings), **by_rule})


def first_lines(source: str) -> Iterator[tuple[int, str]]:
    """Yield each docstring's line number and first line, also of attributes and constants."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=True)
            if text:
                yield node.body[0].lineno, text.splitlines()[0]
        if isinstance(node, ast.Module | ast.ClassDef):
            yield from _of_attributes(node.body)


def _of_attributes(body: Sequence[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Yield line number and first line of each text that follows an assignment."""
    for before, statement in pairwise(body):
        if not isinstance(before, ast.Assign | ast.AnnAssign):
            continue
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text))) if text.strip():
                yield statement.lineno, text.strip().splitlines()[0]


def is_fragment(first_line: str) -> bool:
    """Return whether the first line begins as no whole sentence does."""
    return _FRAGMENT.match(first_line) is not None


def _found_by_ruff(root: Path, sources: Mapping[str, str]) -> Iterator[tuple[str, str, int]]:
    """Yield rule, path and first line of each docstring that breaks a rule. Raises CalledProcessError."""
    ruff = str(Path(sys.executable).parent / "ruff")
    command = [ruff, "check", "--isolated", "--exit-zero", "--select", RULES, "--output-format", "json", *sources]
    found = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    for one in json.loads(found):
        yield one["code"], Path(one["filename"]).relative_to(root).as_posix(), int(one["location"]["row"])
