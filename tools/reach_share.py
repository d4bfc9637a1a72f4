"""Share of the tests that a change can reach: the median over all source modules, of one changed module each.

Test functions count that reach the module through imports, in functions too (`tools.import_graph`), through the needs
of their fixtures, and through the routes that they name. The rules for processes, which `make quick` follows too, do
not count: they do not depend on the division of sources.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from tools.import_graph import ImportGraph, read_graph
from tools.import_statements import Kind
from tools.reachable_tests import graph_with_tests, is_test_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

ROOT: Final = Path(__file__).resolve().parent.parent
NO_SOURCES: Final = frozenset({"tests", "tools", "benchmarks", "examples", "deploy", "migrations"})
"""Top-level folders whose modules are no part of the product that developers change day by day."""
COUNTED_IMPORTS: Final = frozenset({Kind.EAGER, Kind.LAZY})


@dataclass(frozen=True, slots=True)
class Share:
    """Share of the tests. ``modules``: of each source module, the share of all tests that its change reaches."""

    median: float
    modules: Mapping[str, float]


def reach_share(graph: ImportGraph, tests: Mapping[str, int], empty: Collection[str] = ()) -> Share:
    """Return the shares, of tests given as numbers of functions by test file; modules of ``empty`` are not counted."""
    total = sum(tests.values())
    counts: Counter[str] = Counter()
    sources = {module for module, path in graph.paths.items() if _is_source(path)} - set(empty)
    edges = graph.edges(COUNTED_IMPORTS)
    for path, number in tests.items():
        for module in graph.imports_of([graph.modules[path]], COUNTED_IMPORTS, edges=edges):
            if module in sources:
                counts[module] += number
    shares = {module: counts[module] / total for module in sources}
    return Share(median(shares.values()), shares)


def hubs(graph: ImportGraph, tests: Mapping[str, int], modules: Iterable[str]) -> dict[str, float]:
    """Return of each module the median that were without its imports, least first."""
    found = {}
    for module in modules:
        cut = ImportGraph(graph.paths, tuple(one for one in graph.imports if one.importer != module), graph.transparent)
        found[module] = reach_share(cut, tests).median
    return dict(sorted(found.items(), key=lambda item: item[1]))


def empty_modules(root: Path, graph: ImportGraph) -> frozenset[str]:
    """Return the modules that hold a docstring at most: no change of behaviour touches them."""
    return frozenset(module for module, path in graph.paths.items() if not _has_statements(root / path))


def _has_statements(path: Path) -> bool:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return any(not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant) for node in body)


def count_tests(root: Path, paths: Iterable[str]) -> dict[str, int]:
    """Return the number of test functions of each test file."""
    return {path: _test_functions(root / path) for path in paths if is_test_file(path)}


def _test_functions(path: Path) -> int:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in nodes)


def _is_source(path: str) -> bool:
    top, _, rest = path.partition("/")
    return bool(rest) and top not in NO_SOURCES


def main() -> int:
    """Print the median, and the modules that the most tests reach."""
    graph = graph_with_tests(ROOT, read_graph(ROOT))
    share = reach_share(graph, count_tests(ROOT, graph.modules), empty_modules(ROOT, graph))
    sys.stdout.write(f"a change of one source module reaches {share.median:.1%} of the tests (median)\n")
    for module, reached in sorted(share.modules.items(), key=lambda item: -item[1])[:20]:
        sys.stdout.write(f"  {reached:6.1%} {module}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
