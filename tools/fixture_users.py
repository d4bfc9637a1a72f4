"""Edges of the import graph that pytest adds: from a test to what the fixtures need that it uses.

A ``conftest.py`` serves many tests, each of which uses a few of its names. So it is cut into its names: a module that
names one of them, as an argument, in a string or by an import, needs what that name's text names in turn, and what the
file does by itself: fixtures with ``autouse``, hooks, statements. The ``conftest.py`` itself is led through no more.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from tools.import_graph import Import, ImportGraph
from tools.import_statements import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

WORD: Final = re.compile(r"\w+")
CONFTEST: Final = "conftest.py"
ITSELF: Final = ""
"""Stands for what the file does for every test below it."""


@dataclass(frozen=True, slots=True)
class Conftest:
    """A ``conftest.py``. ``words``: for each top-level name, the words of its text; ``imports``: each
    import's module.
    """

    module: str
    words: Mapping[str, AbstractSet[str]]
    imports: Mapping[str, str]

    def used_by(self, words: AbstractSet[str]) -> set[str]:
        """Return the words of all texts of this file that a user of these words uses."""
        found: set[str] = set()
        waiting = [ITSELF, *words]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self.words:
                continue
            seen.add(name)
            found |= self.words[name]
            waiting.extend(self.words[name])
        return found


def add_fixtures(root: Path, graph: ImportGraph) -> ImportGraph:
    """Return the graph with edges from each module of the tests to all that it needs through ``conftest.py`` files."""
    held = {path: _read(root / path, module, graph) for path, module in graph.modules.items() if _is_conftest(path)}
    by_module = {one.module: one for one in held.values()}
    importing: dict[str, set[str]] = {}
    for one in graph.imports:
        if one.imported in by_module:
            importing.setdefault(one.importer, set()).add(one.imported)
    found: list[Import] = []
    for path, module in graph.modules.items():
        pure = PurePosixPath(path)
        used = [held[above] for above in _above(pure, held)] if pure.name.startswith("test_") else []
        used += [by_module[name] for name in sorted(importing.get(module, ()))]
        if used and not _is_conftest(path):
            words = frozenset(WORD.findall((root / path).read_text(encoding="utf-8")))
            found += [Import(module, needed, Kind.EAGER, 0) for needed in sorted(_needed(used, words, by_module))]
    return replace(graph, imports=(*graph.imports, *found), transparent=graph.transparent | by_module.keys())


def _needed(used: list[Conftest], words: AbstractSet[str], by_module: Mapping[str, Conftest]) -> set[str]:
    """Return the modules that are needed: the used files, and the modules from which these take names."""
    waiting, seen, needed = list(used), set[str](), set[str]()
    while waiting:
        one = waiting.pop(0)
        if one.module in seen:
            continue
        seen.add(one.module)
        needed.add(one.module)
        used_words = one.used_by(words)
        for name, module in one.imports.items():
            is_passed_on = name in words and module.startswith("tests.")  # such as a fixture of another conftest.py
            if name in used_words or is_passed_on:
                needed.add(module)
                waiting += [by_module[module]] if module in by_module else []
        words = words | used_words
    return needed


def _is_conftest(path: str) -> bool:
    return PurePosixPath(path).name == CONFTEST


def _above(path: PurePosixPath, contents: Mapping[str, Conftest]) -> Iterator[str]:
    for folder in path.parents:
        name = (folder / CONFTEST).as_posix()
        if name in contents:
            yield name


def _read(path: Path, module: str, graph: ImportGraph) -> Conftest:
    """Return a file cut into its names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    targets = [one for one in graph.imports if one.importer == module and not one.on_the_way]
    imports = {
        alias.asname or alias.name.partition(".")[0]: target
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (target := _target(node, alias.name, targets)) is not None
    }
    words: dict[str, set[str]] = {ITSELF: set()}
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            text = ast.unparse(_Undocumented().visit(node))
            for name in _names(node, text):
                words.setdefault(name, set()).update(WORD.findall(text))
    return Conftest(module, words, imports)


class _Undocumented(ast.NodeTransformer):
    """Takes documentation away: its words are not used."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node


def _target(node: ast.Import | ast.ImportFrom, name: str, targets: list[Import]) -> str | None:
    """Return the module of an imported name: itself a module, or of the module named, or re-exported from another."""
    base = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
    for wanted in (f"{base}.{name}".strip("."), base):
        for one in targets:
            if wanted and f".{one.imported}".endswith(f".{wanted}"):
                return one.imported
    of_line = [one.imported for one in targets if one.line == node.lineno]
    return of_line[0] if of_line else None


def _names(node: ast.stmt, text: str) -> list[str]:
    """Return the names by which a statement's text is used."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        acts_alone = "autouse=True" in text or node.name.startswith("pytest_")
        return [node.name, *([ITSELF] if acts_alone else [])]
    if isinstance(node, ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.id for target in targets if isinstance(target, ast.Name)] or [ITSELF]
    return [ITSELF]
