"""The files that a change touches: against a revision, with what is not committed and what git does not know yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.git import git, text_at
from tools.import_statements import read_source

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def changed_files(root: Path, base: str) -> list[str]:
    """Return the paths from ``root`` that differ from ``base``, removed files among them."""
    differing = git(root, "diff", "--name-only", "-z", "--no-renames", base, "--")
    untracked = git(root, "ls-files", "-z", "--others", "--exclude-standard")
    return sorted({name for name in (differing + untracked).split("\0") if name})


def changes_imports(root: Path, base: str, changed: Iterable[str]) -> bool:
    """Return whether a changed file imports other modules than at ``base``, or the contracts themselves changed."""
    return any(
        path in {".importlinter", "pyproject.toml"} or (path.endswith(".py") and _imports_differ(root, base, path))
        for path in changed
    )


def _imports_differ(root: Path, base: str, path: str) -> bool:
    now = root / path
    return _imported(now.read_text(encoding="utf-8") if now.is_file() else "") != _imported(text_at(root, base, path))


def _imported(text: str) -> set[tuple[str, str | None, int, str]]:
    return {(one.module, one.name, one.level, one.kind.value) for one in read_source(text).statements}
