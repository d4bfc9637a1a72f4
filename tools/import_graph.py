"""The graph of imports of the whole checkout: sources, tests, benchmarks, tools, examples.

Modules are found in the tree: each top-level folder with Python files is a package. Four kinds of imports are
distinguished (`tools.import_statements.Kind`). An import runs the ``__init__`` of each package on its path, so the
graph has an edge to these too. A package whose ``__init__`` only re-exports is transparent: ``from package import
Name`` leads to the module that defines ``Name``, and from that ``__init__`` nothing else is reached.

``python -m tools.import_graph`` prints sizes and circles; ``--importers FILE`` and ``--imports FILE`` print closures.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from tools.import_statements import Kind, Source, Statement, read_sources
from tools.strongly_connected import strongly_connected

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

ROOT: Final = Path(__file__).resolve().parent.parent
RUNS: Final = frozenset({Kind.EAGER, Kind.LAZY, Kind.NAMED})
"""The kinds by which a change in the imported module can change what the importing module does."""
AT_IMPORT: Final = frozenset({Kind.EAGER})


@dataclass(frozen=True, slots=True)
class Import:
    """Edge of the graph. ``on_the_way``: the imported module is the ``__init__`` of a package on the path, not the
    target.
    """

    importer: str
    imported: str
    kind: Kind
    line: int
    on_the_way: bool = False


@dataclass(frozen=True)
class ImportGraph:
    """Graph of imports. ``paths``: each module's file, from the root of the checkout, by the module's name."""

    paths: Mapping[str, str]
    imports: tuple[Import, ...]
    transparent: frozenset[str]

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """The module of each file."""
        return {path: module for module, path in self.paths.items()}

    def imports_of(
        self,
        modules: Iterable[str],
        kinds: Collection[Kind] = RUNS,
        *,
        edges: Mapping[str, AbstractSet[str]] | None = None,
    ) -> dict[str, int]:
        """Return all modules that these import, however far, each with its distance: 0 for the modules themselves.

        Give ``edges`` of the same kinds where many are asked for.
        """
        return _distances(modules, edges or self.edges(kinds), self.transparent)

    def importers_of(self, modules: Iterable[str], kinds: Collection[Kind] = RUNS) -> dict[str, int]:
        """Return all modules that import these, however far, each with its distance.

        A transparent package has importers when it changed itself; nothing that it re-exports reaches them through it.
        """
        return _distances(modules, self.edges(kinds, backward=True), self.transparent)

    def circles(self, kinds: Collection[Kind] = AT_IMPORT) -> list[list[str]]:
        """Return the strongly connected sets of modules, largest first. Packages on the way make no circle."""
        edges: dict[str, set[str]] = {module: set() for module in self.paths}
        for one in self.imports:
            if one.kind in kinds and not one.on_the_way and one.importer != one.imported:
                edges[one.importer].add(one.imported)
        found = [sorted(circle) for circle in strongly_connected(edges) if len(circle) > 1]
        return sorted(found, key=lambda circle: (-len(circle), circle))

    def edges(self, kinds: Collection[Kind] = RUNS, *, backward: bool = False) -> dict[str, set[str]]:
        """Return the modules that each module imports; ``backward``: the modules that import it."""
        found: dict[str, set[str]] = {module: set() for module in self.paths}
        for one in self.imports:
            if one.kind in kinds:
                first, second = (one.imported, one.importer) if backward else (one.importer, one.imported)
                found[first].add(second)
        return found


def read_graph(root: Path = ROOT, *, use_cache: bool = True) -> ImportGraph:
    """Return the graph of the checkout at ``root``."""
    return graph_of(read_sources(root, use_cache=use_cache))


def graph_of(sources: Mapping[str, Source]) -> ImportGraph:
    """Return the graph of files that were read, by their paths."""
    paths = {module_of(path): path for path in sources}
    transparent = frozenset(
        module for module, path in paths.items() if path.endswith("/__init__.py") and sources[path].is_plain
    )
    resolver = _Resolver(paths, sources, transparent)
    found: dict[tuple[str, str, Kind, bool], Import] = {}
    for module in paths:
        for one in resolver.imports_of(module):
            found.setdefault((one.importer, one.imported, one.kind, one.on_the_way), one)
    return ImportGraph(paths, tuple(found.values()), transparent)


def module_of(path: str) -> str:
    """Return the dotted name of a file, whether or not its folders are packages."""
    parts = list(PurePosixPath(path).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


class _Resolver:
    """Leads statements to modules of the checkout; what is installed from elsewhere has no edge."""

    def __init__(self, paths: Mapping[str, str], sources: Mapping[str, Source], transparent: AbstractSet[str]) -> None:
        self._paths = paths
        self._sources = sources
        self._transparent = transparent
        self._exports = {module: self._exported(module) for module in transparent}

    def imports_of(self, module: str) -> Iterator[Import]:
        """Yield the edges of one module: one edge for each statement's target, and for the packages on its path."""
        for statement in self._sources[self._paths[module]].statements:
            target = self._target(module, statement)
            if target is None or (target == module and statement.kind is Kind.NAMED):
                continue
            if target != module:
                yield Import(module, target, statement.kind, statement.line)
            for package in self._way(module, statement, target):
                yield Import(module, package, statement.kind, statement.line, on_the_way=True)

    def _exported(self, package: str) -> dict[str, Statement]:
        return {one.bound: one for one in self._sources[self._paths[package]].statements if one.bound is not None}

    def _target(self, module: str, statement: Statement, depth: int = 0) -> str | None:
        """Return the module that a statement asks for; a re-exported name leads to the module that defines it."""
        base = self._base(module, statement)
        if statement.name is None:
            return self._longest(base)
        inner = f"{base}.{statement.name}" if base else statement.name
        if inner in self._paths:
            return inner
        again = self._exports.get(base, {}).get(statement.name)
        if again is not None and depth < len(self._paths):
            return self._target(base, again, depth + 1) or base
        return self._longest(base)

    def _base(self, module: str, statement: Statement) -> str:
        if statement.level == 0:
            return statement.module
        package = module if self._paths[module].endswith("/__init__.py") else module.rpartition(".")[0]
        for _ in range(statement.level - 1):
            package = package.rpartition(".")[0]
        return ".".join(part for part in (package, statement.module) if part)

    def _longest(self, name: str) -> str | None:
        """Return the module of a dotted name, which may continue with names in the module. A lone top is no module."""
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            known = ".".join(parts[:count])
            if known in self._paths:
                return known
        return None

    def _way(self, module: str, statement: Statement, target: str) -> set[str]:
        """Return the packages whose ``__init__`` the import runs, except the packages that contain the module."""
        names = {target, self._longest(self._base(module, statement)) or target}
        passed = {package for name in names for package in (name, *_packages(name)) if package in self._paths}
        return {name for name in passed if self._is_package(name)} - {target, module, *_packages(module)}

    def _is_package(self, module: str) -> bool:
        return self._paths[module].endswith("/__init__.py")


