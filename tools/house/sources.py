"""The Python files of the checkout that git knows, by path, with the packages that are delivered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.git import listed_files

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).resolve().parents[2]
SERVES_DEVELOPMENT: Final = frozenset({"tests", "benchmarks", "examples", "tools", "deploy", "docs"})
"""Folders that are no package of the product."""
RECORDS: Final = "migrations/versions"
"""Migrations record the past: a file each, never read as a whole."""


def python_sources(root: Path) -> dict[str, str]:
    """Return the text of each Python file by its path, without tests."""
    paths = [name for name in listed_files(root, "*.py") if not name.startswith("tests/")]
    return {path: (root / path).read_text(encoding="utf-8") for path in paths}


def packages_alone(sources: Mapping[str, str]) -> dict[str, str]:
    """Return the files of the delivered packages."""
    return {path: text for path, text in sources.items() if package_of(path) not in SERVES_DEVELOPMENT and "/" in path}


def package_of(path: str) -> str:
    """Return the first folder of a path."""
    return path.partition("/")[0]
