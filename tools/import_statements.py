"""The import statements of each Python file of a checkout, read by ``ast`` and cached by the file's size and time.

Nothing is imported: the files of a checkout that does not run are read as well. Standard library only.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import astuple, dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from tools.git import GitError, git

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CACHE: Final = ".artefacts/import_statements.json"
CACHE_VERSION: Final = 5
"""Changes with what is read of a file, so that a cache of an older version is not used."""
SKIPPED_FOLDERS: Final = frozenset({"node_modules", "__pycache__", "build", "dist"})
DOTTED_NAME: Final = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
MODULE_NAME: Final = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.\w+)+)(?::\w+|\.\*)?")
RUN_MODULE: Final = re.compile(r"-m\s+([A-Za-z_][\w.]*)")


class Kind(StrEnum):
    """Time at which an import runs: with its file, in a function, never (for types alone), or by a name in a string."""

    EAGER = "eager"
    LAZY = "lazy"
    TYPING = "typing"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class Statement:
    """One imported module or name. ``name`` is None for ``import module``; ``level`` counts the leading dots."""

    module: str
    name: str | None
    level: int
    kind: Kind
    line: int
    bound: str | None = None
    """The name by which the importing file knows it, for re-exports."""


@dataclass(frozen=True, slots=True)
class Source:
    """Content of a file. ``is_plain``: it holds imports, ``__all__`` and documentation alone: a package that only
    re-exports.
    """

    statements: tuple[Statement, ...]
    is_plain: bool


def python_files(root: Path) -> list[str]:
    """Return the Python files of the checkout, tracked and new, without files that git ignores."""
    try:
        listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py")
        names = sorted({name for name in listed.split("\0") if name})
    except GitError:
        names = []
    if names:
        return [name for name in names if (root / name).is_file()]
    return sorted(_walked(root, root))


def _walked(root: Path, folder: Path) -> Iterator[str]:
    """Yield the files of a folder that is no git checkout."""
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name in SKIPPED_FOLDERS:
            continue
        if path.is_dir():
            yield from _walked(root, path)
        elif path.suffix == ".py":
            yield path.relative_to(root).as_posix()


def read_sources(root: Path, *, use_cache: bool = True) -> dict[str, Source]:
    """Return what each file imports, by its path from ``root``."""
    names = python_files(root)
    tops = sorted({name.partition("/")[0] for name in names})
    cache_path = root / CACHE
    cached = _read_cache(cache_path, tops) if use_cache else {}
    fresh: dict[str, dict[str, Any]] = {}
    found: dict[str, Source] = {}
    for path_name in names:
        path = root / path_name
        state = path.stat()
        stamp = [state.st_mtime_ns, state.st_size]
        entry = cached.get(path_name)
        if entry is None or entry["stamp"] != stamp:
            source = read_source(path.read_text(encoding="utf-8"))
            ours = [astuple(one) for one in source.statements if one.level or one.module.partition(".")[0] in tops]
            entry = {"stamp": stamp, "plain": source.is_plain, "found": ours}
        fresh[path_name] = entry
        statements = tuple(
            Statement(module, name, level, Kind(kind), line, bound)
            for module, name, level, kind, line, bound in entry["found"]
        )
        found[path_name] = Source(statements, is_plain=entry["plain"])
    if use_cache and fresh != cached:
        _write_cache(cache_path, tops, fresh)
    return found


def _read_cache(path: Path, tops: list[str]) -> dict[str, dict[str, Any]]:
    """Return the files of the cache, which holds imports of this checkout's top-level names alone."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    is_current = (held.get("version"), held.get("tops")) == (CACHE_VERSION, tops)
    files: dict[str, dict[str, Any]] = held["files"] if is_current else {}
    return files


def _write_cache(path: Path, tops: list[str], files: dict[str, dict[str, Any]]) -> None:
    """Replace the cache in one step: another process may read it now."""
    path.parent.mkdir(exist_ok=True)
    written = path.with_suffix(".new")
    written.write_text(json.dumps({"version": CACHE_VERSION, "tops": tops, "files": files}), encoding="utf-8")
    written.replace(path)


def read_source(text: str) -> Source:
    """Return the imports of one file's text. A text that does not parse has none: the linter reports it."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return Source((), is_plain=False)
    reader = _Reader()
    reader.visit(tree)
    return Source(tuple(reader.found), is_plain=all(_is_plain(node) for node in tree.body))


def _is_plain(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]


class _Reader(ast.NodeVisitor):
    """Collects the statements of a file, with the kind that the place of each gives it."""

    def __init__(self) -> None:
        self.found: list[Statement] = []
        self._kind = Kind.EAGER

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node.lineno, bound=alias.asname)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.found.append(
                Statement(
                    node.module or "", alias.name, node.level, self._kind, node.lineno, alias.asname or alias.name
                )
            )

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_later(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_later(node)

    def visit_If(self, node: ast.If) -> None:
        """Read the branch that only type checkers see as such."""
        if not _is_type_checking(node.test):
            self.generic_visit(node)
            return
        before, self._kind = self._kind, Kind.TYPING
        for child in node.body:
            self.visit(child)
        self._kind = before
        for child in node.orelse:
            self.visit(child)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Skip documentation: it names modules without using them."""
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Read the modules that a string names: a name alone, a program with imports, a command with ``-m``."""
        if not isinstance(node.value, str):
            return
        if (whole := MODULE_NAME.fullmatch(node.value)) is not None:
            names = [whole["module"]]
        elif "import " in node.value:
            names = DOTTED_NAME.findall(node.value)
        else:
            names = RUN_MODULE.findall(node.value)
        before, self._kind = self._kind, Kind.NAMED
        for name in names:
            self._add(name, node.lineno)
        self._kind = before

    def visit_List(self, node: ast.List) -> None:
        """Read a command's words: after ``-m`` stands a module, whose ``__main__`` runs if it is a package."""
        words = [word.value if isinstance(word, ast.Constant) else None for word in node.elts]
        before, self._kind = self._kind, Kind.NAMED
        for option, module in pairwise(words):
            if option == "-m" and isinstance(module, str):
                self._add(f"{module}.__main__", node.lineno)
        self._kind = before
        self.generic_visit(node)

    def _visit_later(self, node: ast.AST) -> None:
        before, self._kind = self._kind, Kind.TYPING if self._kind is Kind.TYPING else Kind.LAZY
        self.generic_visit(node)
        self._kind = before

    def _add(self, module: str, line: int, *, bound: str | None = None) -> None:
        self.found.append(Statement(module, None, 0, self._kind, line, bound))


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )
