"""The pages of the repository: all of them, and those that a test types, in the order of their indexes."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
FOLDERS: Final = ("operator", "tenant", "api")
"""Whose pages are typed. The index of each is its README.md: a row of its table for each page."""
RUNBOOKS: Final = sorted((DOCS / "runbooks").glob("*.md"))
PAGES: Final = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
_LINK: Final = re.compile(r"\]\(([^)#:]+\.md)\)")


def indexed(folder: Path) -> list[Path]:
    """Return the pages that the index of ``folder`` names in its table, in their order."""
    rows = [line for line in (folder / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [(folder / name).resolve() for row in rows for name in _LINK.findall(row)]


def name_of(page: Path) -> str:
    """Return the path of ``page`` within the repository."""
    return page.relative_to(ROOT).as_posix()


TYPED: Final = [page for folder in FOLDERS for page in indexed(DOCS / folder)]
