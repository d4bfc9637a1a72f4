"""Edges of the import graph for routes: from a test to the modules whose paths it names.

An application imports every module that declares routes, only to include them. Through these imports each test of the
API reaches each route, and all that it imports. A test uses the routes that it names. So the application's imports of
them are replaced by an edge from each test that reaches the application to each module that declares a path which the
test, or a module of the tests that it imports, names by its last word: ``/quotas`` for
``/tenants/{id}/quotas/{tier}``.
Tests that ask every route without naming them stand in `tools.reach_rules`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tools.import_graph import Import, ImportGraph
from tools.import_statements import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

ROUTER: Final = "APIRouter("
ROUTE_DECORATORS: Final = frozenset({"get", "put", "post", "patch", "delete", "head", "api_route", "websocket"})
SEGMENT: Final = re.compile(r"/([a-z][\w.-]*)")
FROM_TWO: Final = 2
"""A module that includes one router may be its user; an application includes several."""


def add_routes(root: Path, graph: ImportGraph) -> ImportGraph:
    """Return the graph with edges from tests to the routes that they name, in place of the application's to all."""
    texts = {
        module: (root / path).read_text(encoding="utf-8")
        for module, path in graph.paths.items()
        if (root / path).exists()
    }
    declared = {module: words for module, text in texts.items() if ROUTER in text and (words := _last_words(text))}
    applications = {
        module
        for module, text in texts.items()
        if ROUTER in text and module not in declared and len(_imported(graph, module) & declared.keys()) >= FROM_TWO
    }
    kept = [one for one in graph.imports if one.importer not in applications or one.imported not in declared]
    named = [
        Import(test, module, Kind.EAGER, 0)
        for test, words in _named_words(graph, texts, applications).items()
        for module, paths in declared.items()
        if paths & words
    ]
    return replace(graph, imports=(*kept, *named))


def _imported(graph: ImportGraph, module: str) -> set[str]:
    return {one.imported for one in graph.imports if one.importer == module}


def _named_words(graph: ImportGraph, texts: Mapping[str, str], applications: set[str]) -> dict[str, set[str]]:
    """Return the words of paths in each test that reaches an application, and in what it imports of the tests."""
    own = {
        module: set(SEGMENT.findall(text)) for module, text in texts.items() if graph.paths[module].startswith("tests/")
    }
    edges = graph.edges([Kind.EAGER, Kind.LAZY])
    reaching = graph.importers_of(applications, [Kind.EAGER, Kind.LAZY]).keys() & own.keys()
    return {
        test: set().union(*(own[module] for module in graph.imports_of([test], edges=edges) if module in own))
        for test in sorted(reaching)
        if "/test_" in graph.paths[test]
    }


def _last_words(text: str) -> set[str]:
    """Return the last word of each path that a module declares."""
    tree = ast.parse(text)
    prefixes = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            prefixes[node.targets[0].id] = "".join(
                _text(word.value) for word in node.value.keywords if word.arg == "prefix"
            )
    found = set()
    for router, path in _declared(tree):
        words = SEGMENT.findall(prefixes.get(router, "") + path)
        found.update(words[-1:])
    return found


def _declared(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the router and the path of each route."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            if (
                isinstance(decorator, ast.Call)
                and isinstance(decorator.func, ast.Attribute)
                and decorator.func.attr in ROUTE_DECORATORS
                and isinstance(decorator.func.value, ast.Name)
                and decorator.args
            ):
                yield decorator.func.value.id, _text(decorator.args[0])


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
