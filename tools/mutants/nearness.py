"""Order of the test files by their nearness to a change: by imports, by names, and by a test's cost to start."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final

from tools.import_graph import ImportGraph, module_of, read_graph
from tools.mutants.mutant import Placed

MIRRORED: Final = 3.0
"""Steps of imports by which a test is nearer that has the name of the changed file, in the folder of its name."""
NAMED_ALIKE: Final = 1.5
NAMES_FUNCTION: Final = 1.5
NAMES_CALLER: Final = 0.75
NAMES_TEXT: Final = 1.25
"""Weight of a text such as the kind of an event that the function emits."""
NAMES_MODULE: Final = 1.0
SHARED_FOLDER: Final = 0.5
COSTLY: Final = 3.0
"""Steps by which a test is farther that drives a browser, builds an environment or starts the whole stack."""
COSTLY_FOLDERS: Final = frozenset({"browser", "deploy", "docs", "setup", "stack", "tls", "authorisation", "benchmarks"})
FAR: Final = 12.0
READS_CODE: Final = {".require(Permission.": "tests/authorisation/test_use_cases.py"}
"""Tests that read the code instead of running it, by a text of the lines that they read: they come first."""
SHORTEST_NAME: Final = 4
NAMED_TEXT: Final = re.compile(r"[a-z]+(?:[._][a-z]+)+")
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


class NearestTests:
    """The test files of one checkout, with its graph of imports."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._graph: ImportGraph = read_graph(root, use_cache=False)

    def of(self, placed: Placed, limit: int) -> list[str]:
        """Return the paths of the nearest test files, nearest first."""
        distances = self._distances(placed.path)
        names = _names(self._root / placed.path, placed.mutant.function)
        scored = []
        for path, text in self._tests.items():
            is_beside = _shared_folders(path, placed.path) == _shared_folders(placed.path, placed.path)
            if path in distances or is_beside or any(word in text for word in names):
                score = distances.get(path, FAR) - _affinity(path, placed.path) - _mentions(text, names)
                scored.append((score + (COSTLY if _is_costly(path, text) else 0.0), path))
        readers = [test for text, test in READS_CODE.items() if text in placed.mutant.line and test in self._tests]
        return [*readers, *(path for _, path in sorted(scored) if path not in readers)][:limit]

    @cached_property
    def _tests(self) -> dict[str, str]:
        found = sorted((self._root / "tests").rglob("test_*.py"))
        return {path.relative_to(self._root).as_posix(): path.read_text(encoding="utf-8") for path in found}

    def _distances(self, path: str) -> dict[str, float]:
        """Return the steps of imports from each test file; what a folder's conftest imports, its tests use."""
        importers = self._graph.importers_of([module_of(path)])
        steps = {self._graph.paths[module]: float(count) for module, count in importers.items()}
        found = {test: steps[test] for test in self._tests if test in steps}
        for test in self._tests:
            for folder in list(PurePosixPath(test).parents)[:-2]:
                through = steps.get(f"{folder}/conftest.py")
                if through is not None:
                    found[test] = min(found.get(test, FAR), through + 1)
        return found


def _affinity(test: str, path: str) -> float:
    """Compare names and folders: ``control/x.py`` has its tests in ``tests/control/test_x.py``."""
    stem, test_stem = PurePosixPath(path).stem, PurePosixPath(test).stem.removeprefix("test_")
    shared = _shared_folders(test, path)
    if stem == test_stem:
        alike = MIRRORED if shared == _shared_folders(path, path) else NAMED_ALIKE
    else:
        alike = NAMED_ALIKE / 2 if set(stem.split("_")) & set(test_stem.split("_")) else 0.0
    return alike + SHARED_FOLDER * shared


def _shared_folders(one: str, other: str) -> int:
    """Count the folders that both begin with, apart from ``tests`` and ``muster``."""
    count = 0
    for first, second in zip(_folders(one), _folders(other), strict=False):
        if first != second:
            break
        count += 1
    return count


def _folders(path: str) -> tuple[str, ...]:
    folders = PurePosixPath(path).parts[:-1]
    return folders[1:] if folders[0] in {"tests", "muster"} else folders


def _names(path: Path, function: str) -> dict[str, float]:
    """Return the words by which a test would name the changed function: its own, its class, its public callers."""
    parts = [part for part in function.split(".") if not part.startswith("_")]
    names = {part: NAMES_FUNCTION for part in parts if len(part) >= SHORTEST_NAME}
    names.setdefault(path.stem, NAMES_MODULE)
    own = function.rpartition(".")[2]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names |= dict.fromkeys(_texts(tree, own), NAMES_TEXT)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if len(node.name) >= SHORTEST_NAME and _calls(node, own):
            names.setdefault(node.name, NAMES_CALLER)
    return names


def _texts(tree: ast.AST, function: str) -> list[str]:
    """Return the texts of a function that are names with a dot or an underscore."""
    found = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS) and node.name == function]
    values = [one.value for node in found for one in ast.walk(node) if isinstance(one, ast.Constant)]
    return [value for value in values if isinstance(value, str) and NAMED_TEXT.fullmatch(value)]


def _calls(node: ast.AST, name: str) -> bool:
    used = (getattr(one, "id", None) or getattr(one, "attr", None) for one in ast.walk(node))
    return name in used


def _mentions(text: str, names: dict[str, float]) -> float:
    """Return the weight of the best two names that the test's text holds as words."""
    held = [weight for name, weight in names.items() if re.search(rf"\b{re.escape(name)}\b", text)]
    return sum(sorted(held, reverse=True)[:2])


def _is_costly(path: str, text: str) -> bool:
    return "mark.slow" in text or PurePosixPath(path).parts[1] in COSTLY_FOLDERS
