"""The test files that a change can reach, nearest first.

Ways to a test are imports (`tools.import_graph`), what its fixtures need (`tools.fixture_users`), the routes that it
names (`tools.route_users`), and what none of these show: files that are named in a text, tests of the changed file's
name, and the rules of `tools.reach_rules`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from tools.fixture_users import add_fixtures
from tools.import_graph import ImportGraph, module_of, read_graph
from tools.reach_rules import RULES
from tools.route_users import add_routes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NAMES_FILES: Final = frozenset({".py", ".html", ".js", ".toml", ".yml", ".yaml"})
"""Suffixes of files whose text may name a data file that they use."""
SHORTEST_NAME: Final = 4


@dataclass(frozen=True, slots=True)
class Reach:
    """Way from a change to a test. ``distance``: imports between the change and the test; 0 is a changed test."""

    distance: int
    because: str


def reachable_tests(root: Path, changed: Iterable[str], graph: ImportGraph | None = None) -> dict[str, Reach]:
    """Return the test files by their path from ``root``, nearest first."""
    whole = graph_with_tests(root, graph or read_graph(root))
    found: dict[str, Reach] = {}
    for path in changed:
        for test, reach in _reached(root, path, whole).items():
            if test not in found or reach.distance < found[test].distance:
                found[test] = reach
    return dict(sorted(found.items(), key=lambda item: (item[1].distance, item[0])))


def graph_with_tests(root: Path, graph: ImportGraph) -> ImportGraph:
    """Return the graph with what pytest adds to it, fixtures, and with each test's own routes of an application."""
    return add_routes(root, add_fixtures(root, graph))


def is_test_file(path: str) -> bool:
    """Return whether pytest collects the file."""
    pure = PurePosixPath(path)
    return pure.parts[0] == "tests" and pure.name.startswith("test_") and pure.suffix == ".py"


def _reached(root: Path, path: str, graph: ImportGraph) -> dict[str, Reach]:
    starts = {module: 0 for module in (_nearest_module(path, graph),) if module is not None}
    if not path.endswith(".py"):
        starts = _naming_modules(root, path, graph)
    tests = [test for test in graph.modules if is_test_file(test)]
    found: dict[str, Reach] = {}
    for start, steps in starts.items():
        for module, distance in graph.importers_of([start]).items():
            _keep_nearest(found, graph.paths[module], Reach(steps + distance, f"imports {graph.paths[start]}"))
    for test in tests:
        if _mirrors(path, test):
            _keep_nearest(found, test, Reach(1, "has its name"))
    for rule in RULES:
        if _matches(path, rule.sources):
            for test in (test for test in tests if _matches(test, rule.tests)):
                _keep_nearest(found, test, Reach(rule.away, rule.because))
    return {test: reach for test, reach in found.items() if is_test_file(test)}


def _keep_nearest(found: dict[str, Reach], path: str, reach: Reach) -> None:
    if path not in found or reach.distance < found[path].distance:
        found[path] = reach


def _nearest_module(path: str, graph: ImportGraph) -> str | None:
    """Return the module of a file; of one that was removed, the package that held it."""
    if not path.endswith(".py"):
        return None
    module = module_of(path)
    while module and module not in graph.paths:
        module = module.rpartition(".")[0]
    return module or None


def _naming_modules(root: Path, path: str, graph: ImportGraph) -> dict[str, int]:
    """Return the modules that name a data file, with their distance: templates that include it lead to theirs."""
    texts = {other: text for other, text in _texts(root, graph).items() if other != path}
    waiting, seen, found = [(path, 1)], {path}, dict[str, int]()
    while waiting:
        named, steps = waiting.pop(0)
        name = PurePosixPath(named).name
        if len(name) < SHORTEST_NAME:
            continue
        pattern = re.compile(rf"(?<![\w-]){re.escape(name)}(?!\w)")
        for other, text in texts.items():
            if other in seen or name not in text or pattern.search(text) is None:
                continue
            seen.add(other)
            if other in graph.modules:
                found[graph.modules[other]] = steps
            else:
                waiting.append((other, steps + 1))
    return found


def _texts(root: Path, graph: ImportGraph) -> Mapping[str, str]:
    folders = {path.partition("/")[0] for path in graph.modules if "/" in path}
    files = [file for folder in sorted(folders) for file in (root / folder).rglob("*") if file.suffix in NAMES_FILES]
    kept = (file for file in files if not {"vendor", "node_modules", "__pycache__"}.intersection(file.parts))
    return {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8", errors="replace") for file in kept}


def _mirrors(path: str, test: str) -> bool:
    """Return whether a test's name says that it is about the file: ``tests/health/scoring/test_score.py`` of
    ``score.py``.
    """
    stem, about = PurePosixPath(path).stem, PurePosixPath(test).stem.removeprefix("test_")
    if stem == "__init__" or not (about == stem or about.startswith(f"{stem}_")):
        return False
    return bool(set(PurePosixPath(path).parts[:-1]) & set(PurePosixPath(test).parts[1:-1]))


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