def _packages(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _distances(
    start: Iterable[str], edges: Mapping[str, AbstractSet[str]], transparent: AbstractSet[str]
) -> dict[str, int]:
    """Return what is reached, breadth first; a transparent package is reached, and led through only from itself."""
    found = {module: 0 for module in start if module in edges}
    waiting = deque(found)
    while waiting:
        module = waiting.popleft()
        if module in transparent and found[module] > 0:
            continue
        for following in sorted(edges[module]):
            if following not in found:
                found[following] = found[module] + 1
                waiting.append(following)
    return found


def main(words: list[str] | None = None) -> int:
    """Print sizes and circles, or the closure of one file."""
    parser = argparse.ArgumentParser(prog="python -m tools.import_graph", description=__doc__)
    parser.add_argument("--importers", metavar="FILE", help="print what imports the file, nearest first")
    parser.add_argument("--imports", metavar="FILE", help="print what the file imports, nearest first")
    given = parser.parse_args(words)
    graph = read_graph()
    if given.importers or given.imports:
        module = module_of(given.importers or given.imports)
        reached = graph.importers_of([module]) if given.importers else graph.imports_of([module])
        for name, distance in sorted(reached.items(), key=lambda item: (item[1], item[0])):
            sys.stdout.write(f"{distance} {graph.paths[name]}\n")
        return 0
    circles = graph.circles()
    sys.stdout.write(f"{len(graph.paths)} modules, {len(graph.imports)} imports, {len(circles)} circles of files\n")
    for circle in circles:
        sys.stdout.write(f"  {len(circle)}: {', '.join(circle)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
