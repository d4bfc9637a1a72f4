"""Edges of the import graph that pytest adds: from a test to the ``conftest.py`` files whose fixtures it uses.

A test uses a ``conftest.py`` above it when it names one of its fixtures, in an argument or a string, or when that file
acts by itself: by a fixture with ``autouse`` or by a hook. A fixture may name a fixture of a file further above.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from tools.import_graph import Import, ImportGraph
from tools.import_statements import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

WORD: Final = re.compile(r"\w+")


def add_fixtures(root: Path, graph: ImportGraph) -> ImportGraph:
    """Return the graph with an edge from each test, and each ``conftest.py``, to those that it takes fixtures from."""
    given = {path: _fixtures(root / path) for path in graph.modules if PurePosixPath(path).name == "conftest.py"}
    found: list[Import] = []
    for path, module in graph.modules.items():
        pure = PurePosixPath(path)
        if pure.parts[0] != "tests" or not (pure.name.startswith("test_") or path in given):
            continue
        words = frozenset(WORD.findall((root / path).read_text(encoding="utf-8")))
        for above in _conftests_above(pure, given):
            fixtures, acts_alone = given[above]
            if acts_alone or fixtures & words:
                found.append(Import(module, graph.modules[above], Kind.EAGER, 0))
    return replace(graph, imports=(*graph.imports, *found))


def _conftests_above(path: PurePosixPath, given: dict[str, tuple[frozenset[str], bool]]) -> Iterator[str]:
    for folder in path.parents:
        name = (folder / "conftest.py").as_posix()
        if name in given and name != path.as_posix():
            yield name


def _fixtures(path: Path) -> tuple[frozenset[str], bool]:
    """Return the names of a file's fixtures, and whether it acts on tests that name none of them."""
    names: set[str] = set()
    acts_alone = False
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
        if "fixture" in decorators:
            names.add(node.name)
            acts_alone |= "autouse=True" in decorators
    return frozenset(names), acts_alone
